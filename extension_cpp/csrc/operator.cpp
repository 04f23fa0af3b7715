#include "operator.h"

#include "dispatch.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace extension_cpp {
namespace {

constexpr std::array<ScalarType, kDtypeNames.size()> kDtypes = {
    ScalarType::Bool,          ScalarType::Byte,       ScalarType::Char,         ScalarType::Short,
    ScalarType::Int,           ScalarType::Long,       ScalarType::Half,         ScalarType::BFloat16,
    ScalarType::Float,         ScalarType::Double,     ScalarType::ComplexFloat, ScalarType::ComplexDouble,
    ScalarType::Float8_e4m3fn, ScalarType::Float8_e5m2};

// What no sum in a line exceeds, whatever numbers it is of.
__extension__ using Int128 = __int128;
constexpr int64_t kMostSize = std::numeric_limits<int64_t>::max();

bool is_half(ScalarType dtype) { return dtype == ScalarType::Half || dtype == ScalarType::BFloat16; }

bool is_floating(ScalarType dtype) {
  return dtype == ScalarType::Float || dtype == ScalarType::Double || is_half(dtype);
}

}  // namespace

CheckedInputs::CheckedInputs(const Notation& notation, const detail::Given* given, size_t count) : notation_(notation) {
  take(given, count);
  const size_t tensors = notation_.inputs.size();
  for (size_t k = 0; k < tensors; ++k) {
    check_dtypes(k);
  }
  check(first_ != nullptr, op(), ": at least one tensor must be given");
  for (const int number : notation_.numbers) {
    check(own_[number] >= 0, op(), ": ", notation_.symbols[number], " must not be negative, got ", own_[number]);
  }
  for (size_t k = 0; k < tensors; ++k) {
    const Shape& shape = notation_.inputs[k];
    for (size_t i = 0; i < given_[k].count; ++i) {
      check_shape_of(shape, k, i);
    }
  }
  if (notation_.sums_in_results) {
    check_results();
  }
  check_memory();
}

void CheckedInputs::take(const detail::Given* given, size_t count) {
  const size_t numbers = std::count_if(given, given + count, [](const detail::Given& g) { return g.is_number; });
  if (count - numbers != notation_.inputs.size() || numbers != notation_.numbers.size() || !notation_.error.empty()) {
    refuse_line(count - numbers, numbers);
  }
  size_t tensor = 0;
  size_t number = 0;
  for (size_t k = 0; k < count; ++k) {
    if (given[k].is_number) {
      bind(notation_.numbers[number++], given[k].number);
    } else {
      given_[tensor++] = given[k];
    }
  }
}

void CheckedInputs::bind(int symbol, Slice sizes) {
  bound_[symbol] = sizes;
  is_bound_ |= 1u << symbol;
}

void CheckedInputs::bind(int symbol, int64_t size) {
  own_[symbol] = size;
  bind(symbol, Slice{&own_[symbol], 1});
}

bool CheckedInputs::fits(const Dim& sum, int64_t size) {
  Int128 rest = Int128{size} - sum.size;
  const Term* open = nullptr;
  for (const Term& term : sum.terms) {
    if (is_bound(term.symbol)) {
      rest -= Int128{term.times} * *bound_[term.symbol].data;
    } else {
      open = &term;
    }
  }
  if (open == nullptr) {
    return rest == 0;
  }
  const Int128 found = rest / open->times;
  if (found * open->times != rest || found < 0 || found > kMostSize) {
    return false;
  }
  bind(open->symbol, static_cast<int64_t>(found));
  return true;
}

std::optional<int64_t> CheckedInputs::value_of(const Dim& sum) const {
  Int128 value = sum.size;
  for (const Term& term : sum.terms) {
    value += Int128{term.times} * *bound_[term.symbol].data;
  }
  return value > kMostSize ? std::nullopt : std::optional<int64_t>(std::max<Int128>(value, -kMostSize));
}

void CheckedInputs::check_results() const {
  for (const Shape& shape : notation_.outputs) {
    for (const Dim& dim : shape.dims) {
      if (dim.symbol == Dim::kSum && !is_absent(shape)) {
        const std::optional<int64_t> value = value_of(dim);
        check(value.has_value(), op(), ": the size ", dim.spelled, " of a result is too large");
        check(*value >= 0, op(), ": the size ", dim.spelled, " of a result must not be negative, got ", *value);
      }
    }
  }
}

Sizes CheckedInputs::sizes(size_t output) const {
  const Shape& shape = notation_.outputs[output];
  if (is_absent(shape)) {
    Sizes none(1);
    none.data()[0] = 0;
    return none;
  }
  if (shape.like >= 0) {
    const Slice like = whole(shape);
    Sizes result(like.size);
    std::copy_n(like.data, like.size, result.data());
    return result;
  }
  size_t dim = 0;
  for (const Dim& d : shape.dims) {
    dim += d.symbol < 0 ? 1 : bound_[d.symbol].size;
  }
  Sizes result(dim);
  int64_t* next = result.data();
  for (const Dim& d : shape.dims) {
    if (d.symbol < 0) {
      *next++ = d.symbol == Dim::kSum ? *value_of(d) : d.size;
    } else {
      next = std::copy_n(bound_[d.symbol].data, bound_[d.symbol].size, next);
    }
  }
  return result;
}

ScalarType CheckedInputs::dtype(size_t output) const {
  const Shape& shape = notation_.outputs[output];
  switch (shape.dtype) {
    case DtypeRule::kSum: return sum_dtype(leader_dtype_);
    case DtypeRule::kExact: return kDtypes[shape.dtype_index];
    case DtypeRule::kArgument:
      if (!is_absent(shape)) {
        return dtype_of(*given_[shape.dtype_index].tensors);
      }
      return notation_.leader < 0 ? dtype_of(*first_) : leader_dtype_;
    default: return leader_dtype_;
  }
}

Tensor CheckedInputs::new_output(size_t output) const {
  const Shape& described = notation_.outputs[output];
  if (!notation_.elementwise || is_absent(described)) {
    return new_empty(*first_, sizes(output), other_dtype(output));
  }
  const Slice shape = whole(described);
  if (described.like >= 0 && !equal_sizes(shape, whole(notation_.inputs[0]))) {
    return new_empty(*first_, shape, other_dtype(output));
  }
  size_t count = 0;
  for (size_t k = 0; k < notation_.inputs.size(); ++k) {
    count += given_[k].count;
  }
  detail::Few<Geometry, 8> operands(count);
  Geometry* next = operands.data();
  for (size_t k = 0; k < notation_.inputs.size(); ++k) {
    for (size_t i = 0; i < given_[k].count; ++i) {
      *next++ = geometry(given_[k].tensors[i]);
    }
  }
  const std::vector<int64_t> strides =
      elementwise_strides(static_cast<int64_t>(shape.size), shape.data, operands.data(), count);
  return empty_with_strides(*first_, shape, strides, other_dtype(output));
}

CheckedInputs::Slice CheckedInputs::whole(const Shape& shape) const {
  if (shape.like >= 0) {
    const IntArrayRef sizes = given_[shape.like].tensors->sizes();
    return {sizes.data(), sizes.size()};
  }
  return shape.dims.empty() ? Slice{nullptr, 0} : bound_[shape.dims[0].symbol];
}

bool CheckedInputs::is_absent(const Shape& shape) const {
  return (shape.dtype == DtypeRule::kArgument && given_[shape.dtype_index].count == 0) ||
         (shape.like >= 0 && given_[shape.like].count == 0);
}

std::optional<ScalarType> CheckedInputs::other_dtype(size_t output) const {
  if (first_ == leader_ && notation_.outputs[output].dtype == DtypeRule::kLeader) {
    return std::nullopt;
  }
  return dtype(output);
}

void CheckedInputs::check_dtypes(size_t k) {
  const Shape& shape = notation_.inputs[k];
  const detail::Given& given = given_[k];
  const bool leads = static_cast<int>(k) == notation_.leader;
  if (leads && given.count == 0) {
    check(false, op(), ": ", notation_.arguments[k].name, " must not be empty");
  }
  if (shape.most >= 0 && given.count > static_cast<size_t>(shape.most)) {
    check(
        false, op(), ": ", notation_.arguments[k].name, " must hold at most ", shape.most, " tensors, got ",
        static_cast<int64_t>(given.count));
  }
  for (size_t i = 0; i < given.count; ++i) {
    const Tensor& tensor = given.tensors[i];
    if (!tensor.defined()) {
      refuse_dtype(k, i);
    }
    if (shape.dtype == DtypeRule::kSum && leader_ == nullptr) {
      look_ahead_for_leader();
    }
    const ScalarType dtype = dtype_of(tensor);
    if (leads && i == 0) {
      leader_ = &tensor;
      leader_dtype_ = dtype;
    }
    if (!is_allowed(shape, leads && i == 0, dtype)) {
      refuse_dtype(k, i);
    }
    if (first_ == nullptr) {
      first_ = &tensor;
      first_argument_ = k;
    } else if (!(tensor.device() == first_->device())) {
      check_same_device(op(), label(k, i).c_str(), tensor, label(first_argument_, 0).c_str(), *first_);
    }
  }
}

void CheckedInputs::look_ahead_for_leader() {
  const auto k = static_cast<size_t>(notation_.leader);
  const Tensor& tensor = *given_[k].tensors;
  if (!tensor.defined()) {
    refuse_dtype(k, 0);
  }
  leader_ = &tensor;
  leader_dtype_ = dtype_of(tensor);
}

bool CheckedInputs::is_allowed(const Shape& shape, bool leads, ScalarType dtype) const {
  switch (shape.dtype) {
    case DtypeRule::kLeader: return leads ? is_floating(dtype) : dtype == leader_dtype_;
    case DtypeRule::kSum: return dtype == sum_dtype(leader_dtype_);
    case DtypeRule::kWide: return dtype == leader_dtype_ || (dtype == ScalarType::Float && is_half(leader_dtype_));
    case DtypeRule::kExact: return dtype == kDtypes[shape.dtype_index];
    case DtypeRule::kArgument: {
      const Tensor& source = *given_[shape.dtype_index].tensors;
      return source.defined() && dtype == dtype_of(source);
    }
    case DtypeRule::kAny: return true;
  }
  return false;
}

void CheckedInputs::refuse_dtype(size_t k, size_t i) const {
  const Shape& shape = notation_.inputs[k];
  const Tensor& tensor = given_[k].tensors[i];
  const std::string named = label(k, i);
  const char* const name = named.c_str();
  const std::string leader = notation_.leader < 0 ? "" : label(notation_.leader, 0);
  check_defined(op(), name, tensor);
  switch (shape.dtype) {
    case DtypeRule::kLeader:
      if (&tensor == leader_) {
        check_floating(op(), name, tensor);
      } else {
        check_same_dtype(op(), name, tensor, leader.c_str(), *leader_);
      }
      break;
    case DtypeRule::kSum: check_dtype(op(), name, tensor, sum_dtype(leader_dtype_)); break;
    case DtypeRule::kWide: check_parameter_dtype(op(), name, tensor, leader.c_str(), *leader_); break;
    case DtypeRule::kExact: check_dtype(op(), name, tensor, kDtypes[shape.dtype_index]); break;
    default:
      const std::string source = label(shape.dtype_index, 0);
      const Tensor& like = *given_[shape.dtype_index].tensors;
      check_defined(op(), source.c_str(), like);
      check_same_dtype(op(), name, tensor, source.c_str(), like);
  }
  throw std::logic_error(named + ": a dtype that is refused passes its check");
}

void CheckedInputs::check_shape_of(const Shape& shape, size_t k, size_t i) {
  const IntArrayRef sizes = given_[k].tensors[i].sizes();
  const size_t dim = sizes.size();
  const size_t single = shape.dims.size() - (shape.star < 0 ? 0 : 1);
  if (shape.star < 0 ? dim != single : dim < single) {
    refuse_shape(shape, k, i, is_bound_);
  }
  const uint32_t bound_before = is_bound_;
  const int64_t* next = sizes.data();
  Slice to_broadcast{nullptr, 0};
  for (size_t d = 0; d < shape.dims.size(); ++d) {
    const Dim& expected = shape.dims[d];
    const Slice slice{next, static_cast<int>(d) == shape.star ? dim - single : 1};
    next += slice.size;
    if (expected.symbol == Dim::kAnything) {
      continue;
    }
    if (expected.symbol < 0) {
      if (expected.symbol == Dim::kSum ? !fits(expected, *slice.data) : *slice.data != expected.size) {
        refuse_shape(shape, k, i, bound_before);
      }
    } else if (!is_bound(expected.symbol)) {
      bind(expected.symbol, slice);
    } else if (expected.symbol == notation_.broadcast) {
      to_broadcast = slice;
    } else if (!equal_sizes(bound_[expected.symbol], slice)) {
      refuse_shape(shape, k, i, bound_before);
    }
  }
  if (to_broadcast.data != nullptr) {
    broadcast(shape, k, i, to_broadcast);
  }
}

void CheckedInputs::broadcast(const Shape& shape, size_t k, size_t i, Slice own) {
  Slice& like = bound_[notation_.broadcast];
  if (equal_sizes(like, own)) {
    return;
  }
  const size_t dim = std::max(like.size, own.size);
  std::vector<int64_t> result(dim);
  for (size_t d = 1; d <= dim; ++d) {  // from the last dimension
    const int64_t a = d <= like.size ? like.data[like.size - d] : 1;
    const int64_t b = d <= own.size ? own.data[own.size - d] : 1;
    if (a != b && a != 1 && b != 1) {
      refuse_broadcast(shape, k, i, own);
    }
    result[dim - d] = a == 1 ? b : a;
  }
  if (notation_.to_first) {
    if (!equal_sizes(like, {result.data(), result.size()})) {
      refuse_broadcast(shape, k, i, own);
    }
    return;
  }
  broadcast_ = std::move(result);
  like = {broadcast_.data(), broadcast_.size()};
}

void CheckedInputs::refuse_broadcast(const Shape& shape, size_t k, size_t i, Slice own) const {
  const Slice& like = bound_[notation_.broadcast];
  const IntArrayRef sizes = given_[k].tensors[i].sizes();
  const std::string must = ": " + label(k, i) + " must broadcast " + (notation_.to_first ? "to " : "with ");
  const std::string others = broadcast_before(k, i);
  if (shape.dims.size() == 1) {
    check(false, op(), must, others, " of shape ", IntArrayRef(like), ", got ", sizes);
  }
  check(
      false, op(), must, others, " in its dimensions ..., ", IntArrayRef(like), ", got ", IntArrayRef(own),
      " in shape ", sizes);
  throw std::logic_error("unreachable");
}

void CheckedInputs::refuse_shape(const Shape& shape, size_t k, size_t i, uint32_t bound) const {
  const Tensor& tensor = given_[k].tensors[i];
  const std::string name = label(k, i);
  const size_t single = shape.dims.size() - (shape.star < 0 ? 0 : 1);
  std::string spelled;
  bool something_known = shape.dims.empty();
  const auto add = [&](const std::string& part) { spelled += (spelled.empty() ? "" : ", ") + part; };
  size_t parts = 0;
  for (const Dim& d : shape.dims) {
    if (d.symbol == Dim::kLiteral) {
      add(std::to_string(d.size));
      something_known = true;
      ++parts;
    } else if (d.symbol >= 0 && d.symbol != notation_.broadcast && (bound >> d.symbol & 1) != 0) {
      for (size_t j = 0; j < bound_[d.symbol].size; ++j) {
        add(std::to_string(bound_[d.symbol].data[j]));
      }
      parts += bound_[d.symbol].size;
      something_known = true;
    } else if (d.symbol == Dim::kSum) {
      const bool known = std::all_of(
          d.terms.begin(), d.terms.end(), [&](const Term& term) { return (bound >> term.symbol & 1) != 0; });
      const std::optional<int64_t> value = known ? value_of(d) : std::nullopt;
      add(value.has_value() ? std::to_string(*value) : d.spelled);
      something_known = true;
      ++parts;
    } else {
      const bool star = shape.star >= 0 && &d == &shape.dims[shape.star];
      add(d.symbol == Dim::kAnything ? (star ? "*_" : "_") : notation_.symbols[d.symbol]);
      ++parts;
    }
  }
  spelled = "(" + spelled + (parts == 1 ? ",)" : ")");
  const size_t dim = tensor.sizes().size();
  if (!something_known && shape.star >= 0 && dim < single) {
    check_min_dim(op(), name.c_str(), tensor, static_cast<int64_t>(single));
  }
  check(
      something_known || shape.star >= 0 || dim == single, op(), ": ", name, " must have ", single, " dimension",
      single == 1 ? " " : "s ", spelled, ", got shape ", tensor.sizes());
  check(false, op(), ": ", name, " must have shape ", spelled, ", got ", tensor.sizes());
  throw std::logic_error("unreachable");
}

void CheckedInputs::check_memory() const {
  bool some = false;
  for (size_t k = 0; k < notation_.inputs.size(); ++k) {
    for (size_t i = 0; notation_.arguments[k].written && i < given_[k].count; ++i) {
      check_non_overlapping(op(), label(k, i).c_str(), given_[k].tensors[i]);
      some = true;
    }
  }
  if (!some) {
    return;
  }
  // In the order of memory, where what may overlap is side by side, however many there are.
  struct Place {
    std::pair<const char*, const char*> bytes;
    Which which;
  };
  std::vector<Place> places;
  for (size_t k = 0; k < notation_.inputs.size(); ++k) {
    for (size_t i = 0; i < given_[k].count; ++i) {
      places.push_back({bytes_of(given_[k].tensors[i]), {k, i}});
    }
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.bytes < b.bytes; });
  const auto is_written = [&](const Place& place) { return notation_.arguments[place.which.first].written; };
  std::vector<std::pair<Which, Which>> pairs;
  for (auto a = places.begin(); a != places.end(); ++a) {
    for (auto b = a + 1; b != places.end() && b->bytes.first < a->bytes.second; ++b) {
      const bool both = is_written(*a) && is_written(*b);
      if (is_written(*a) || is_written(*b)) {
        const bool a_first = both ? b->which < a->which : is_written(*a);
        pairs.emplace_back(a_first ? a->which : b->which, a_first ? b->which : a->which);
      }
    }
  }
  std::sort(pairs.begin(), pairs.end());  // the first by the schema is told
  for (const auto& [written, other] : pairs) {
    check_apart(written, other);
  }
}

void CheckedInputs::check_apart(Which written, Which other) const {
  const Tensor& to = tensor(written);
  const Tensor& from = tensor(other);
  if (!share_memory(to, from)) {
    return;
  }
  const std::string must = ": " + label(written.first, written.second) + " must ";
  const std::string name = label(other.first, other.second);
  check(!notation_.arguments[other.first].written, op(), must, "share no memory with ", name);
  check(
      to.const_data_ptr() == from.const_data_ptr() && dtype_of(to) == dtype_of(from) && same_layout(to, from), op(),
      must, "be ", name, " itself or share no memory with it, but overlaps it in part");
}

std::string CheckedInputs::label(size_t k, size_t i) const {
  const TensorArgument& argument = notation_.arguments[k];
  return argument.list ? argument.name + "[" + std::to_string(i) + "]" : argument.name;
}

std::string CheckedInputs::broadcast_before(size_t k, size_t i) const {
  std::string names;
  for (size_t j = 0; j <= k; ++j) {
    const Shape& shape = notation_.inputs[j];
    const size_t count = j < k ? given_[j].count : i;
    if (count == 0 || shape.star < 0 || shape.dims[shape.star].symbol != notation_.broadcast) {
      continue;
    }
    if (notation_.to_first) {
      return label(j, 0);
    }
    names += (names.empty() ? "" : " and ") + label(j, 0) + (count > 1 ? " to " + label(j, count - 1) : "");
  }
  return names;
}

void CheckedInputs::refuse_line(size_t tensors, size_t numbers) const {
  check(notation_.error.empty(), notation_.error);
  const auto counted = [&](size_t of_tensors, size_t of_numbers) {
    const bool has_numbers = numbers > 0 || !notation_.numbers.empty();
    return std::to_string(of_tensors) + " tensors" +
           (has_numbers ? " and " + std::to_string(of_numbers) + " numbers" : "");
  };
  check(
      false, op(), ": check() got ", counted(tensors, numbers), ", but the shapes are of ",
      counted(notation_.inputs.size(), notation_.numbers.size()));
  throw std::logic_error("unreachable");
}

void Operator::check_broadcasts(bool to_first) const {
  extension_cpp::check(
      to_first ? notation_.broadcasts_to_first : notation_.broadcasts, notation_.name,
      ": a formula takes tensors that broadcast to its ", to_first ? "first" : "result", ", which the shapes, ",
      shapes_ == nullptr ? "" : shapes_, ", do not say");
}

Operator::Operator(const char* schema, const char* shapes) : schema_(schema), shapes_(shapes), next_(all_) {
  if (shapes == nullptr) {
    notation_.name = operator_name(schema);
    notation_.error = notation_.name + ": there is no line of shapes to check by";
  } else {
    notation_ = parse_notation(schema, shapes);
  }
  all_ = this;
}

std::string Operator::describe_all() {
  std::string text;
  for (const Operator* op = all_; op != nullptr; op = op->next_) {
    if (op->shapes_ != nullptr) {
      text = std::string(op->schema_) + '\x1f' + op->shapes_ + '\x1f' + op->notation_.error + '\x1e' + text;
    }
  }
  return text;
}

}  // namespace extension_cpp

// Lets Python read the lines (extension_cpp/_loader.py).
extern "C" __attribute__((visibility("default"))) const char* extension_cpp_operators() {
  static const std::string text = extension_cpp::Operator::describe_all();
  return text.c_str();
}

#if EXTENSION_CPP_STABLE_ABI
// Returns what it was before (torch_abi.h).
extern "C" __attribute__((visibility("default"))) bool extension_cpp_fill_new_tensors(bool filled) {
  return std::exchange(extension_cpp::new_tensors_are_filled, filled);
}
#endif

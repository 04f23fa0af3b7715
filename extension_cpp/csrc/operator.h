// An operator: its schema, and one line that says the shapes of its tensors (notation.h). Kernels check their inputs
// and make their outputs by it; Python reads the same line from the library (extension_cpp/shapes.py) for fake kernels,
// batching rules and tests.
//
//   const Operator kFusedOp{"fused_op(Tensor input, Tensor bias, float scale=1.0) -> Tensor", "*rows n, n -> *rows n"};
//
//   const CheckedInputs inputs = kFusedOp.check(input, bias);
//   Tensor output = inputs.new_output();
//
// The line is read once, as the library is loaded. One that says nothing, or does not fit the schema, makes the import
// of the package fail; without Python, check() throws.
#pragma once

#include "checks.h"
#include "layout.h"
#include "notation.h"

#include <memory>
#include <utility>

namespace extension_cpp {

namespace detail {

constexpr std::array<ScalarType, kDtypeNames.size()> kDtypes = {
    ScalarType::Bool,  ScalarType::Byte,   ScalarType::Char,         ScalarType::Short,
    ScalarType::Int,   ScalarType::Long,   ScalarType::Half,         ScalarType::BFloat16,
    ScalarType::Float, ScalarType::Double, ScalarType::ComplexFloat, ScalarType::ComplexDouble};

inline bool is_half(ScalarType dtype) { return dtype == ScalarType::Half || dtype == ScalarType::BFloat16; }

inline bool is_floating(ScalarType dtype) {
  return dtype == ScalarType::Float || dtype == ScalarType::Double || is_half(dtype);
}

// The type of the arithmetic on elements of a type.
inline ScalarType sum_dtype(ScalarType dtype) {
  return dtype == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

// What came as one argument: a tensor, none where it is None, or those of a list.
struct Given {
  const Tensor* tensors;
  size_t count;
};

inline Given given(const Tensor& tensor) { return {&tensor, 1}; }
inline Given given(const std::optional<Tensor>& tensor) {
  return {tensor.has_value() ? &*tensor : nullptr, tensor ? 1u : 0u};
}
inline Given given(const TensorList& tensors) { return {tensors.data(), tensors.size()}; }

// A few elements, as a rule on the stack.
template <class T, size_t N>
class Few {
 public:
  explicit Few(size_t size) : size_(size) {
    if (size > N) {
      heap_.reset(new T[size]);
    }
  }

  T* data() { return heap_ ? heap_.get() : stack_; }
  const T* data() const { return heap_ ? heap_.get() : stack_; }
  size_t size() const { return size_; }

 private:
  size_t size_;
  T stack_[N];
  std::unique_ptr<T[]> heap_;
};

}  // namespace detail

// The sizes of an output.
class Sizes : public detail::Few<int64_t, 8> {
 public:
  using Few::Few;

  operator IntArrayRef() const { return {data(), size()}; }  // NOLINT(google-explicit-constructor)
  int64_t operator[](size_t d) const { return data()[d]; }
};

// The inputs of one call of an operator, which are as its line says. They must outlive it.
class CheckedInputs {
 public:
  CheckedInputs(const Notation& notation, const detail::Given* given, size_t count) : notation_(notation) {
    if (count != notation_.inputs.size() || !notation_.error.empty()) {
      refuse_line(count);
    }
    std::copy(given, given + count, given_);
    for (size_t k = 0; k < count; ++k) {
      check_dtypes(k);
    }
    check(first_ != nullptr, op(), ": at least one tensor must be given");
    for (size_t k = 0; k < count; ++k) {
      const Shape& shape = notation_.inputs[k];
      for (size_t i = 0; i < given_[k].count; ++i) {
        check_shape_of(shape, k, i);
      }
    }
  }

  CheckedInputs(const CheckedInputs&) = delete;
  CheckedInputs& operator=(const CheckedInputs&) = delete;

  Sizes sizes(size_t output = 0) const {
    const Shape& shape = notation_.outputs[output];
    if (is_absent(shape)) {
      Sizes none(1);
      none.data()[0] = 0;
      return none;
    }
    size_t dim = 0;
    for (const Dim& d : shape.dims) {
      dim += d.symbol == Dim::kLiteral ? 1 : bound_[d.symbol].size;
    }
    Sizes result(dim);
    int64_t* next = result.data();
    for (const Dim& d : shape.dims) {
      next = d.symbol == Dim::kLiteral ? std::copy_n(&d.size, 1, next)
                                       : std::copy_n(bound_[d.symbol].data, bound_[d.symbol].size, next);
    }
    return result;
  }

  ScalarType dtype(size_t output = 0) const {
    const Shape& shape = notation_.outputs[output];
    switch (shape.dtype) {
      case DtypeRule::kSum: return detail::sum_dtype(leader_dtype_);
      case DtypeRule::kExact: return detail::kDtypes[shape.dtype_index];
      case DtypeRule::kArgument:
        if (!is_absent(shape)) {
          return given_[shape.dtype_index].tensors->scalar_type();
        }
        return notation_.leader < 0 ? first_->scalar_type() : leader_dtype_;
      default: return leader_dtype_;
    }
  }

  // Uninitialised. Of an elementwise operator it keeps the layout of the inputs (see new_elementwise), of every other
  // it is contiguous.
  Tensor new_output(size_t output = 0) const {
    const Sizes shape = sizes(output);
    if (!notation_.elementwise || is_absent(notation_.outputs[output])) {
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
        elementwise_strides(static_cast<int64_t>(shape.size()), shape.data(), operands.data(), count);
    return empty_with_strides(*first_, shape, strides, other_dtype(output));
  }

 private:
  struct Slice {  // of the sizes of a tensor
    const int64_t* data;
    size_t size;

    operator IntArrayRef() const { return {data, size}; }  // NOLINT(google-explicit-constructor)
  };

  const char* op() const { return notation_.name.c_str(); }

  bool is_bound(int symbol) const { return symbol >= 0 && (is_bound_ >> symbol & 1) != 0; }

  // Whether an output goes with an optional tensor that is None.
  bool is_absent(const Shape& shape) const {
    return shape.dtype == DtypeRule::kArgument && given_[shape.dtype_index].count == 0;
  }

  // The dtype of an output, where it need not be that of the first tensor: to say it costs time.
  std::optional<ScalarType> other_dtype(size_t output) const {
    if (first_ == leader_ && notation_.outputs[output].dtype == DtypeRule::kLeader) {
      return std::nullopt;
    }
    return dtype(output);
  }

  // ----- dtypes and devices

  void check_dtypes(size_t k) {
    const Shape& shape = notation_.inputs[k];
    const detail::Given& given = given_[k];
    const bool leads = static_cast<int>(k) == notation_.leader;
    if (leads && given.count == 0) {
      check(false, op(), ": ", notation_.arguments[k].name, " must not be empty");
    }
    for (size_t i = 0; i < given.count; ++i) {
      const Tensor& tensor = given.tensors[i];
      if (!tensor.defined()) {
        refuse_dtype(k, i);
      }
      const ScalarType dtype = tensor.scalar_type();
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

  bool is_allowed(const Shape& shape, bool leads, ScalarType dtype) const {
    switch (shape.dtype) {
      case DtypeRule::kLeader: return leads ? detail::is_floating(dtype) : dtype == leader_dtype_;
      case DtypeRule::kSum: return dtype == detail::sum_dtype(leader_dtype_);
      case DtypeRule::kWide:
        return dtype == leader_dtype_ || (dtype == ScalarType::Float && detail::is_half(leader_dtype_));
      case DtypeRule::kExact: return dtype == detail::kDtypes[shape.dtype_index];
      case DtypeRule::kArgument: return dtype == given_[shape.dtype_index].tensors->scalar_type();
      case DtypeRule::kAny: return true;
    }
    return false;
  }

  [[noreturn]] EXTENSION_CPP_COLD void refuse_dtype(size_t k, size_t i) const {
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
      case DtypeRule::kSum: check_dtype(op(), name, tensor, detail::sum_dtype(leader_dtype_)); break;
      case DtypeRule::kWide: check_parameter_dtype(op(), name, tensor, leader.c_str(), *leader_); break;
      case DtypeRule::kExact: check_dtype(op(), name, tensor, detail::kDtypes[shape.dtype_index]); break;
      default:
        check_same_dtype(op(), name, tensor, label(shape.dtype_index, 0).c_str(), *given_[shape.dtype_index].tensors);
    }
    throw std::logic_error(named + ": a dtype that is refused passes its check");
  }

  // ----- shapes

  void check_shape_of(const Shape& shape, size_t k, size_t i) {
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
      if (expected.symbol == Dim::kLiteral) {
        if (*slice.data != expected.size) {
          refuse_shape(shape, k, i, bound_before);
        }
      } else if (!is_bound(expected.symbol)) {
        bound_[expected.symbol] = slice;
        is_bound_ |= 1u << expected.symbol;
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

  void broadcast(const Shape& shape, size_t k, size_t i, Slice own) {
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
    broadcast_ = std::move(result);
    like = {broadcast_.data(), broadcast_.size()};
  }

  [[noreturn]] EXTENSION_CPP_COLD void refuse_broadcast(const Shape& shape, size_t k, size_t i, Slice own) const {
    const Slice& like = bound_[notation_.broadcast];
    const IntArrayRef sizes = given_[k].tensors[i].sizes();
    const std::string others = broadcast_before(k, i);
    if (shape.dims.size() == 1) {
      check(
          false, op(), ": ", label(k, i), " must broadcast with ", others, " of shape ", IntArrayRef(like), ", got ",
          sizes);
    }
    check(
        false, op(), ": ", label(k, i), " must broadcast with ", others, " in its dimensions ..., ", IntArrayRef(like),
        ", got ", IntArrayRef(own), " in shape ", sizes);
    throw std::logic_error("unreachable");
  }

  // `bound`: what was known before this tensor.
  [[noreturn]] EXTENSION_CPP_COLD void refuse_shape(const Shape& shape, size_t k, size_t i, uint32_t bound) const {
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

  // ----- names

  std::string label(size_t k, size_t i) const {
    const TensorArgument& argument = notation_.arguments[k];
    return argument.list ? argument.name + "[" + std::to_string(i) + "]" : argument.name;
  }

  // The tensors with which tensor i of argument k broadcasts.
  std::string broadcast_before(size_t k, size_t i) const {
    std::string names;
    for (size_t j = 0; j <= k; ++j) {
      const Shape& shape = notation_.inputs[j];
      const size_t count = j < k ? given_[j].count : i;
      if (count == 0 || shape.star < 0 || shape.dims[shape.star].symbol != notation_.broadcast) {
        continue;
      }
      names += (names.empty() ? "" : " and ") + label(j, 0) + (count > 1 ? " to " + label(j, count - 1) : "");
    }
    return names;
  }

  [[noreturn]] EXTENSION_CPP_COLD void refuse_line(size_t count) const {
    check(notation_.error.empty(), notation_.error);
    check(false, op(), ": check() got ", count, " arguments, but the shapes are of ", notation_.inputs.size());
    throw std::logic_error("unreachable");
  }

  const Notation& notation_;
  const Tensor* first_ = nullptr;  // gives the device
  size_t first_argument_ = 0;
  const Tensor* leader_ = nullptr;  // gives the dtype
  ScalarType leader_dtype_ = ScalarType::Undefined;
  uint32_t is_bound_ = 0;     // a bit for each symbol
  Slice bound_[kMaxSymbols];  // what the symbols stand for
  detail::Given given_[kMaxTensors];
  std::vector<int64_t> broadcast_;  // where it is the shape of no tensor
};

class Operator {
 public:
  // Without shapes: an operator whose shapes depend on numbers. It checks its inputs itself.
  EXTENSION_CPP_COLD explicit Operator(const char* schema, const char* shapes = nullptr)
      : schema_(schema), shapes_(shapes), next_(all_) {
    if (shapes == nullptr) {
      notation_.name = detail::SchemaTensors(schema).name;
      notation_.error = notation_.name + ": there is no line of shapes to check by";
    } else {
      notation_ = parse_notation(schema, shapes);
    }
    all_ = this;
  }

  Operator(const Operator&) = delete;
  Operator& operator=(const Operator&) = delete;

  const char* name() const { return notation_.name.c_str(); }
  const char* schema() const { return schema_; }

  // Throws what is wrong with the tensors of a call: Tensor, std::optional<Tensor> or TensorList, in the order of the
  // schema. First the dtypes and devices of all of them, then their shapes.
  template <class... Tensors>
  CheckedInputs check(const Tensors&... tensors) const {
    const detail::Given given[] = {detail::given(tensors)...};
    return CheckedInputs(notation_, given, sizeof...(tensors));
  }

  // All operators of this library that have a line: schema, line and what is wrong with it, apart by \x1f, each ended
  // by \x1e. What Python asks for.
  EXTENSION_CPP_COLD static std::string describe_all() {
    std::string text;
    for (const Operator* op = all_; op != nullptr; op = op->next_) {
      if (op->shapes_ != nullptr) {
        text = std::string(op->schema_) + '\x1f' + op->shapes_ + '\x1f' + op->notation_.error + '\x1e' + text;
      }
    }
    return text;
  }

 private:
  // Of this library alone, whatever its flags say of visibility.
  __attribute__((visibility("hidden"))) static inline const Operator* all_ = nullptr;

  const char* schema_;
  const char* shapes_;
  const Operator* next_;
  Notation notation_;
};

}  // namespace extension_cpp

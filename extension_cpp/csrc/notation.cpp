#include "notation.h"

#include <cstdlib>

namespace extension_cpp {
namespace {

struct NotationError {
  size_t position;
  std::string text;
};

// Of numbers in a line: the sum of two is still one of C++.
constexpr int64_t kTooLarge = 1'000'000'000'000'000'000;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(' ');
  return first == text.npos ? "" : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

bool starts_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

// Splits at the commas that stand in no bracket and no quotes.
std::vector<std::string_view> split_arguments(std::string_view text) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  int depth = 0;
  char quote = '\0';
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (quote != '\0') {
      quote = c == quote ? '\0' : quote;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '(' || c == '[') {
      ++depth;
    } else if (c == ')' || c == ']') {
      --depth;
    } else if (c == ',' && (depth == 0 || i == text.size())) {
      const std::string_view part = trimmed(text.substr(begin, i - begin));
      if (!part.empty()) {
        parts.push_back(part);
      }
      begin = i + 1;
    }
  }
  return parts;
}

// What a schema says of tensors. Torch refuses one that does not parse; here nothing more is asked of it.
struct SchemaTensors {
  std::string name;
  std::vector<TensorArgument> arguments;
  std::vector<std::string> numbers;  // that can be sizes
  size_t results = 0;
  std::string problem;  // why no line of shapes can describe the operator

  explicit SchemaTensors(std::string_view schema) {
    const size_t open = std::min(schema.find('('), schema.size());
    name = std::string(trimmed(schema.substr(0, open)));
    const size_t arrow = std::min(schema.rfind("->"), schema.size());
    const size_t close = std::min(schema.rfind(')', arrow), schema.size());
    for (std::string_view argument : split_arguments(schema.substr(std::min(open + 1, close), close - open - 1))) {
      if (starts_with(argument, "Tensor")) {
        add_argument(argument);
      } else if (starts_with(argument, "int ") || starts_with(argument, "SymInt ")) {
        argument = trimmed(argument.substr(0, argument.find('=')));
        numbers.emplace_back(argument.substr(argument.rfind(' ') + 1));
      }
    }
    if (arguments.empty()) {
      problem = "the schema has no tensor among its arguments";
    } else if (std::all_of(arguments.begin(), arguments.end(), [](const auto& a) { return a.optional; })) {
      problem = "every tensor of the schema is optional";
    }
    std::string_view returned = trimmed(schema.substr(std::min(arrow + 2, schema.size())));
    if (!returned.empty() && returned.front() == '(' && returned.back() == ')') {
      returned = returned.substr(1, returned.size() - 2);
    }
    for (std::string_view result : split_arguments(returned)) {
      ++results;
      if (result.substr(0, result.find(' ')) != "Tensor") {
        problem = "the schema returns something else than new tensors";
      }
    }
  }

 private:
  void add_argument(std::string_view argument) {
    argument = trimmed(argument.substr(0, argument.find('=')));
    const size_t space = std::min(argument.rfind(' '), argument.size());
    const std::string_view type = argument.substr(0, space);
    TensorArgument added;
    added.name = std::string(argument.substr(std::min(space + 1, argument.size())));
    added.optional = type.back() == '?';
    added.list = type.find('[') != type.npos;
    added.written = type.find('!') != type.npos;
    if (added.list && type.find('?') != type.npos) {
      problem = "'" + added.name + "' is a list that may be or hold None";
    }
    arguments.push_back(added);
  }
};

class NotationParser {
 public:
  NotationParser(std::string_view line, const SchemaTensors& schema, Notation& result)
      : line_(line), schema_(schema), result_(result) {}

  void parse() {
    result_.inputs = shapes();
    const size_t arrow = at_;
    if (!accept("->")) {
      fail(at_, "'->' is missing");
    }
    of_results_ = true;
    result_.outputs = shapes();
    if (at_ < line_.size()) {
      fail(at_, "a second '->'");
    }
    if (!schema_.problem.empty()) {
      fail(0, schema_.problem + ": the operator goes without a line of shapes");
    }
    fit(result_.inputs, schema_.arguments.size(), "arguments", arrow);
    fit(result_.outputs, schema_.results, "results", line_.size());
    fit_dtypes();
    find_numbers();
    fit_sums();
    fit_names();
    const auto whole = [](const Shape& shape) { return shape.dims.size() == (shape.star < 0 ? 0 : 1); };
    result_.to_first =
        std::any_of(result_.outputs.begin(), result_.outputs.end(), [](const Shape& shape) { return shape.like >= 0; });
    result_.elementwise = std::all_of(result_.inputs.begin(), result_.inputs.end(), whole) &&
                          std::all_of(result_.outputs.begin(), result_.outputs.end(), whole);
    const auto all_broadcast = [this](const std::vector<Shape>& shapes, const Shape& to) {
      return std::all_of(shapes.begin(), shapes.end(), [&](const Shape& shape) { return broadcasts(shape, to); });
    };
    result_.broadcasts = !result_.outputs.empty() && all_broadcast(result_.inputs, result_.outputs[0]);
    result_.broadcasts_to_first = !result_.inputs.empty() && all_broadcast(result_.inputs, result_.inputs[0]) &&
                                  all_broadcast(result_.outputs, result_.inputs[0]);
  }

 private:
  const std::vector<Dim>& dims_of(const Shape& shape) const {
    return shape.like < 0 ? shape.dims : result_.inputs[shape.like].dims;
  }

  bool broadcasts(const Shape& from, const Shape& to) const {
    const std::vector<Dim>& own = dims_of(from);
    const std::vector<Dim>& wanted = dims_of(to);
    const auto fits = [](const Dim& a, const Dim& b) {
      return (a.symbol == Dim::kLiteral && a.size == 1) || a.symbol == Dim::kAnything || a == b;
    };
    return own.size() <= wanted.size() && std::equal(own.rbegin(), own.rend(), wanted.rbegin(), fits);
  }

  [[noreturn]] static void fail(size_t position, std::string text) { throw NotationError{position, std::move(text)}; }

  void skip_spaces() {
    while (at_ < line_.size() && line_[at_] == ' ') {
      ++at_;
    }
  }

  bool accept(std::string_view token) {
    if (!starts_with(line_.substr(at_), token)) {
      return false;
    }
    at_ += token.size();
    return true;
  }

  bool at_letter() const { return at_ < line_.size() && is_letter(line_[at_]); }
  bool at_digit() const { return at_ < line_.size() && is_digit(line_[at_]); }

  std::string word() {
    const size_t begin = at_;
    while (at_letter() || at_digit()) {
      ++at_;
    }
    return std::string(line_.substr(begin, at_ - begin));
  }

  // Up to "->" or the end of the line.
  std::vector<Shape> shapes() {
    std::vector<Shape> found;
    const auto at_end = [this] { return at_ == line_.size() || starts_with(line_.substr(at_), "->"); };
    skip_spaces();
    if (at_end()) {
      return found;
    }
    while (true) {
      found.push_back(shape());
      if (at_end()) {
        return found;
      }
      ++at_;  // the comma
    }
  }

  // Up to a comma, "->" or the end of the line.
  Shape shape() {
    Shape shape;
    skip_spaces();
    shape.position = at_;
    bool alone = false;  // no dimension may follow
    bool has_dtype = false;
    for (; at_ < line_.size() && line_[at_] != ',' && !starts_with(line_.substr(at_), "->"); skip_spaces()) {
      const size_t begin = at_;
      if (has_dtype) {
        fail(begin, "a dtype ends its shape");
      }
      if (accept(":")) {
        if (shape.dims.empty() && !alone) {
          break;
        }
        skip_spaces();
        dtype(shape);
        has_dtype = true;
        continue;
      }
      if (shape.most >= 0) {
        fail(begin, "nothing but a dtype follows '[n]'");
      }
      if ((alone || !shape.dims.empty()) && accept("[")) {
        shape.most = most();
        continue;
      }
      if (alone || ((line_[at_] == '(' || line_[at_] == '=') && !shape.dims.empty())) {
        fail(begin, "'()' and '=name' stand alone");
      }
      if (accept("()")) {
        alone = true;
      } else if (accept("=")) {
        shape.like = like();
        alone = true;
      } else {
        shape.dims.push_back(dim(shape));
      }
    }
    if (shape.dims.empty() && !alone) {
      fail(shape.position, "a shape is missing; that of a tensor without dimensions is '()'");
    }
    return shape;
  }

  // How many tensors a list holds at most.
  int64_t most() {
    if (!at_digit()) {
      fail(at_, "a number is missing after '['");
    }
    const int64_t result = digits();
    if (!accept("]")) {
      fail(at_, "']' is missing");
    }
    return result;
  }

  int64_t digits() {
    const size_t begin = at_;
    while (at_digit()) {
      ++at_;
    }
    if (at_ - begin > 18) {
      fail(begin, "the size is too large");
    }
    return std::stoll(std::string(line_.substr(begin, at_ - begin)));
  }

  // The argument of which a result has all dimensions.
  int like() {
    const size_t begin = at_;
    const std::string name = word();
    const auto argument = argument_of(name);
    if (!of_results_) {
      fail(begin, "'=name' is of results");
    }
    if (argument == schema_.arguments.end()) {
      fail(begin, "there is no tensor argument '" + name + "'");
    }
    if (argument->list) {
      fail(begin, "'" + name + "' is a list, which has no one shape");
    }
    return static_cast<int>(argument - schema_.arguments.begin());
  }

  std::vector<TensorArgument>::const_iterator argument_of(const std::string& name) const {
    return std::find_if(
        schema_.arguments.begin(), schema_.arguments.end(), [&](const TensorArgument& a) { return a.name == name; });
  }

  Dim dim(Shape& shape) {
    const size_t begin = at_;
    const bool dots = accept("...");
    if (!dots && !accept("*")) {
      return sum();
    }
    if (!dots && !at_letter()) {
      fail(at_, "a name is missing after '*'");
    }
    const std::string spelled = dots ? "..." : "*" + word();
    if (shape.star >= 0) {
      fail(begin, "a second '*' or '...' in one shape");
    }
    shape.star = static_cast<int>(shape.dims.size());
    if (spelled == "*_") {
      return {Dim::kAnything};
    }
    const int symbol = symbol_of(begin, spelled);
    if (dots) {
      result_.broadcast = symbol;
    }
    return {symbol};
  }

  // One size: a number, a name, or a sum.
  Dim sum() {
    const size_t begin = at_;
    Dim sum{Dim::kSum};
    for (int64_t sign = 1; sign != 0;) {
      add_term(sum, sign, begin);
      sign = accept("+") ? 1 : !starts_with(line_.substr(at_), "->") && accept("-") ? -1 : 0;
    }
    if (at_ < line_.size() && line_[at_] == '*') {
      fail(at_, "a space is missing before '*'; twice n is 2n");
    }
    auto& terms = sum.terms;
    terms.erase(std::remove_if(terms.begin(), terms.end(), [](const Term& t) { return t.times == 0; }), terms.end());
    if (terms.empty() && sum.size < 0) {
      fail(begin, "the size is negative");
    }
    if (terms.empty()) {
      return {Dim::kLiteral, sum.size};
    }
    if (terms.size() == 1 && terms[0].times == 1 && sum.size == 0) {
      return {terms[0].symbol};
    }
    if (std::any_of(terms.begin(), terms.end(), [](const Term& t) { return t.symbol == Dim::kAnything; })) {
      fail(begin, "'_' stands alone: it is in no sum");
    }
    sum.spelled = std::string(line_.substr(begin, at_ - begin));
    return sum;
  }

  void add_term(Dim& sum, int64_t sign, size_t begin_of_sum) {
    const size_t begin = at_;
    const bool has_number = at_digit();
    if (!has_number && !at_letter()) {
      fail(begin, begin == begin_of_sum ? "this has no meaning here" : "a size is missing after '+' or '-'");
    }
    const int64_t number = sign * (has_number ? digits() : 1);
    if (!at_letter()) {
      sum.size = added(begin, sum.size, number);
      return;
    }
    if (number == 0) {
      fail(begin, "a multiple is at least 1");
    }
    const size_t at_name = at_;
    const std::string name = word();
    const int symbol = name == "_" ? Dim::kAnything : symbol_of(at_name, name);
    for (Term& term : sum.terms) {
      if (term.symbol == symbol) {
        term.times = added(begin, term.times, number);
        return;
      }
    }
    sum.terms.push_back({number, symbol});
  }

  static int64_t added(size_t position, int64_t a, int64_t b) {
    if (std::abs(a + b) >= kTooLarge) {
      fail(position, "the size is too large");
    }
    return a + b;
  }

  // Which of the names.
  int symbol_of(size_t begin, const std::string& spelled) {
    const std::string other = spelled[0] == '*' ? spelled.substr(1) : "*" + spelled;
    auto& symbols = result_.symbols;
    if (std::find(symbols.begin(), symbols.end(), other) != symbols.end()) {
      fail(begin, "'" + spelled + "' is '" + other + "' elsewhere");
    }
    const auto known = std::find(symbols.begin(), symbols.end(), spelled);
    const auto symbol = static_cast<int>(known - symbols.begin());
    if (known == symbols.end()) {
      if (symbols.size() == kMaxSymbols) {
        fail(begin, "more than " + std::to_string(kMaxSymbols) + " names");
      }
      symbols.push_back(spelled);
    }
    return symbol;
  }

  void dtype(Shape& shape) {
    const size_t begin = at_;
    const std::string name = word();
    if (name.empty()) {
      fail(begin, "a dtype is missing after ':'");
    }
    const auto exact = std::find(kDtypeNames.begin(), kDtypeNames.end(), name);
    const auto argument = argument_of(name);
    if (name == "sum") {
      shape.dtype = DtypeRule::kSum;
    } else if (name == "wide") {
      shape.dtype = DtypeRule::kWide;
    } else if (name == "any") {
      shape.dtype = DtypeRule::kAny;
    } else if (exact != kDtypeNames.end()) {
      shape.dtype = DtypeRule::kExact;
      shape.dtype_index = static_cast<int>(exact - kDtypeNames.begin());
    } else if (argument != schema_.arguments.end()) {
      shape.dtype = DtypeRule::kArgument;
      shape.dtype_index = static_cast<int>(argument - schema_.arguments.begin());
    } else {
      fail(
          begin,
          "there is no dtype '" + name + "': sum, wide, any, a name of torch's such as int64, or a tensor argument");
    }
  }

  void fit(const std::vector<Shape>& shapes, size_t tensors, const char* what, size_t end) {
    if (shapes.size() != tensors) {
      fail(
          shapes.size() > tensors ? shapes[tensors].position : end,
          "the line has " + std::to_string(shapes.size()) + " shapes of " + what + ", the schema " +
              std::to_string(tensors) + " tensors among its " + what);
    }
    if (tensors > kMaxTensors) {
      fail(shapes[kMaxTensors].position, "more than " + std::to_string(kMaxTensors) + " tensors");
    }
  }

  // Of a tensor of the arithmetic, whether no tensor comes later that is one, and says of which.
  bool is_sum_alone(size_t k) const {
    const auto& shapes = result_.inputs;
    const auto leader =
        std::find_if(shapes.begin(), shapes.end(), [](const Shape& s) { return s.dtype == DtypeRule::kLeader; });
    const bool has_leader = leader != shapes.end() && !schema_.arguments[leader - shapes.begin()].list;
    return shapes[k].dtype == DtypeRule::kSum && !has_leader;
  }

  void fit_dtypes() {
    const auto& arguments = schema_.arguments;
    for (size_t k = 0; k < arguments.size(); ++k) {
      const Shape& shape = result_.inputs[k];
      const std::string quoted = "'" + arguments[k].name + "'";
      if (shape.dtype == DtypeRule::kLeader && result_.leader < 0) {
        if (arguments[k].optional) {
          fail(shape.position, "other dtypes follow from that of " + quoted + ", which is optional: say its own");
        }
        result_.leader = static_cast<int>(k);
      } else if (result_.leader < 0 && (shape.dtype == DtypeRule::kWide || is_sum_alone(k))) {
        fail(shape.position, "the dtype of " + quoted + " follows from a tensor without one, and none comes before it");
      } else if (shape.dtype == DtypeRule::kArgument) {
        const auto source = static_cast<size_t>(shape.dtype_index);
        const bool known = source < k || result_.inputs[source].dtype != DtypeRule::kArgument;
        if (!known || !arguments[source].always_given()) {
          fail(
              shape.position, "the dtype of " + quoted + " follows from that of '" + arguments[source].name +
                                  "', which has to be always there, and to come before it if it follows, too");
        }
      }
      if (shape.most >= 0 && !arguments[k].list) {
        fail(shape.position, quoted + " is no list");
      }
    }
    for (const Shape& shape : result_.outputs) {
      if (shape.most >= 0) {
        fail(shape.position, "a result is no list");
      }
      const bool follows =
          shape.dtype == DtypeRule::kLeader || shape.dtype == DtypeRule::kSum || shape.dtype == DtypeRule::kWide;
      if (shape.dtype == DtypeRule::kArgument && arguments[shape.dtype_index].list) {
        fail(shape.position, "'" + arguments[shape.dtype_index].name + "' is a list, which has no one dtype");
      }
      if (shape.dtype == DtypeRule::kAny || shape.dtype == DtypeRule::kWide) {
        fail(shape.position, "a result has one dtype, not any of several");
      }
      if (follows && result_.leader < 0) {
        fail(shape.position, "the dtype of a result follows from a tensor without one, and there is none");
      }
    }
  }

  // Those of the schema's numbers that are sizes.
  void find_numbers() {
    const auto& symbols = result_.symbols;
    for (const std::string& name : schema_.numbers) {
      if (const auto symbol = std::find(symbols.begin(), symbols.end(), name); symbol != symbols.end()) {
        result_.numbers.push_back(static_cast<int>(symbol - symbols.begin()));
      }
    }
  }

  bool is_number(int symbol) const {
    return std::find(result_.numbers.begin(), result_.numbers.end(), symbol) != result_.numbers.end();
  }

  bool is_there(size_t k) const { return schema_.arguments[k].always_given() || static_cast<int>(k) == result_.leader; }

  // Of a sum of an argument all names but one are known when that is checked, and the one follows.
  void fit_sums() {
    std::vector<int> known = result_.numbers;
    const auto is_open = [](const std::vector<int>& names, const Term& term) {
      return std::find(names.begin(), names.end(), term.symbol) == names.end();
    };
    for (size_t k = 0; k < result_.inputs.size(); ++k) {
      std::vector<int> names = known;
      for (const Dim& dim : result_.inputs[k].dims) {
        const auto open =
            std::count_if(dim.terms.begin(), dim.terms.end(), [&](const Term& term) { return is_open(names, term); });
        if (open > 1) {
          fail(
              result_.inputs[k].position,
              "'" + dim.spelled + "' leaves several names open, and one alone can follow from it: others have to be " +
                  "known from what comes before and is always there");
        }
        names.push_back(dim.symbol);
        std::for_each(dim.terms.begin(), dim.terms.end(), [&](const Term& term) { names.push_back(term.symbol); });
      }
      if (is_there(k)) {
        known = names;
      }
    }
  }

  // Every name of a result is known wherever there is that result.
  void fit_names() {
    for (const Shape& shape : result_.outputs) {
      for (const Dim& dim : shape.dims) {
        if (dim.symbol == Dim::kAnything) {
          fail(shape.position, "'_' says no size of a result");
        }
        result_.sums_in_results = result_.sums_in_results || dim.symbol == Dim::kSum;
        if (dim.symbol >= 0) {
          fit_name(shape, dim.symbol);
        }
        for (const Term& term : dim.terms) {
          fit_name(shape, term.symbol);
        }
      }
    }
  }

  void fit_name(const Shape& shape, int symbol) {
    bool named = is_number(symbol);
    bool known = named;
    for (size_t k = 0; k < result_.inputs.size(); ++k) {
      const auto& dims = result_.inputs[k].dims;
      if (std::any_of(dims.begin(), dims.end(), [&](const Dim& d) { return d.names(symbol); })) {
        named = true;
        known = known || is_there(k) ||
                (shape.dtype == DtypeRule::kArgument && static_cast<size_t>(shape.dtype_index) == k);
      }
    }
    const std::string quoted = "'" + result_.symbols[symbol] + "'";
    if (!named) {
      fail(shape.position, quoted + " is in no shape of an argument");
    }
    if (!known) {
      fail(shape.position, quoted + " is known only where an optional tensor or a list is given");
    }
  }

  std::string_view line_;
  const SchemaTensors& schema_;
  Notation& result_;
  size_t at_ = 0;
  bool of_results_ = false;
};

}  // namespace

std::string operator_name(std::string_view schema) { return SchemaTensors(schema).name; }

Notation parse_notation(std::string_view schema, std::string_view line) {
  Notation result;
  const SchemaTensors tensors(schema);
  result.name = tensors.name;
  result.arguments = tensors.arguments;
  try {
    NotationParser(line, tensors, result).parse();
  } catch (const NotationError& error) {
    result.error = result.name + ": " + error.text + "\n    " + std::string(line) + "\n    " +
                   std::string(error.position, ' ') + "^";
  }
  return result;
}

}  // namespace extension_cpp

// An operator: its schema, and one line that says the shapes of its tensors (notation.h). Kernels check their inputs
// and make their outputs by it; Python reads the same line from the library (extension_cpp/shapes.py) for fake kernels,
// batching rules and tests.
//
//   const Operator kFusedOp{"fused_op(Tensor input, Tensor bias, float scale=1.0) -> Tensor", "*rows n, n -> *rows n"};
//
//   const CheckedInputs inputs = kFusedOp.check(input, bias);
//   Tensor output = inputs.new_output();
//
// Where a number of the schema is a size in the line, it is among what check() takes:
//
//   const Operator kPadded{"padded(Tensor input, int count) -> Tensor", "*rows n -> *rows n+count"};
//
//   Tensor output = kPadded.check(input, count).new_output();
//
// The line is read once, as the library is loaded. One that says nothing, or does not fit the schema, makes the import
// of the package fail; without Python, check() throws.
#pragma once

#include "checks.h"
#include "few.h"
#include "layout.h"
#include "notation.h"

#include <utility>

namespace extension_cpp {

namespace detail {

// What came as one argument: a tensor, none where it is None, or those of a list; or a number.
struct Given {
  const Tensor* tensors;
  size_t count;
  int64_t number = 0;
  bool is_number = false;
};

inline Given given(const Tensor& tensor) { return {&tensor, 1}; }
inline Given given(const std::optional<Tensor>& tensor) {
  return {tensor.has_value() ? &*tensor : nullptr, tensor ? 1u : 0u};
}
inline Given given(const TensorList& tensors) { return {tensors.data(), tensors.size()}; }
inline Given given(int64_t number) { return {nullptr, 0, number, true}; }

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
  CheckedInputs(const Notation& notation, const detail::Given* given, size_t count);

  CheckedInputs(const CheckedInputs&) = delete;
  CheckedInputs& operator=(const CheckedInputs&) = delete;

  Sizes sizes(size_t output = 0) const;

  ScalarType dtype(size_t output = 0) const;

  // Whether there is one: not where it goes with an optional tensor that is None.
  bool has_output(size_t output) const { return !is_absent(notation_.outputs[output]); }

  // Uninitialised. Of an elementwise operator it keeps the layout of the inputs (see new_elementwise), of every other
  // it is contiguous, and so it is where it has the shape of an argument that broadcasts.
  Tensor new_output(size_t output = 0) const;

 private:
  struct Slice {  // of the sizes of a tensor
    const int64_t* data;
    size_t size;

    operator IntArrayRef() const { return {data, size}; }  // NOLINT(google-explicit-constructor)
  };

  const char* op() const { return notation_.name.c_str(); }

  bool is_bound(int symbol) const { return symbol >= 0 && (is_bound_ >> symbol & 1) != 0; }

  // Sorts what was given into tensors and numbers.
  void take(const detail::Given* given, size_t count);

  void bind(int symbol, Slice sizes);

  // A size that is no slice of a tensor's.
  void bind(int symbol, int64_t size);

  // Whether a sum is this size, of an argument; then the one name in it that was not known follows.
  bool fits(const Dim& sum, int64_t size);

  // None where it is no size that a tensor can have.
  std::optional<int64_t> value_of(const Dim& sum) const;

  void check_results() const;

  // Whether an output goes with an optional tensor that is None.
  bool is_absent(const Shape& shape) const;

  // All sizes of a shape without single dimensions, which is known.
  Slice whole(const Shape& shape) const;

  // The dtype of an output, where it need not be that of the first tensor: to say it costs time.
  std::optional<ScalarType> other_dtype(size_t output) const;

  // ----- dtypes and devices

  void check_dtypes(size_t k);
  void look_ahead_for_leader();

  bool is_allowed(const Shape& shape, bool leads, ScalarType dtype) const;

  [[noreturn]] void refuse_dtype(size_t k, size_t i) const;

  // ----- shapes

  void check_shape_of(const Shape& shape, size_t k, size_t i);

  void broadcast(const Shape& shape, size_t k, size_t i, Slice own);

  [[noreturn]] void refuse_broadcast(const Shape& shape, size_t k, size_t i, Slice own) const;

  // `bound`: what was known before this tensor.
  [[noreturn]] void refuse_shape(const Shape& shape, size_t k, size_t i, uint32_t bound) const;

  // ----- memory

  // Tensor i of argument k.
  using Which = std::pair<size_t, size_t>;

  const Tensor& tensor(Which which) const { return given_[which.first].tensors[which.second]; }

  // Of what is written to.
  void check_memory() const;

  void check_apart(Which written, Which other) const;

  // ----- names

  std::string label(size_t k, size_t i) const;

  // The tensors with which tensor i of argument k broadcasts, or that to which it does.
  std::string broadcast_before(size_t k, size_t i) const;

  [[noreturn]] void refuse_line(size_t tensors, size_t numbers) const;

  const Notation& notation_;
  const Tensor* first_ = nullptr;  // gives the device
  size_t first_argument_ = 0;
  const Tensor* leader_ = nullptr;  // gives the dtype
  ScalarType leader_dtype_ = ScalarType::Undefined;
  uint32_t is_bound_ = 0;     // a bit for each symbol
  Slice bound_[kMaxSymbols];  // what the symbols stand for
  int64_t own_[kMaxSymbols];  // of those that are numbers, or follow from sums
  detail::Given given_[kMaxTensors];
  std::vector<int64_t> broadcast_;  // where it is the shape of no tensor
};

class Operator {
 public:
  // Without shapes: an operator whose shapes depend on numbers. It checks its inputs itself.
  explicit Operator(const char* schema, const char* shapes = nullptr);

  Operator(const Operator&) = delete;
  Operator& operator=(const Operator&) = delete;

  const char* name() const { return notation_.name.c_str(); }
  const char* schema() const { return schema_; }

  // Throws where, by the line of shapes, tensors need not broadcast as loops over elements have it: inputs to the first
  // result, or all to the first input.
  void check_broadcasts(bool to_first = false) const;

  // Throws what is wrong with the tensors of a call: Tensor, std::optional<Tensor> or TensorList, in the order of the
  // schema, and the numbers that are sizes. First the dtypes and devices of all of them, then their shapes, then
  // whether what is written to overlaps itself, or another argument without being just that. (Fake tensors have no
  // memory: the last is known here alone.)
  template <class... Arguments>
  CheckedInputs check(const Arguments&... arguments) const {
    const detail::Given given[] = {detail::given(arguments)...};
    return CheckedInputs(notation_, given, sizeof...(arguments));
  }

  // All operators of this library that have a line: schema, line and what is wrong with it, apart by \x1f, each ended
  // by \x1e. What Python asks for.
  static std::string describe_all();

 private:
  // Of this library alone, whatever its flags say of visibility.
  __attribute__((visibility("hidden"))) static inline const Operator* all_ = nullptr;

  const char* schema_;
  const char* shapes_;
  const Operator* next_;
  Notation notation_;
};

}  // namespace extension_cpp

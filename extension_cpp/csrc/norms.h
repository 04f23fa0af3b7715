// Norms of rows, for both backends: each row is normalised by its own statistics, then scaled and perhaps moved by
// columns. With a residual that is added first: the sum is written, rounded as the rows are, and what is normalised is
// what was written.
//
// A norm is a type of what normalises a row (layer_norm.h has the whole of this one):
//
//   template <class A>
//   struct LayerNorm {
//     static constexpr int kSaved = 2;       // numbers of a row that the backward is given
//     static constexpr int kParts = 3;       // numbers that a segment of a row leaves for the statistics of the row
//     static constexpr int kParameters = 2;  // weight, or weight and bias
//
//     static LayerNorm of(Row& row, A each, A eps);  // `each` is 1 / cols
//     static Values<A, kParts> parts_of(Row& row);   // of a segment
//     static LayerNorm of_parts(Row& row, const SegmentSizes<A>& sizes, A eps);  // of kParts inputs
//     Values<A, kSaved> saved() const;
//     A normalize(A x) const;
//
//     struct Grad {  // the gradients of a row
//       static constexpr int kSums = 2;  // over the row
//
//       static Grad of(const Values<A, kSaved>& saved);             // enough for what needs no sums
//       Grad with(const Values<A, kSums>& sums, A each) const;      // the whole
//       Values<A, kSums> terms(A grad, A x, A w) const;             // what is summed over the row; needs no sums
//       Values<A, kParameters> parameter_grads(A grad, A x) const;  // what is summed over the rows; needs no sums
//       A grad_input(A grad, A x, A w) const;
//     };
//   };
#pragma once

#include "arguments.h"
#include "columns.h"
#include "operator.h"
#include "rows.h"

namespace extension_cpp {

// Of no elements it is 0.
template <class A>
HOST_DEVICE A average(A sum, int64_t count) {
  return sum / static_cast<A>(count > 0 ? count : 1);
}

// The number of elements of each segment, for row.sum.
template <class A>
struct SegmentSizes {
  backend::Split split;
  int64_t cols;

  template <int N>
  HOST_DEVICE Values<A, N> at(int64_t segment) const {
    Values<A, N> sizes;
    for (int k = 0; k < N; ++k) {
      const int64_t rest = cols - (segment + k) * split.segment_cols;
      sizes[k] = static_cast<A>(rest < split.segment_cols ? rest : split.segment_cols);
    }
    return sizes;
  }
};

namespace detail {

// One number of each row, or segment, in each of several places.
template <class A, int N>
struct Places {
  A* places[N];

  static Places of(A* first, int64_t size) {
    Places result;
    for (int k = 0; k < N; ++k) {
      result.places[k] = first + k * size;
    }
    return result;
  }

  HOST_DEVICE Values<std::remove_const_t<A>, N> at(int64_t i) const {
    Values<std::remove_const_t<A>, N> values;
    for (int k = 0; k < N; ++k) {
      values[k] = places[k][i];
    }
    return values;
  }

  HOST_DEVICE void put(int64_t i, const Values<A, N>& values) const {
    for (int k = 0; k < N; ++k) {
      places[k][i] = values[k];
    }
  }

  std::array<const A*, N> inputs() const {
    std::array<const A*, N> result;
    std::copy_n(places, N, result.begin());
    return result;
  }
};

template <class T, size_t K>
std::array<const T*, K> pointers(const std::array<Tensor, K>& tensors) {
  std::array<const T*, K> result;
  std::transform(tensors.begin(), tensors.end(), result.begin(), [](const Tensor& tensor) {
    return tensor.template const_data_ptr<T>();
  });
  return result;
}

// ----- Forward

struct Added {
  template <class A>
  HOST_DEVICE A operator()(A x, A residual) const {
    return x + residual;
  }
};

// The sum of a row's two inputs, which is written, as a column operand. Where passes read from memory it is yet to be
// written.
template <class T, class Row>
HOST_DEVICE auto kept_sum(Row& row, T* sum) {
  if constexpr (Row::kRereads) {
    return row.written(sum);
  } else {
    return row.write_and_keep(sum, Added());
  }
}

// A row of two inputs as one of their sum. Where passes read from memory, the first of them writes it, and the others
// read one tensor.
template <class T, class Row>
class SummedRow {
 public:
  using A = acc_t<T>;

  HOST_DEVICE SummedRow(Row& row, T* sum) : row_(row), sum_(sum), kept_(kept_sum(row, sum)) {}

  HOST_DEVICE int64_t index() const { return row_.index(); }
  HOST_DEVICE int64_t segment_index() const { return row_.segment_index(); }
  HOST_DEVICE int64_t cols() const { return row_.cols(); }
  HOST_DEVICE bool leader() const { return row_.leader(); }
  HOST_DEVICE bool any(bool is) const { return row_.any(is); }
  HOST_DEVICE A first() const { return static_cast<A>(static_cast<T>(row_.first(0) + row_.first(1))); }

  template <class F>
  HOST_DEVICE auto sum(const F& f) {
    if constexpr (Row::kRereads) {
      if (!written_) {
        written_ = true;
        return row_.write_and_sum_written(sum_, Added(), f);
      }
    }
    return row_.sum([&](A, A, A sum) { return f(sum); }, kept_);
  }

  // After a sum.
  template <class F, class... Columns>
  HOST_DEVICE void write(T* output, const F& f, const Columns&... columns) {
    row_.write(output, [&](A, A, A sum, auto... values) { return f(sum, values...); }, kept_, columns...);
  }

 private:
  Row& row_;
  T* sum_;
  bool written_ = false;
  decltype(kept_sum(std::declval<Row&>(), std::declval<T*>())) kept_;
};

// f(row) of the sum of two inputs, which is written.
template <class T, class F>
struct OfSum {
  F f;
  T* __restrict__ sum;  // [rows, cols]

  HOST_DEVICE auto row_columns() const { return detail::row_columns(f); }

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    SummedRow<T, Row> summed(row, sum);
    f(summed);
  }
};

// Where a norm's results go.
template <class T, class Norm>
struct Scaled {
  using A = acc_t<T>;

  backend::Parameter<T> weight;  // [cols]
  backend::Parameter<T> bias;    // [cols], of a norm that has one
  T* __restrict__ output;        // [rows, cols]

  HOST_DEVICE RowColumns<backend::Parameter<T>, Norm::kParameters> row_columns() const {
    if constexpr (Norm::kParameters == 2) {
      return {{&weight, &bias}};
    } else {
      return {{&weight}};
    }
  }

  template <class Row>
  HOST_DEVICE void write(Row& row, const Norm& norm) const {
    if constexpr (Norm::kParameters == 2) {
      row.write(output, [=](A x, A w, A b) { return norm.normalize(x) * w + b; }, weight, bias);
    } else {
      row.write(output, [=](A x, A w) { return norm.normalize(x) * w; }, weight);
    }
  }
};

template <class T, class Norm>
struct Normalize {
  using A = acc_t<T>;

  Scaled<T, Norm> scaled;
  Places<A, Norm::kSaved> saved;  // [rows]
  A eps;
  A each;  // 1 / cols

  HOST_DEVICE auto row_columns() const { return scaled.row_columns(); }

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const Norm norm = Norm::of(row, each, eps);
    if (row.leader()) {
      saved.put(row.index(), norm.saved());
    }
    scaled.write(row, norm);
  }
};

// Few long rows: the parts of segments, then the norms of rows, then the output.
template <class A, class Norm>
struct SegmentParts {
  Places<A, Norm::kParts> parts;  // [rows, segments]

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const Values<A, Norm::kParts> values = Norm::parts_of(row);
    if (row.leader()) {
      parts.put(row.segment_index(), values);
    }
  }
};

template <class A, class Norm>
struct CombineParts {
  static constexpr bool kWritesRows = false;

  SegmentSizes<A> sizes;
  Norm* __restrict__ norms;       // [rows]
  Places<A, Norm::kSaved> saved;  // [rows]
  A eps;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const Norm norm = Norm::of_parts(row, sizes, eps);
    if (row.leader()) {
      norms[row.index()] = norm;
      saved.put(row.index(), norm.saved());
    }
  }
};

// The first of these steps, or the last, when the norms are known. One functor for both, so that there are fewer
// kernels to compile.
template <class T, class Norm>
struct NormalizeSegments {
  Scaled<T, Norm> scaled;
  SegmentParts<acc_t<T>, Norm> parts;
  const Norm* known;  // [rows], or null

  HOST_DEVICE Norm row_values(int64_t row) const { return known != nullptr ? known[row] : Norm{}; }

  template <class Row>
  HOST_DEVICE void operator()(Row& row, const Norm& norm) const {
    if (known != nullptr) {
      scaled.write(row, norm);
    } else {
      parts(row);
    }
  }
};

// outputs: what is normalised; of two inputs their sum; what is saved.
template <class T, class Norm, size_t K>
void normalize(
    const std::array<Tensor, K>& inputs, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
    double eps, std::array<Tensor, K + Norm::kSaved>& outputs) {
  using A = acc_t<T>;
  const Tensor& like = inputs[0];
  const int64_t rows = outputs[K].numel();
  const int64_t cols = like.size(like.dim() - 1);
  const std::array<const T*, K> x = pointers<T>(inputs);
  T* const sum = outputs[K - 1].template mutable_data_ptr<T>();  // of two inputs
  Places<A, Norm::kSaved> saved;
  for (int k = 0; k < Norm::kSaved; ++k) {
    saved.places[k] = outputs[K + k].template mutable_data_ptr<A>();
  }
  const int64_t given = parameter_cols(rows, cols);
  const Scaled<T, Norm> scaled{
      backend::Parameter<T>(weight, A(1), given), backend::Parameter<T>(bias, A(0), Norm::kParameters == 2 ? given : 0),
      outputs[0].template mutable_data_ptr<T>()};
  const auto of_inputs = [&](const auto& f) {
    if constexpr (K == 2) {
      return OfSum<T, std::decay_t<decltype(f)>>{f, sum};
    } else {
      return f;
    }
  };
  const backend::Split split = backend::split_few_rows(rows, cols);
  if (split.segments == 1) {
    const Normalize<T, Norm> f{scaled, saved, static_cast<A>(eps), average(A(1), cols)};
    backend::launch_rows(like, of_inputs(f), x, rows, cols);
    return;
  }
  constexpr int64_t kSize = sizeof(Norm) / sizeof(A);
  const int64_t segments = rows * split.segments;
  Tensor buffer = new_empty(like, {kSize * rows + Norm::kParts * segments}, outputs[K].scalar_type());
  auto* const norms = reinterpret_cast<Norm*>(buffer.mutable_data_ptr<A>());
  const auto parts = Places<A, Norm::kParts>::of(buffer.mutable_data_ptr<A>() + kSize * rows, segments);
  NormalizeSegments<T, Norm> f{scaled, {parts}, nullptr};
  std::array<const T*, 1> normalized{x[0]};
  if constexpr (K == 2) {
    normalized = {sum};
    backend::launch_segments(like, of_inputs(f.parts), x, rows, cols, split);
  } else {
    backend::launch_segments(like, f, x, rows, cols, split);
  }
  backend::launch_rows(
      like, CombineParts<A, Norm>{{split, cols}, norms, saved, static_cast<A>(eps)}, parts.inputs(), rows,
      split.segments);
  f.known = norms;
  backend::launch_segments(like, f, normalized, rows, cols, split, true);
}

// ----- Backward, where Carried is A for the gradient of the sum, which is added to that of the input, or nothing

// Which gradients are computed: those of the parameters, too, or that of the input alone.
enum class Wanted { kAll, kInput };

template <class T, class Norm, Wanted kWanted, class... Carried>
struct WriteGrad {
  using A = acc_t<T>;
  using Grad = typename Norm::Grad;

  backend::Parameter<T> weight;  // [cols]
  T* __restrict__ grad_input;    // [rows, cols]

  template <class Row>
  HOST_DEVICE void operator()(Row& row, const Grad& r) const {
    const auto of_element = [=](A grad, A x, Carried... carried, A w) {
      const A of_input = (r.grad_input(grad, x, w) + ... + carried);
      if constexpr (kWanted == Wanted::kAll) {
        return WithSums<A, 1, Norm::kParameters>{{of_input}, r.parameter_grads(grad, x)};
      } else {
        return of_input;
      }
    };
    row.write(grad_input, of_element, weight);
  }
};

template <class T, class Norm, Wanted kWanted, class... Carried>
struct NormBackward {
  using A = acc_t<T>;

  Places<const A, Norm::kSaved> saved;  // [rows]
  WriteGrad<T, Norm, kWanted, Carried...> write;
  A each;  // 1 / cols

  HOST_DEVICE Values<A, Norm::kSaved> row_values(int64_t row) const { return saved.at(row); }
  HOST_DEVICE RowColumns<backend::Parameter<T>, 1> row_columns() const { return {{&write.weight}}; }

  template <class Row>
  HOST_DEVICE void operator()(Row& row, const Values<A, Norm::kSaved>& values) const {
    const auto known = Norm::Grad::of(values);
    const auto sums = row.sum([=](A grad, A x, Carried..., A w) { return known.terms(grad, x, w); }, write.weight);
    write(row, known.with(sums, each));
  }
};

// Long rows: the sums of segments, then the gradients of rows, then the rest by columns.
template <class T, class Norm>
struct SegmentSums {
  using A = acc_t<T>;
  using Grad = typename Norm::Grad;

  Places<const A, Norm::kSaved> saved;  // [rows]
  backend::Parameter<T> weight;         // [cols]
  Places<A, Grad::kSums> sums;          // [rows, segments]

  HOST_DEVICE Grad row_values(int64_t row) const { return Grad::of(saved.at(row)); }

  template <class Row>
  HOST_DEVICE void operator()(Row& row, const Grad& r) const {
    const auto values = row.sum([=](A grad, A x, A w) { return r.terms(grad, x, w); }, weight);
    if (row.leader()) {
      sums.put(row.segment_index(), values);
    }
  }
};

template <class A, class Norm>
struct CombineSums {
  using Grad = typename Norm::Grad;
  static constexpr bool kWritesRows = false;

  Places<const A, Norm::kSaved> saved;  // [rows]
  Grad* __restrict__ grads;             // [rows]
  A each;                               // 1 / cols

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const auto sums = row.sum([](auto... sums) { return Values<A, Grad::kSums>{sums...}; });
    if (row.leader()) {
      grads[row.index()] = Grad::of(saved.at(row.index())).with(sums, each);
    }
  }
};

template <class T, class Norm, class... Carried>
struct WriteKnownGrads {
  const typename Norm::Grad* __restrict__ grads;  // [rows]
  WriteGrad<T, Norm, Wanted::kAll, Carried...> write;

  HOST_DEVICE typename Norm::Grad row_values(int64_t row) const { return grads[row]; }
  HOST_DEVICE RowColumns<backend::Parameter<T>, 1> row_columns() const { return {{&write.weight}}; }

  template <class Row>
  HOST_DEVICE void operator()(Row& row, const typename Norm::Grad& grad) const {
    write(row, grad);
  }
};

// inputs: the gradient of what was normalised; what was normalised; the gradients of the sum.
template <class T, class Norm, class... Carried>
void norm_backward(
    const std::array<Tensor, 2 + sizeof...(Carried)>& inputs, const std::array<Tensor, Norm::kSaved>& saved,
    const std::optional<Tensor>& weight, Tensor& grad_input,
    const std::array<SumOutput<T>, Norm::kParameters>& parameter_grads) {
  using A = acc_t<T>;
  using Grad = typename Norm::Grad;
  const Tensor& like = inputs[0];
  const int64_t rows = saved[0].numel();
  const int64_t cols = like.size(like.dim() - 1);
  const auto from = pointers<T>(inputs);
  Places<const A, Norm::kSaved> known;
  for (int k = 0; k < Norm::kSaved; ++k) {
    known.places[k] = saved[k].template const_data_ptr<A>();
  }
  const backend::Parameter<T> w(weight, A(1), parameter_cols(rows, cols));
  T* const to = grad_input.mutable_data_ptr<T>();
  const A each = average(A(1), cols);
  const bool constant =
      std::none_of(parameter_grads.begin(), parameter_grads.end(), [](const auto& sums) { return sums.is_wanted(); });
  if (constant) {
    const NormBackward<T, Norm, Wanted::kInput, Carried...> f{known, {w, to}, each};
    if (backend::launch_kept_rows(like, f, from, rows, cols)) {
      return;
    }
  }
  const WriteGrad<T, Norm, Wanted::kAll, Carried...> write{w, to};
  const NormBackward<T, Norm, Wanted::kAll, Carried...> f{known, write, each};
  if (backend::launch_rows_and_column_sums(like, f, from, rows, cols, parameter_grads)) {
    return;
  }
  const backend::Split split = backend::Split::even(cols, 2);
  constexpr int64_t kSize = sizeof(Grad) / sizeof(A);
  const int64_t segments = rows * split.segments;
  Tensor buffer = new_empty(like, {kSize * rows + Grad::kSums * segments}, saved[0].scalar_type());
  auto* const grads = reinterpret_cast<Grad*>(buffer.mutable_data_ptr<A>());
  const auto sums = Places<A, Grad::kSums>::of(buffer.mutable_data_ptr<A>() + kSize * rows, segments);
  backend::launch_segments(
      like, SegmentSums<T, Norm>{known, w, sums}, std::array<const T*, 2>{from[0], from[1]}, rows, cols, split);
  backend::launch_rows(like, CombineSums<A, Norm>{known, grads, each}, sums.inputs(), rows, split.segments);
  backend::launch_column_sums(
      like, WriteKnownGrads<T, Norm, Carried...>{grads, write}, from, 1, rows, cols, parameter_grads);
}

template <class T, class /*Input*/>
using Each = acc_t<T>;

// `sums`: where the gradients of parameters go; null where one is not wanted.
template <template <class> class N, class... GradSum>
void dispatch_backward(
    const std::array<Tensor, N<float>::kSaved>& saved, const std::optional<Tensor>& weight, Tensor& grad_input,
    const std::array<Tensor*, N<float>::kParameters>& sums, const Tensor& grad_output, const Tensor& normalized,
    const GradSum&... grad_sum) {
  const DeviceGuard guard(normalized);
  const std::array inputs{as_contiguous(grad_output), as_contiguous(normalized), as_contiguous(grad_sum)...};
  const auto contiguous = make_tensors<N<float>::kSaved>([&](size_t k) { return as_contiguous(saved[k]); });
  dispatch_floating(normalized.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    std::array<SumOutput<T>, N<float>::kParameters> parameter_grads;
    for (size_t k = 0; k < sums.size(); ++k) {
      parameter_grads[k] = sums[k] != nullptr ? SumOutput<T>::of(*sums[k]) : SumOutput<T>();
    }
    norm_backward<T, N<acc_t<T>>, Each<T, GradSum>...>(
        inputs, contiguous, as_parameter(weight), grad_input, parameter_grads);
  });
}

}  // namespace detail

// The outputs of a norm N of one input, or of the sum of two: what is normalised, the sum, what is saved.
template <template <class> class N, class... Residual>
auto norm(
    const CheckedInputs& checked, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, double eps,
    const Tensor& input, const Residual&... residual) {
  const DeviceGuard guard(input);
  const std::array inputs{as_contiguous(input), as_contiguous(residual)...};
  auto outputs =
      detail::make_tensors<inputs.size() + N<float>::kSaved>([&](size_t k) { return checked.new_output(k); });
  dispatch_floating(input.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    detail::normalize<T, N<acc_t<T>>>(inputs, as_parameter(weight), as_parameter(bias), eps, outputs);
  });
  return detail::as_result(outputs);
}

// The gradients of its input, weight and, if it has one, bias: of the parameters that are there. `normalized` is the
// input, or the sum, of which a gradient may be given.
template <template <class> class N, class... GradSum>
auto norm_backward(
    const CheckedInputs& checked, const std::array<Tensor, N<float>::kSaved>& saved,
    const std::array<std::optional<Tensor>, N<float>::kParameters>& parameters, const Tensor& grad_output,
    const Tensor& normalized, const GradSum&... grad_sum) {
  auto outputs = detail::make_tensors<1 + N<float>::kParameters>([&](size_t k) { return checked.new_output(k); });
  std::array<Tensor*, N<float>::kParameters> sums;
  for (size_t k = 0; k < parameters.size(); ++k) {
    sums[k] = parameters[k].has_value() ? &outputs[1 + k] : nullptr;
  }
  detail::dispatch_backward<N>(saved, parameters[0], outputs[0], sums, grad_output, normalized, grad_sum...);
  return detail::as_result(outputs);
}

// The gradient of its input alone, where its parameters are constants.
template <template <class> class N, class... GradSum>
Tensor norm_input_backward(
    const CheckedInputs& checked, const std::array<Tensor, N<float>::kSaved>& saved,
    const std::optional<Tensor>& weight, const Tensor& grad_output, const Tensor& normalized,
    const GradSum&... grad_sum) {
  Tensor grad_input = checked.new_output(0);
  detail::dispatch_backward<N>(saved, weight, grad_input, {}, grad_output, normalized, grad_sum...);
  return grad_input;
}

}  // namespace extension_cpp

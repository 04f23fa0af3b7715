// The cross entropy of softmax(logits) and one class for each row, without the softmax in memory.
#include "rows.h"

#include <limits>

namespace extension_cpp::softmax_cross_entropy {

const Operator kSoftmaxCrossEntropy{
    "softmax_cross_entropy(Tensor logits, Tensor target, int ignore_index=-100) -> (Tensor, Tensor)",
    "*rows n, *rows:int64 -> *rows, *rows:sum"};
const Operator kSoftmaxCrossEntropyBackward{
    "softmax_cross_entropy_backward(Tensor grad_loss, Tensor logits, Tensor target, Tensor logsumexp, "
    "int ignore_index=-100) -> Tensor",
    "*rows, *rows n, *rows:int64, *rows:sum -> *rows n"};

// The classes of the rows.
struct Target {
  enum class Kind { kClass, kIgnored, kOutOfRange };

  const int64_t* __restrict__ classes;  // [rows]
  int64_t ignore_index;
  int64_t cols;

  HOST_DEVICE Kind kind_of(int64_t index) const {
    const bool exists = 0 <= index && index < cols;
    return index == ignore_index ? Kind::kIgnored : exists ? Kind::kClass : Kind::kOutOfRange;
  }

  // On the CPU, which has the values at hand. On CUDA to know them is to wait for the device: there the loss and the
  // gradient of a row are NaN whose class does not exist.
  void check_range([[maybe_unused]] const char* op, [[maybe_unused]] int64_t rows) const {
#ifndef __CUDACC__
    for (int64_t row = 0; row < rows; ++row) {
      check(
          kind_of(classes[row]) != Kind::kOutOfRange, op, ": target must be ignore_index, ", ignore_index,
          ", or in [0, ", cols, "), got ", classes[row]);
    }
#endif
  }
};

// e^(x - largest) of the elements of a row, or of a segment, as the terms of a sum. Where all are -inf, which leave
// nothing to a row, the difference would be NaN.
template <class T>
class Terms {
 public:
  using A = acc_t<T>;

  HOST_DEVICE explicit Terms(A largest)
      : origin_(largest == -std::numeric_limits<A>::infinity() ? A(0) : largest),
        scale_(std::fabs(origin_) < A(1 << 20) ? A(1.4426950408889634) : A(1)),
        offset_(scale_ * origin_) {}

  HOST_DEVICE CPU_INLINE A operator()(A x) const {
#ifdef __CUDA_ARCH__
    if constexpr (kByPowersOfTwo) {
      return power_of_two(std::fma(x, scale_, -offset_));
    }
#endif
    return math::exp(x - origin_);
  }

  // From the sum of what the above gives.
  HOST_DEVICE A sum(A terms) const {
#ifdef __CUDA_ARCH__
    if constexpr (kByPowersOfTwo) {
      return terms * power_of_two(-std::fma(origin_, scale_, -offset_));
    }
#endif
    return terms;
  }

 private:
  // The device has 13 instructions for an element of two bytes before they, not its memory, are what it waits for, and
  // expf takes 8. As 2^(scale x - offset) a term takes 2, and is right to 22 bits; how the offset was rounded is a
  // factor of the sum. Half types so large that this could be much lie so far apart that a power of any base is 0.
  static constexpr bool kByPowersOfTwo = sizeof(T) == 2;

#ifdef __CUDA_ARCH__
  __device__ static float power_of_two(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
  }
#endif

  A origin_;
  A scale_;
  A offset_;
};

template <class T>
struct RowResults {
  using A = acc_t<T>;

  const T* __restrict__ logits;  // [rows, cols]
  Target target;
  T* __restrict__ loss;       // [rows]
  A* __restrict__ logsumexp;  // [rows]

  // `sum` is that of exp(logit - largest), and `index` the row's class. The loss takes no part of logsumexp, which of
  // large logits has few digits.
  HOST_DEVICE void write(int64_t row, int64_t index, A largest, A sum) const {
    const A log_sum = math::log(sum);
    A result = A(0);
    switch (target.kind_of(index)) {
      case Target::Kind::kIgnored: break;
      case Target::Kind::kOutOfRange: result = std::numeric_limits<A>::quiet_NaN(); break;
      case Target::Kind::kClass: result = log_sum + (largest - static_cast<A>(logits[row * target.cols + index]));
    }
    loss[row] = static_cast<T>(result);
    logsumexp[row] = largest + log_sum;
  }
};

// Of rows, or of their segments for CombineSegments.
template <class T>
struct SoftmaxCrossEntropy {
  using A = acc_t<T>;
  static constexpr bool kWritesRows = false;

  RowResults<T> results;
  A* __restrict__ largest;  // [rows, segments], or null
  A* __restrict__ sums;     // [rows, segments], or null

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const auto own_class = [&] { return results.target.classes[row.index()]; };
    // Of a row that is soon done it is asked for first. (Of others there are no registers for it.)
    const int64_t asked_first = Row::kInWarp && row.leader() ? own_class() : 0;
    const A max = row.max();
    const Terms<T> terms(max);
    const A sum = terms.sum(row.sum(terms));
    if (!row.leader()) {
      return;
    }
    if (largest == nullptr) {
      results.write(row.index(), Row::kInWarp ? asked_first : own_class(), max, sum);
    } else {
      largest[row.segment_index()] = max;
      sums[row.segment_index()] = sum;
    }
  }
};

template <class T>
struct CombineSegments {
  using A = acc_t<T>;
  static constexpr bool kWritesRows = false;

  RowResults<T> results;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A max = row.max([](A largest, A /*sum*/) { return largest; });
    const Terms<A> terms(max);
    const A sum = row.sum([=](A largest, A sum) { return sum * terms(largest); });
    if (row.leader()) {
      results.write(row.index(), results.target.classes[row.index()], max, sum);
    }
  }
};

// 1 in the column of the row's class, for row.write.
template <class A>
struct OneHot {
  int64_t index;

  template <int N>
  HOST_DEVICE Values<A, N> at(int64_t col) const {
    if constexpr (N == 1) {  // one comparison: the CPU's loop over columns becomes one over vectors
      return {{col == index ? A(1) : A(0)}};
    } else {
      const int place = col <= index && index < col + N ? static_cast<int>(index - col) : N;
      Values<A, N> result;
      for (int k = 0; k < N; ++k) {
        result[k] = k == place ? A(1) : A(0);
      }
      return result;
    }
  }
};

// (softmax(logits) - one_hot(target)) * grad_loss
template <class T>
struct SoftmaxCrossEntropyBackward {
  using A = acc_t<T>;

  // What belongs to a row.
  struct Known {
    A grad;
    A logsumexp;
    int64_t index;
    bool ignored;
  };

  const T* __restrict__ grad_loss;  // [rows]
  Target target;
  const A* __restrict__ logsumexp;  // [rows]
  T* __restrict__ grad_logits;      // [rows, cols]

  HOST_DEVICE Known row_values(int64_t row) const {
    const int64_t index = target.classes[row];
    const auto kind = target.kind_of(index);
    const A grad = kind == Target::Kind::kOutOfRange ? std::numeric_limits<A>::quiet_NaN() : A(grad_loss[row]);
    return {grad, logsumexp[row], index, kind == Target::Kind::kIgnored};
  }

  template <class Row>
  HOST_DEVICE void operator()(Row& row, const Known& known) const {
    const auto gradient = [=](A x, A is_class) {
      const A result = (math::exp(x - known.logsumexp) - is_class) * known.grad;
      return known.ignored ? A(0) : result;  // whatever its logits are
    };
    row.write(grad_logits, gradient, OneHot<A>{known.index});
  }
};

std::tuple<Tensor, Tensor> softmax_cross_entropy(const Tensor& logits, const Tensor& target, int64_t ignore_index) {
  const CheckedInputs inputs = kSoftmaxCrossEntropy.check(logits, target);
  const DeviceGuard guard(logits);
  const int64_t rows = target.numel();
  const int64_t cols = logits.size(logits.dim() - 1);
  const Tensor contiguous = as_contiguous(logits);
  const Tensor contiguous_target = as_contiguous(target);
  const Target classes{contiguous_target.const_data_ptr<int64_t>(), ignore_index, cols};
  classes.check_range(kSoftmaxCrossEntropy.name(), rows);
  Tensor loss = inputs.new_output(0);
  Tensor logsumexp = inputs.new_output(1);
  dispatch_floating(logits.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    // Segments however many rows there are: a long row that a block keeps whole leaves room for few others beside it,
    // and one that it cannot keep would be read twice. Not too short ones, each of which takes two reductions.
    const auto split = backend::Split::of(cols, (1 << 15) / sizeof(T));
    using A = acc_t<T>;
    const std::array x{contiguous.const_data_ptr<T>()};
    const RowResults<T> results{x[0], classes, loss.mutable_data_ptr<T>(), logsumexp.mutable_data_ptr<A>()};
    if (split.segments == 1) {
      launch_rows(logits, SoftmaxCrossEntropy<T>{results, nullptr, nullptr}, x, rows, cols, split);
      return;
    }
    Tensor buffer = new_empty(logits, {2, rows, split.segments}, logsumexp.scalar_type());
    A* const largest = buffer.mutable_data_ptr<A>();
    A* const sums = largest + rows * split.segments;
    launch_rows(logits, SoftmaxCrossEntropy<T>{results, largest, sums}, x, rows, cols, split);
    backend::launch_rows(
        logits, CombineSegments<T>{results}, std::array<const A*, 2>{largest, sums}, rows, split.segments);
  });
  return {loss, logsumexp};
}

Tensor softmax_cross_entropy_backward(
    const Tensor& grad_loss, const Tensor& logits, const Tensor& target, const Tensor& logsumexp,
    int64_t ignore_index) {
  const CheckedInputs inputs = kSoftmaxCrossEntropyBackward.check(grad_loss, logits, target, logsumexp);
  const DeviceGuard guard(logits);
  const int64_t rows = target.numel();
  const int64_t cols = logits.size(logits.dim() - 1);
  const Tensor contiguous_target = as_contiguous(target);
  const Target classes{contiguous_target.const_data_ptr<int64_t>(), ignore_index, cols};
  classes.check_range(kSoftmaxCrossEntropyBackward.name(), rows);
  Tensor grad_logits = inputs.new_output(0);
  dispatch_floating(logits.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Tensor x = as_contiguous(logits);
    const Tensor grad = as_contiguous(grad_loss);
    const Tensor known = as_contiguous(logsumexp);
    const SoftmaxCrossEntropyBackward<T> f{
        grad.const_data_ptr<T>(), classes, known.const_data_ptr<acc_t<T>>(), grad_logits.mutable_data_ptr<T>()};
    launch_rows(logits, f, std::array{x.const_data_ptr<T>()}, rows, cols, backend::Split::even(cols));
  });
  return grad_logits;
}

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(kSoftmaxCrossEntropy.schema());
  m.def(kSoftmaxCrossEntropyBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("softmax_cross_entropy", TORCH_BOX(&softmax_cross_entropy));
  m.impl("softmax_cross_entropy_backward", TORCH_BOX(&softmax_cross_entropy_backward));
}

}  // namespace extension_cpp::softmax_cross_entropy

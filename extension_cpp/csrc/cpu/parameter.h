// Parameters of a row loop, one value for each column.
#pragma once

#include "dispatch.h"
#include "torch_abi.h"
#include "values.h"

#include <memory>
#include <optional>
#include <vector>

namespace extension_cpp::cpu {

// An optional parameter with one value per column, which may be wider than the inputs. Held in the type of the
// arithmetic: converted once, not in every row.
template <class T>
class Parameter {
 public:
  using A = acc_t<T>;

  // `parameter` is contiguous.
  Parameter(const std::optional<Tensor>& parameter, A otherwise, int64_t cols) {
    if (!parameter.has_value()) {
      own(std::vector<A>(cols, otherwise));
    } else if (parameter->element_size() == sizeof(A)) {
      tensor_ = parameter;
      data_ = parameter->template const_data_ptr<A>();
    } else {
      const T* const data = parameter->template const_data_ptr<T>();
      own(std::vector<A>(data, data + cols));
    }
  }

  // Of N neighbouring columns.
  template <int N>
  Values<A, N> at(int64_t col) const {
    Values<A, N> result;
    for (int k = 0; k < N; ++k) {
      result[k] = data_[col + k];
    }
    return result;
  }

 private:
  void own(std::vector<A> values) {
    values_ = std::make_shared<const std::vector<A>>(std::move(values));
    data_ = values_->data();
  }

  std::optional<Tensor> tensor_;
  std::shared_ptr<const std::vector<A>> values_;
  const A* data_;
};

// use(values...) of N neighbouring columns of several parameters.
template <class Result, int N, class Use, class... Parameters>
Result with_values_at(int64_t col, const Use& use, const Parameters&... parameters) {
  return use(parameters.template at<N>(col)...);
}

}  // namespace extension_cpp::cpu

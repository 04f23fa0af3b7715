#include "vector_add.h"

#include "cpu/clones.h"
#include "dispatch.h"
#include "layout.h"

namespace extension_cpp::vector_add {

template <class T>
void vector_add_kernel(
    const T* a,  // [numel]
    const T* b,  // [numel]
    T* output,   // [numel]
    int64_t numel) {
  using A = acc_t<T>;
  parallel_for(0, numel, cpu::kGrain, [=](int64_t begin, int64_t end) CPU_CLONES {
    CPU_INDEPENDENT_LOOP
    for (int64_t i = begin; i < end; ++i) {
      output[i] = static_cast<T>(static_cast<A>(a[i]) + static_cast<A>(b[i]));
    }
  });
}

Tensor vector_add_cpu(const Tensor& a, const Tensor& b) {
  const CheckedInputs inputs = kVectorAdd.check(a, b);
  Tensor output = inputs.new_output();
  // The kernel walks through memory: element i of all three must be the same element.
  const Tensor x = with_layout_of(output, a);
  const Tensor y = with_layout_of(output, b);
  dispatch_floating(output.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    vector_add_kernel<T>(x.const_data_ptr<T>(), y.const_data_ptr<T>(), output.mutable_data_ptr<T>(), output.numel());
  });
  return output;
}

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) { m.def(kVectorAdd.schema()); }

TORCH_LIBRARY_IMPL(extension_cpp, CPU, m) { m.impl("vector_add", TORCH_BOX(&vector_add_cpu)); }

}  // namespace extension_cpp::vector_add

// What fused_op is, for both backends.
#pragma once

#include "operator.h"

namespace extension_cpp {

inline const Operator kFusedOp{
    "fused_op(Tensor input, Tensor bias, float scale=1.0) -> Tensor", "*rows n, n -> *rows n"};
inline const Operator kFusedOpBackward{
    "fused_op_backward(Tensor grad_output, Tensor output, float scale=1.0) -> (Tensor, Tensor)",
    "*rows n, *rows n -> *rows n, n"};

}  // namespace extension_cpp

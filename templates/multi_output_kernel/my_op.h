// EDIT: my_op, in one line: what both backends share.
#pragma once

#include "operator.h"

namespace extension_cpp::my_op {

// EDIT: the shapes; csrc/notation.h explains the lines. `:sum` is the type of the arithmetic.
inline const Operator kMyOp{
    "my_op(Tensor input, Tensor other, float alpha=1.0) -> (Tensor, Tensor)", "*rows n, *rows n -> *rows n, *rows:sum"};
inline const Operator kMyOpBackward{
    "my_op_backward(Tensor grad_output, Tensor input, Tensor mean, float alpha) -> Tensor",
    "*rows n, *rows n, *rows:sum -> *rows n"};

}  // namespace extension_cpp::my_op

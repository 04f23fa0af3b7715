// EDIT: my_op, in one line: what both backends share.
#pragma once

#include "operator.h"

namespace extension_cpp::my_op {

// EDIT: the shapes; csrc/notation.h explains the lines.
inline const Operator kMyOp{
    "my_op(Tensor input, Tensor other, float alpha=1.0) -> Tensor", "*rows n, *rows n -> *rows n"};
inline const Operator kMyOpBackward{"my_op_backward(Tensor grad_output, float alpha) -> Tensor", "*rows n -> *rows n"};

}  // namespace extension_cpp::my_op

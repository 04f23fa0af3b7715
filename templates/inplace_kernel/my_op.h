// EDIT: my_op, in one line: what both backends share.
#pragma once

#include "operator.h"

namespace extension_cpp::my_op {

// EDIT: the shapes; csrc/notation.h explains the line.
inline const Operator kMyOp{"my_op(Tensor(a!) input, Tensor other, float alpha=1.0) -> ()", "*rows n, *rows n ->"};

}  // namespace extension_cpp::my_op

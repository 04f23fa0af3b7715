// What square is and computes, for both backends.
#pragma once

#include "operator.h"

namespace extension_cpp {

inline const Operator kSquare{"square(Tensor input) -> Tensor", "*shape -> *shape"};
inline const Operator kSquareBackward{
    "square_backward(Tensor grad_output, Tensor input) -> Tensor", "*shape, *shape -> *shape"};

template <class A>
struct Square {
  HOST_DEVICE A operator()(A input) const { return input * input; }
};

template <class A>
struct SquareBackward {
  HOST_DEVICE A operator()(A grad_output, A input) const { return A(2) * input * grad_output; }
};

}  // namespace extension_cpp

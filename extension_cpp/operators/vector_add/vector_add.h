// What both backends share.
#pragma once

#include "operator.h"

namespace extension_cpp::vector_add {

inline const Operator kVectorAdd{"vector_add(Tensor a, Tensor b) -> Tensor", "..., ... -> ..."};

}  // namespace extension_cpp::vector_add

// backend::for_each_index, for both backends: what is small beside the pass over memory that it prepares.
#pragma once

#include "backend.h"

#ifdef __CUDACC__
#include "cuda/each.cuh"
#else
#include "cpu/each.h"
#endif

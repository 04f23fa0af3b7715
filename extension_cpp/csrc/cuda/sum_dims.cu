// What sum_dims.h declares, for CUDA.
#include "../sum_dims.cpp"

// The formulas of mixed.h on the CPU.
#include "mixed.h"

#include "cpu/elementwise.cpp"
#include "notation.cpp"
#include "operator.cpp"

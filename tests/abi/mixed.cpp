// The formulas of mixed.h on the CPU.
#include "mixed.h"

#include "cpu/columns.cpp"
#include "cpu/convert.cpp"
#include "cpu/elements.cpp"
#include "cpu/elementwise.cpp"
#include "cpu/partials.cpp"
#include "notation.cpp"
#include "operator.cpp"
#include "sum_dims.cpp"

// The functors of mixed_rows.h on the CPU.
#include "mixed_rows.h"

#include "cpu/columns.cpp"
#include "cpu/convert.cpp"
#include "cpu/elements.cpp"
#include "cpu/partials.cpp"
#include "notation.cpp"
#include "operator.cpp"

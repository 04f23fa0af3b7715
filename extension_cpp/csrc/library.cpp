#include "torch_abi.h"

TORCH_LIBRARY(extension_cpp, m) {
  // The namespace alone. Schemas stand beside an operator's kernels in operators/*/, where a line that says the shapes
  // goes with them (operator.h), but could stand here, too; tests/test_schemas.py shows all of them as one list.
}

from extension_cpp.operators.vector_add.ops import vector_add
from extension_cpp.testing import OpSpec

spec = OpSpec(
    name="vector_add", function=vector_add, reference=lambda a, b: a + b, autocast="promote"
)

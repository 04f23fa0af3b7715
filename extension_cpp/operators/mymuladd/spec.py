from extension_cpp.operators.mymuladd.ops import mymuladd
from extension_cpp.testing import OpSpec

spec = OpSpec(
    name="mymuladd", function=mymuladd, reference=lambda a, b, c: a * b + c, autocast="promote"
)

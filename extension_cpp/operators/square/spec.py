from extension_cpp.operators.square.ops import square
from extension_cpp.testing import OpSpec

spec = OpSpec(name="square", function=square, reference=lambda input: input * input)

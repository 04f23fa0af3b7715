from extension_cpp.operators.mymul.ops import mymul
from extension_cpp.testing import OpSpec

spec = OpSpec(name="mymul", function=mymul, reference=lambda a, b: a * b, autocast="promote")

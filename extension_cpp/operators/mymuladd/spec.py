from extension_cpp.testing import OpSpec

spec = OpSpec(name="mymuladd", reference=lambda a, b, c: a * b + c, autocast="promote")

from extension_cpp.testing import OpSpec

spec = OpSpec(name="mymul", reference=lambda a, b: a * b, autocast="promote")

from extension_cpp.testing import OpSpec

spec = OpSpec(name="vector_add", reference=lambda a, b: a + b, autocast="promote")

from extension_cpp.testing import OpSpec

spec = OpSpec(name="square", reference=lambda input: input * input)

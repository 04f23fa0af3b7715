from extension_cpp.testing import OpSpec


# EDIT: the definition, in plain PyTorch.
def reference(input, other, alpha=1.0):
    return input * input * (1 + alpha) + other


spec = OpSpec(name="my_op", reference=reference, autocast="promote")

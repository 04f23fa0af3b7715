from extension_cpp.testing import DEFAULT_SHAPES, OpSpec


# EDIT: the definition, in plain PyTorch.
def reference(input, other, alpha=1.0):
    return (input * input * (1 + alpha) + other).cumsum(-1)


spec = OpSpec(
    name="my_op",
    reference=reference,
    autocast="promote",
    # EDIT: a running sum takes over the rounding of all steps before; not where the state decays.
    shapes=tuple(shape for shape in DEFAULT_SHAPES if shape[-1] < 5000),
)

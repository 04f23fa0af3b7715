from extension_cpp.testing import OpSpec


# EDIT: the definition, in plain PyTorch: of the operator, and of the public function.
def op_reference(input, other, alpha=1.0):
    mean = input.mean(-1, keepdim=True)
    centered = input - mean
    output = centered * centered * (1 + alpha) + other
    mean = mean.squeeze(-1)
    return output, mean


def reference(input, other, alpha=1.0):
    return op_reference(input, other, alpha)[0]


spec = OpSpec(name="my_op", reference=reference, op_reference=op_reference)

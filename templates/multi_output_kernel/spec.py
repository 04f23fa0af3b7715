from extension_cpp.testing import OpSpec


# EDIT: the definition, in plain PyTorch. The public function returns the first result.
def op_reference(input, other, alpha=1.0):
    mean = input.mean(-1, keepdim=True)
    centered = input - mean
    output = centered * centered * (1 + alpha) + other
    mean = mean.squeeze(-1)
    return output, mean


spec = OpSpec(name="my_op", op_reference=op_reference, autocast="promote")

import torch

from extension_cpp.operators.fused_op.spec import samples


def cases(make, shape):
    if len(shape) != 2:
        return
    sample = next(iter(samples(make, shape)))
    move_off_the_kink(*sample.args, **sample.kwargs)
    yield "", sample


@torch.no_grad()
def move_off_the_kink(input, bias, scale):
    """Adds 1 where rounding says on which side of relu's kink an element is.

    It does so once here, and twice in a composition of two operations before relu: of bfloat16 one
    gradient in three thousand would be another's.
    """
    product = input * scale
    doubt = 4 * torch.finfo(input.dtype).eps * (product.abs() + bias.abs())
    input.add_(((product + bias).abs() <= doubt).to(input.dtype))


def classic(kernel):
    """A hand-written autograd.Function around the same kernels: what host time is compared with."""
    fused_op, fused_op_backward = kernel("fused_op"), kernel("fused_op_backward")

    class FusedOp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, input, bias, scale):
            output = fused_op(input, bias, scale)
            ctx.scale = scale
            ctx.save_for_backward(output)
            return output

        @staticmethod
        def backward(ctx, grad_output):
            (output,) = ctx.saved_tensors
            return *fused_op_backward(grad_output, output, ctx.scale), None

    return FusedOp.apply

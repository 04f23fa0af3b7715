import torch


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

import torch


def classic(kernel):
    """A hand-written autograd.Function around the same kernels: what host time is compared with."""
    relu, relu_backward = kernel("relu"), kernel("relu_backward")

    class Relu(torch.autograd.Function):
        @staticmethod
        def forward(ctx, input):
            output = relu(input)
            ctx.save_for_backward(output)
            return output

        @staticmethod
        def backward(ctx, grad_output):
            (output,) = ctx.saved_tensors
            return relu_backward(grad_output, output)

    return Relu.apply

import torch


def liger():
    """Liger's kernels, of which the backward writes the gradients over the inputs.

    Here it writes over copies, made by a forward that records the graph: in the time of both
    passes together, not of the backward. Both read memory as if tensors were contiguous and of
    one shape, whether they are or not: copies of what is not are in their time, too.
    """
    from liger_kernel.ops.swiglu import swiglu_backward, swiglu_forward

    class SwiGLU(torch.autograd.Function):
        @staticmethod
        def forward(ctx, gate, up):
            ctx.copies = gate.clone(), up.clone()
            return swiglu_forward(gate, up)[2]

        @staticmethod
        def backward(ctx, grad_output):
            return swiglu_backward(*ctx.copies, grad_output.contiguous())

    def swiglu(gate, up):
        gate, up = (t.contiguous() for t in torch.broadcast_tensors(gate, up))
        if torch.is_grad_enabled():
            return SwiGLU.apply(gate, up)
        return swiglu_forward(gate, up)[2]

    return swiglu


others = {"liger": liger}

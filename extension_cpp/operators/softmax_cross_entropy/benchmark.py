import torch


def liger():
    """Liger's kernel, which computes the gradient with the loss, and writes it over the logits.

    Here it writes over a copy, which is in its time: the logits serve the other contenders, too.
    Its public function waits for the device.
    """
    from liger_kernel.ops.backends._triton.cross_entropy import cross_entropy_loss_and_grad_triton

    def loss_of(logits, target, ignore_index, with_gradients):
        loss, *_ = cross_entropy_loss_and_grad_triton(
            logits,
            target,
            None,
            ignore_index,
            *(0.0, 0.0, "none", None, target.numel(), 0.0, 0.0),
            *(False, False, False, with_gradients),
        )
        return loss.to(logits.dtype)

    class CrossEntropy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits, target, ignore_index):
            grads = logits.clone()
            loss = loss_of(grads, target, ignore_index, True)
            ctx.save_for_backward(grads)
            return loss

        @staticmethod
        def backward(ctx, grad_loss):
            (grads,) = ctx.saved_tensors
            return grads * grad_loss.unsqueeze(-1), None, None

    def cross_entropy(logits, target, ignore_index=-100):
        if torch.is_grad_enabled():
            return CrossEntropy.apply(logits, target, ignore_index)
        return loss_of(logits, target, ignore_index, False)

    return cross_entropy


def quack():
    from quack.cross_entropy import cross_entropy, cross_entropy_fwd

    def loss_of(logits, target, ignore_index=-100):
        if torch.is_grad_enabled():
            loss = cross_entropy(logits, target, ignore_index=ignore_index, reduction="none")
        else:
            loss = cross_entropy_fwd(logits, target, ignore_index=ignore_index, return_lse=False)
        return loss.to(logits.dtype)

    return loss_of


others = {"liger": liger, "quack": quack}

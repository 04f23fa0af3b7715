"""Operators broken in one place each: the check that must catch it, and words of what it says."""

import dataclasses
import os

import torch

from extension_cpp import registration
from extension_cpp.checks import check_floating, check_min_dim
from extension_cpp.layout import is_non_overlapping
from extension_cpp.shapes import Operator
from extension_cpp.testing import Traffic
from mutants.sound import (
    AddEach,
    Centre,
    FusedOp,
    Pick,
    Round,
    Scale,
    ScaleInPlace,
    arithmetic,
    fresh,
)


class WrongStrideInFake(FusedOp):
    caught_by = "check_strides"
    says = "kernel and fake kernel disagree on the strides of output 0"

    def fused_op_fake(self, input, bias, scale=1.0):
        self.check(input, bias)
        return torch.empty_like(input)


class WrongStrideUnderInductor(WrongStrideInFake):
    """The same: inductor relies on it."""

    caught_by = "check_inductor"
    says = "compiled with inductor"


class NeitherStrideRule(FusedOp):
    """Kernel and fake agree, on a layout that follows no rule: the last dimension is outermost."""

    caught_by = "check_strides"
    says = "follow neither rule"

    def fused_op_kernel(self, input, bias, scale=1.0):
        output = super().fused_op_kernel(input, bias, scale)
        return output.mT.contiguous().mT if output.dim() > 1 else output

    def fused_op_fake(self, input, bias, scale=1.0):
        output = super().fused_op_fake(input, bias, scale)
        return output.mT.contiguous().mT if output.dim() > 1 else output


class WrongDtypeInFake(FusedOp):
    caught_by = "check_strides"
    says = "disagree on the dtype"

    def fused_op_fake(self, input, bias, scale=1.0):
        return super().fused_op_fake(input, bias, scale).float()

    dtypes = (torch.float32, torch.bfloat16)


class FakeNeedsData(FusedOp):
    caught_by = "check_compile"
    says = "fused_op"

    def fused_op_fake(self, input, bias, scale=1.0):
        return input.new_empty(input.shape) if bias.sum().item() else input


class FakeSpecialises(FusedOp):
    """Reads a size as a number: one graph per size."""

    caught_by = "check_dynamic"
    says = "another size"

    def fused_op_fake(self, input, bias, scale=1.0):
        self.check(input, bias)
        return input.new_empty([int(size) for size in input.shape])


class OtherDefaultInFake(FusedOp):
    caught_by = "check_signature"
    says = "scale defaults to 2.0 in the fake kernel"

    def fused_op_fake(self, input, bias, scale=2.0):
        return super().fused_op_fake(input, bias, scale)


class OtherNamesInFake(FusedOp):
    caught_by = "check_signature"
    says = "the schema ['input', 'bias', 'scale']"

    def fused_op_fake(self, input, offset, scale=1.0):
        return super().fused_op_fake(input, offset, scale)


class NoDefaultInFake(FusedOp):
    caught_by = "check_signature"
    says = "does not take what the schema says"

    def fused_op_fake(self, input, bias, scale):
        return super().fused_op_fake(input, bias, scale)


class OtherDefaultInPublicFunction(FusedOp):
    caught_by = "check_signature"
    says = "scale defaults to 2.0 in the public function"

    def function(self, input, bias, scale=2.0):
        return super().function(input, bias, scale)


def by_exponentials(values):
    """The values, by a way on which those beyond 88 overflow in float32."""
    large = torch.exp(values)
    return torch.where(values.isfinite(), values * large / large, values)


class Overflows(FusedOp):
    caught_by = "check_forward"
    says = "of large numbers a result is none"

    def fused_op_kernel(self, input, bias, scale=1.0):
        output = super().fused_op_kernel(input, bias, scale)
        return fresh(input, by_exponentials(output.to(arithmetic(input.dtype))))


class GivesIntegers(FusedOp):
    caught_by = "check_forward"
    says = "int32"

    def fused_op_kernel(self, input, bias, scale=1.0):
        return super().fused_op_kernel(input, bias, scale).to(torch.int32)


class GradientOverflows(FusedOp):
    caught_by = "check_backward"
    says = "of large numbers a result is none"

    def fused_op_backward_kernel(self, grad_output, output, scale=1.0):
        grad_input, grad_bias = super().fused_op_backward_kernel(grad_output, output, scale)
        large = output.to(arithmetic(output.dtype)).exp()
        return fresh(output, grad_input * large / large), grad_bias


class WrongMask(FusedOp):
    """relu with a gradient where the output is zero."""

    caught_by = "check_backward"
    says = "the gradient of input"

    def mask(self, output):
        return output < 0


class ScaledGradient(FusedOp):
    """Off by a tenth of a percent."""

    caught_by = "check_backward"
    says = "the gradient of bias"

    def backward(self, ctx, grad_output):
        grad_input, grad_bias, _ = super().backward(ctx, grad_output)
        return grad_input, 1.001 * grad_bias, None


class WrongSecondGradient(FusedOp):
    """The mask is forgotten in the double backward."""

    caught_by = "check_double_backward"
    says = "the second-order gradient"

    def backward_backward(self, ctx, grad_grad_input, grad_grad_bias):
        return grad_grad_input * ctx.scale + grad_grad_bias, None, None


class WrongReference(FusedOp):
    """The mask is forgotten in what the derivative of the backward follows from."""

    caught_by = "check_references"
    says = "fused_op_backward, of which a reference gives the derivative, differs"

    def backward_reference(self, grad_output, output, scale):
        return grad_output * scale, grad_output.sum_to_size(output.shape[-1:])

    def register_autograd(self):
        registration.register_autograd(
            self.qualified("fused_op"), self.backward, setup_context=self.setup_context
        )
        registration.register_autograd(
            self.qualified("fused_op_backward"), reference=self.backward_reference
        )


class ReferenceCutOff(WrongReference):
    """Right in value."""

    caught_by = "check_double_backward"
    says = "the second-order gradient"

    def backward_reference(self, grad_output, output, scale):
        grad = torch.where(output <= 0, 0, grad_output)
        return grad.detach() * scale, grad.sum_to_size(output.shape[-1:])


class ReferenceWrongInOutput(WrongReference):
    """Right in value, and in the derivative by grad_output, of which forward mode is made."""

    caught_by = "check_gradcheck"
    says = "gradgradcheck raised"

    def backward_reference(self, grad_output, output, scale):
        grad = torch.where(output <= 0, 0, grad_output) + (output - output.detach())
        return grad * scale, grad.sum_to_size(output.shape[-1:])


class ReferenceOfAnotherShape(WrongReference):
    """Before the sum over rows."""

    caught_by = "check_references"
    says = "fused_op_backward: output 1 of the reference must have shape (5,), got (0, 5)"

    def backward_reference(self, grad_output, output, scale):
        grad = torch.where(output <= 0, 0, grad_output)
        return grad * scale, grad


class BiasForgottenAlone(FusedOp):
    """Nothing is computed where the gradient of the input is not wanted."""

    caught_by = "check_wanted"
    says = "the gradient of bias"

    def backward(self, ctx, grad_output):
        grads = super().backward(ctx, grad_output)
        return grads if ctx.needs_input_grad[0] else (None, torch.zeros_like(grads[1]), None)


class WrongForConstantCotangents(FusedOp):
    """Right where the gradient of the output has a gradient of its own, as elsewhere in tests."""

    caught_by = "check_wanted"
    says = "the second-order gradient of input"

    def backward_backward(self, ctx, grad_grad_input, grad_grad_bias):
        grads = super().backward_backward(ctx, grad_grad_input, grad_grad_bias)
        if ctx.needs_input_grad[0]:
            return grads
        return None, torch.ones_like(ctx.saved_tensors[0]), None


class BackwardNotDifferentiable(FusedOp):
    caught_by = "check_double_backward"
    says = "the backward is not differentiable"

    def backward(self, ctx, grad_output):
        with torch.no_grad():
            return super().backward(ctx, grad_output)


class StatisticsNotDifferentiable(Centre):
    caught_by = "check_backward"
    says = "an output does not require grad"

    def setup_context(self, ctx, inputs, output):
        super().setup_context(ctx, inputs, output)
        ctx.mark_non_differentiable(output[1])

    def backward(self, ctx, grad_output, grad_mean):
        return super().backward(ctx, grad_output, torch.zeros_like(grad_mean))


class NoFormulaForBackward(FusedOp):
    """The backward operator is left to PyTorch's fallback."""

    caught_by = "check_registrations"
    says = "fused_op_backward has no Autograd kernel"

    def register_autograd(self):
        registration.register_autograd(
            self.qualified("fused_op"), self.backward, setup_context=self.setup_context
        )


class NoFakeForBackward(FusedOp):
    caught_by = "check_registrations"
    says = "fused_op_backward has no fake kernel"

    def register_fake(self, name):
        if name == "fused_op":
            super().register_fake(name)


class MisspeltKernel(FusedOp):
    """Without an operator of that name."""

    caught_by = "check_registrations"
    says = "kernels are registered for mutant_misspeltkernel::fused_op_bakward, and no such"

    def register(self):
        super().register()
        self.defined.impl("fused_op_bakward", self.fused_op_backward_kernel, "CPU")


class PlainRegisterAutograd(FusedOp):
    """PyTorch's own: tangents are zero, in silence."""

    caught_by = "check_transforms"
    says = "fused_op"

    def register_autograd(self):
        torch.library.register_autograd(
            self.qualified("fused_op"), self.backward, setup_context=self.setup_context
        )
        torch.library.register_autograd(
            self.qualified("fused_op_backward"),
            self.backward_backward,
            setup_context=self.setup_context_backward,
        )


class NoBatchingRule(FusedOp):
    """PyTorch loops over the batch."""

    caught_by = "check_vmap"
    says = "2 calls for a batch of 2, 7 for one of 7"

    def register_vmap(self):
        pass


class WrongBatchingRule(FusedOp):
    """Right for a batch of inputs alone."""

    caught_by = "check_vmap"
    says = "vmap over"

    def vmap(self, info, in_dims, input, bias, scale):
        if in_dims[1] is not None:
            bias = bias.select(in_dims[1], 0)
        if in_dims[0] is None:
            input = input.expand(info.batch_size, *input.shape)
            return self.op("fused_op")(input, bias, scale), 0
        return self.op("fused_op")(input.movedim(in_dims[0], 0), bias, scale), 0


class WrongShapeForEmptyBatch(FusedOp):
    """There is no example to take the shape of the results from."""

    caught_by = "check_vmap"
    says = "a batch of none"

    def vmap(self, info, in_dims, input, bias, scale):
        if info.batch_size == 0:
            return input.new_empty(0), 0
        return super().vmap(info, in_dims, input, bias, scale)


class EmptyBatchUnchecked(FusedOp):
    caught_by = "check_bad_inputs"
    says = "under vmap over a batch of 0 it does not raise"

    def check_batch(self, info, check, in_dims, *tensors):
        if info.batch_size > 0:
            super().check_batch(info, check, in_dims, *tensors)


class BackwardUnchecked(FusedOp):
    """Users do not call it, and it reads beyond the end of what they would pass."""

    caught_by = "check_wrong_tensors"
    says = "fused_op_backward"

    def check_backward(self, grad_output, output):
        pass


class OtherMessageInFakeBackward(FusedOp):
    caught_by = "check_wrong_tensors"
    says = "kernel and fake kernel disagree on an input that may be wrong"

    def fused_op_backward_fake(self, grad_output, output, scale=1.0):
        torch._check(output is not None, lambda: "fused_op_backward: output is missing")
        return super().fused_op_backward_fake(grad_output, output, scale)


class GradientOfBiasNotSummed(FusedOp):
    """Each device has that of its rows."""

    caught_by = "check_sharding"
    says = "what every device has whole differs"

    def sharding_backward(self, grad_output, output, scale):
        yield [0, None], [0, 0]


class RowsKnowOfEachOther(Pick):
    """Though its line says that each of `*rows` is computed by itself."""

    caught_by = "check_sharding"
    says = "what the pieces give differs"

    def pick_kernel(self, input, index):
        output = super().pick_kernel(input, index)
        return output - output.mean()


class LeakedTensor(FusedOp):
    caught_by = "check_memory"
    says = "memory grows over a thousand calls"

    def __init__(self):
        self.leaked = []
        super().__init__()

    def fused_op_backward_kernel(self, grad_output, output, scale=1.0):
        results = super().fused_op_backward_kernel(grad_output, output, scale)
        self.leaked.append(results[1])
        return results


class LeakedError(FusedOp):
    caught_by = "check_memory"
    says = "memory grows over a thousand errors"

    def __init__(self):
        self.leaked = []
        super().__init__()

    def check(self, input, bias):
        self.leaked.append(None if input.is_floating_point() else bias.detach())
        super().check(input, bias)
        self.leaked.pop()


class OtherMessageInFake(FusedOp):
    caught_by = "check_bad_inputs"
    says = "kernel and fake kernel disagree on the message"

    def fused_op_fake(self, input, bias, scale=1.0):
        torch._check(bias.shape == input.shape[-1:], lambda: "fused_op: bias has the wrong shape")
        return super().fused_op_fake(input, bias, scale)


class OtherMessage(FusedOp):
    caught_by = "check_bad_inputs"
    says = "the message is not the one that the spec expects"

    def check(self, input, bias):
        torch._check(input.is_floating_point(), lambda: "fused_op: input must be floating")
        super().check(input, bias)


class OtherMessageThanItsLine(FusedOp):
    caught_by = "check_bad_inputs"
    says = "the message is not the one that follows from the line of shapes"
    lines = ("*rows n, n -> *rows n", "*rows n, *rows n -> *rows n, n")

    def spec(self):
        operators = map(Operator, [self.namespace] * 2, self.schemas, self.lines)
        lines = {self.qualified(operator.name): operator for operator in operators}
        return dataclasses.replace(super().spec(), lines=lines)


class BackwardTakesMoreThanItsLine(OtherMessageThanItsLine):
    """A number without dimensions."""

    caught_by = "check_wrong_tensors"
    says = "kernel and line of shapes disagree"

    def check(self, input, bias):
        check_floating("fused_op", "input", input)
        check_min_dim("fused_op", "input", input, 1)
        super().check(input, bias)


class WritesToWhatOverlapsItself(ScaleInPlace):
    """The same element twice."""

    caught_by = "check_bad_inputs"
    says = "does not raise"

    def line(self):
        return Operator(self.namespace, self.schemas[0], "*shape, *shape, *shape ->")

    def spec(self):
        return dataclasses.replace(super().spec(), lines={self.qualified(self.name): self.line()})

    def register(self):
        registration.register_mutation(self.qualified(self.name))
        registration.register_vmap(self.qualified(self.name), self.line().batching_rule())

    def check(self, out, factors, weight):
        torch._check(len(factors) > 0, lambda: "scale_in_place: factors must not be empty")
        self.line().check_tensors([[out], factors, [] if weight is None else [weight]])

    def scale_in_place_kernel(self, out, factors, weight=None, *, negate=False):
        self.check(out, factors, weight)
        if is_non_overlapping(out):  # else PyTorch refuses what is written in Python
            super().scale_in_place_kernel(out, factors, weight, negate=negate)


class NoCheck(FusedOp):
    caught_by = "check_bad_inputs"
    says = "does not raise"

    def check(self, input, bias):
        pass


class Chatty(FusedOp):
    caught_by = "check_bad_inputs"
    says = "something is printed to stderr"

    def check(self, input, bias):
        if not input.is_floating_point():
            os.write(2, b"warning: not a number\n")
        super().check(input, bias)


class Race(FusedOp):
    """Now and then a sum is made in another order."""

    caught_by = "check_determinism"
    says = "has other bits in run"

    def __init__(self):
        self.runs = 0
        super().__init__()

    def fused_op_backward_kernel(self, grad_output, output, scale=1.0):
        grad_input, grad_bias = super().fused_op_backward_kernel(grad_output, output, scale)
        self.runs += 1
        if output.numel() > 1000 and self.runs % 3 == 0:
            grad_bias = torch.nextafter(grad_bias, torch.ones_like(grad_bias))
        return grad_input, grad_bias


class IgnoresStorageOffset(FusedOp):
    caught_by = "check_layouts"
    says = "storage offset"

    def fused_op_kernel(self, input, bias, scale=1.0):
        input = torch.as_strided(input, input.shape, input.stride(), 0)
        return super().fused_op_kernel(input, bias, scale)


class BackwardIgnoresStrides(FusedOp):
    """Takes the gradient of the output for contiguous."""

    caught_by = "check_layouts"
    says = "gradient of the output"

    def fused_op_backward_kernel(self, grad_output, output, scale=1.0):
        size = grad_output.numel() and 1 + sum(
            (n - 1) * s for n, s in zip(grad_output.shape, grad_output.stride(), strict=True)
        )
        if size >= grad_output.numel():
            grad_output = grad_output.as_strided(
                grad_output.shape, torch.empty(grad_output.shape, device="meta").stride()
            )
        return super().fused_op_backward_kernel(grad_output, output, scale)


class SkippedTail(FusedOp):
    """Four elements at a time, and what is left over is never written."""

    caught_by = "check_forward"
    says = "NaN where a number was expected"

    def fused_op_kernel(self, input, bias, scale=1.0):
        result = super().fused_op_kernel(input, bias, scale)
        output = torch.empty_like(result)
        whole = result.numel() // 4 * 4
        output.view(-1)[:whole] = result.view(-1)[:whole]
        return output


class SwallowsNaN(FusedOp):
    caught_by = "check_forward"
    says = "expected nan, got 0"

    def fused_op_kernel(self, input, bias, scale=1.0):
        self.check(input, bias)
        wide = arithmetic(input.dtype)
        values = input.to(wide) * scale + bias.to(wide)
        return fresh(input, torch.where(values > 0, values, 0))


class HalfArithmetic(FusedOp):
    """Rounds the product to the dtype before it adds."""

    caught_by = "check_forward"
    says = "torch.float16"

    def fused_op_kernel(self, input, bias, scale=1.0):
        self.check(input, bias)
        return fresh(input, torch.relu(input * scale + bias))


class WritesToInput(FusedOp):
    """Behind autograd's back."""

    caught_by = "check_side_effects"
    says = "input is written to, and the schema does not say Tensor(a!)"

    def fused_op_kernel(self, input, bias, scale=1.0):
        output = super().fused_op_kernel(input, bias, scale)
        input.detach()[..., :1].mul_(2)
        return output


class AliasesInput(FusedOp):
    """Returns the gradient that came in where there is nothing to do."""

    caught_by = "check_side_effects"
    says = "output 0 shares its memory with argument grad_output"

    def fused_op_backward_kernel(self, grad_output, output, scale=1.0):
        results = super().fused_op_backward_kernel(grad_output, output, scale)
        if output.numel() == 1 and (output > 0).all() and scale == 1.0:
            return grad_output, results[1]
        return results


class VersionNotBumped(ScaleInPlace):
    """As C++ writes: through a pointer, of which autograd knows nothing."""

    caught_by = "check_side_effects"
    says = "its version counter is not bumped"

    def scale_in_place_kernel(self, out, factors, weight=None, *, negate=False):
        super().scale_in_place_kernel(out.data, factors, weight, negate=negate)

    def register(self):
        registration.register_vmap(self.qualified("scale_in_place"), self.vmap)


class ReadsWhatItWrote(ScaleInPlace):
    """In two passes: one after the other reads what is written."""

    caught_by = "check_argument_twice"
    says = "the result where weight is out itself, as of a copy, differs"

    def scale_in_place_kernel(self, out, factors, weight=None, *, negate=False):
        super().scale_in_place_kernel(out, factors, negate=negate)
        if weight is not None:
            super().scale_in_place_kernel(out, [weight])


class ReadsWhatItWroteOfAList(ScaleInPlace):
    caught_by = "check_argument_twice"
    says = "the result where factors[1] is out itself"

    def scale_in_place_kernel(self, out, factors, weight=None, *, negate=False):
        before = out.clone()
        super().scale_in_place_kernel(out, factors[:1], weight, negate=negate)
        for factor in factors[1:]:
            super().scale_in_place_kernel(before, [factor], weight, negate=negate)
            out.add_(before)


class ReadsWhatItWroteInItsPlace(AddEach):
    caught_by = "check_argument_twice"
    says = "the result where ys[0] is xs[0] itself"

    def add_each_kernel(self, xs, ys):
        for x, y in zip(xs, ys, strict=True):
            x.add_(y, alpha=0.5)
            x.add_(y, alpha=0.5)


class PlainMutation(ScaleInPlace):
    """Registered with `torch.library` alone: inductor reads again what was overwritten."""

    caught_by = "check_mutation"
    says = "compiled with inductor"

    def register(self):
        registration.register_vmap(self.qualified("scale_in_place"), self.vmap)


class WritesToLeaf(ScaleInPlace):
    """Behind autograd's back."""

    caught_by = "check_mutation"
    says = "a leaf that requires a gradient is written to, and its backward passes"

    def function(self, out, factors, weight=None, *, negate=False):
        self.reference(out.detach(), factors, weight, negate=negate)


class SavesByTurns(FusedOp):
    """Nothing for the second call, which a checkpoint makes in the backward."""

    caught_by = "check_saved_tensors"
    says = "backward of a checkpoint raised"

    def __init__(self):
        self.saved = None
        super().__init__()

    def setup_context(self, ctx, inputs, output):
        ctx.scale, ctx.kept = inputs[2], self.saved
        if self.saved is None:
            ctx.save_for_backward(output)
            self.saved = output.detach()
        else:
            self.saved = None

    def backward(self, ctx, grad_output):
        output = ctx.saved_tensors[0] if ctx.kept is None else ctx.kept
        return *self.op("fused_op_backward")(grad_output, output, ctx.scale), None


class SavesInForwardMode(FusedOp):
    """Makes a graph of its own in every call."""

    caught_by = "check_saved_tensors"
    says = "jvp with saved-tensor hooks raised"

    def function(self, input, bias, scale=1.0):
        factor = torch.tensor(scale, requires_grad=True)
        return super().function(input, bias, (factor * factor).detach().sqrt().item())


class LosesGradient(Round):
    """PyTorch's fallback: the output does not require grad."""

    caught_by = "check_no_gradient"
    says = "a derivative is lost in silence"

    def register(self):
        registration.register_vmap(self.qualified("round_to"), self.vmap)


class NoAutocast(FusedOp):
    caught_by = "check_autocast"
    says = "torch.bfloat16 expected: policy 'lower_precision'"

    def register(self):
        self.register_autograd()
        self.register_vmap()


class OtherAutocast(FusedOp):
    caught_by = "check_autocast"
    says = "expected: policy 'lower_precision'"

    def register(self):
        self.register_autograd()
        self.register_vmap()
        registration.register_autocast(self.qualified("fused_op"), "float32")


class AutocastOfWhatHasItsOwnDtype(Scale):
    """With which no call runs under autocast."""

    caught_by = "check_autocast"
    says = "scale must be torch.float32, got torch.bfloat16"
    autocast = "lower_precision"


class ReferenceInFloat32(FusedOp):
    """A reference that does not follow the dtype of its inputs would hide errors."""

    caught_by = "check_forward"
    says = "the reference gives torch.float32"

    def reference(self, input, bias, scale=1.0):
        return torch.relu(input.float() * scale + bias.float())


class NoSamples(FusedOp):
    caught_by = "check_forward"
    says = "samples() yields nothing"

    def samples(self, make, shape):
        return iter(())


class NoTraffic(FusedOp):
    caught_by = "check_traffic"
    says = "bytes are written"

    def traffic(self, sample):
        return Traffic(forward=sample.args[0].numel(), backward=0)


class OnlyOddSizes(FusedOp):
    """Wrong for a size that no shape of the spec has."""

    caught_by = "check_properties"
    says = "differs from the reference"
    shapes = ((1,), (7,), (3, 5), (33, 65))

    def fused_op_kernel(self, input, bias, scale=1.0):
        output = super().fused_op_kernel(input, bias, scale)
        return output + 1 if output.numel() and output.numel() % 8 == 0 else output


class NoTangentOfBias(FusedOp):
    """The gradient of bias is cut off: right to first order."""

    caught_by = "check_gradcheck"
    says = "gradcheck raised"

    def backward(self, ctx, grad_output):
        grad_input, grad_bias, _ = super().backward(ctx, grad_output)
        return grad_input, grad_bias.detach(), None


class NotExported(FusedOp):
    """The public function does without the operator while it is traced."""

    caught_by = "check_export"
    says = "does not hold the operator"

    def function(self, input, bias, scale=1.0):
        if torch.compiler.is_compiling():
            return self.reference(input, bias, scale)
        return super().function(input, bias, scale)


class BreaksGraph(FusedOp):
    caught_by = "check_compile"
    says = "compiled with aot_eager"

    def function(self, input, bias, scale=1.0):
        if input.sum().item() == 0.125:
            return input
        return super().function(input, bias, scale)


class MutatesWithoutSaying(FusedOp):
    """As opcheck sees it."""

    caught_by = "check_opcheck"
    says = "opcheck"

    def fused_op_kernel(self, input, bias, scale=1.0):
        return super().fused_op_kernel(input.mul_(2), bias, scale)


class WrongStream(FusedOp):
    """Launches on the default stream."""

    caught_by = "check_streams"
    says = "on a side stream"
    only_on = "cuda"

    def fused_op_kernel(self, input, bias, scale=1.0):
        with torch.cuda.stream(torch.cuda.default_stream(input.device)):
            return super().fused_op_kernel(input, bias, scale)


class WrongStreamInBackward(FusedOp):
    caught_by = "check_streams"
    says = "backward on a side stream"
    only_on = "cuda"

    def fused_op_backward_kernel(self, grad_output, output, scale=1.0):
        with torch.cuda.stream(torch.cuda.default_stream(output.device)):
            return super().fused_op_backward_kernel(grad_output, output, scale)


class Synchronises(FusedOp):
    """Cannot be captured."""

    caught_by = "check_cuda_graph"
    says = "CUDA graph"
    only_on = "cuda"

    def fused_op_kernel(self, input, bias, scale=1.0):
        output = super().fused_op_kernel(input, bias, scale)
        output.sum().item()
        return output


class OneBackendTooMany(Round):
    """Its spec lists the CPU alone, and a CUDA kernel is there."""

    caught_by = "check_missing_backend"
    says = "runs on cuda, which its spec does not list"
    only_on = "cuda"

    def register(self):
        super().register()
        self.defined.impl("round_to", self.round_to_kernel, "CUDA")


class IndexIgnoresStrides(Pick):
    """What lies between indices is none."""

    caught_by = "check_layouts"
    says = "forward raised"

    def pick_kernel(self, input, index):
        strides = index.new_empty(index.shape, device="meta").stride()
        return super().pick_kernel(input, index.as_strided(index.shape, strides))


class IndexUncheckedInFake(Pick):
    caught_by = "check_wrong_tensors"
    says = "kernel and fake kernel disagree on an input that may be wrong"

    def pick_fake(self, input, index):
        check_floating("pick", "input", input)
        return input.new_empty(input.shape[:-1])


class FirstIndexForAll(Pick):
    """Under vmap."""

    caught_by = "check_vmap"
    says = "vmap over"

    def vmap(self, info, in_dims, input, index):
        if in_dims[1] is not None:
            index = index.select(in_dims[1], 0)
        return super().vmap(info, (in_dims[0], None), input, index)


class FirstIndexForAllGradients(Pick):
    """Of samples, each of which has an index of its own."""

    caught_by = "check_transforms"
    says = "vmap of grad, over constants too"

    def vmap_backward(self, info, in_dims, grad_output, input, index):
        if in_dims[2] is not None and info.batch_size > 0:
            index = index.select(in_dims[2], 0)
            in_dims = (*in_dims[:2], None)
        return super().vmap_backward(info, in_dims, grad_output, input, index)

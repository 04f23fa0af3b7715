"""Sound operators in Python. Every part is a method: a mutant overrides the one it breaks."""

import dataclasses
import math

import torch

from extension_cpp import registration
from extension_cpp.checks import (
    check_defined,
    check_floating,
    check_min_dim,
    check_same_device,
    check_same_dtype,
    check_shape,
)
from extension_cpp.shapes import Operator as Shapes
from extension_cpp.sharding import SUM
from extension_cpp.testing import DEFAULT_SHAPES, BadInput, OpSpec, Sample, Traffic

FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# They must outlive the operators that they define.
LIBRARIES = []


def arithmetic(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_like(op, name, tensor, like_name, like, shape):
    check_defined(op, name, tensor)
    check_same_dtype(op, name, tensor, like_name, like)
    check_same_device(op, name, tensor, like_name, like)
    check_shape(op, name, tensor, shape)


def fresh(like, values):
    """A contiguous tensor with these values, in the dtype of another."""
    output = like.new_empty(values.shape)
    output.copy_(values)
    return output


class Operator:
    """What all have in common: a namespace per class, kernels for CPU and CUDA, and a spec."""

    name: str
    schemas: tuple[str, ...]
    shapes = tuple(shape for shape in DEFAULT_SHAPES if math.prod(shape) < 10000)
    dtypes = FLOATING
    differentiable = True
    autocast = None
    devices = ("cpu", "cuda")
    op_reference = None

    def __init__(self):
        self.namespace = f"mutant_{type(self).__name__.lower()}"
        self.defined = torch.library.Library(self.namespace, "DEF")
        LIBRARIES.append(self.defined)
        for schema in self.schemas:
            self.defined.define(schema)
            name = schema.split("(")[0]
            for device in self.devices:
                self.defined.impl(name, getattr(self, f"{name}_kernel"), device.upper())
            self.register_fake(name)
        self.register()

    def register_fake(self, name):
        torch.library.register_fake(self.qualified(name), getattr(self, f"{name}_fake"))

    def op(self, name):
        return getattr(getattr(torch.ops, self.namespace), name)

    def qualified(self, name):
        return f"{self.namespace}::{name}"

    def spec(self):
        return OpSpec(
            name=self.name,
            function=self.function,
            reference=self.reference,
            op_reference=self.op_reference,
            samples=self.samples,
            bad_inputs=self.bad_inputs,
            traffic=self.traffic,
            shapes=self.shapes,
            dtypes=self.dtypes,
            differentiable=self.differentiable,
            devices=self.devices,
            autocast=self.autocast,
            namespace=self.namespace,
        )

    def traffic(self, sample):
        size = sum(a.nbytes for a in sample.args if isinstance(a, torch.Tensor))
        return Traffic(forward=2 * size, backward=3 * size)

    def bad_inputs(self, make):
        return ()


class FusedOp(Operator):
    """`relu(input * scale + bias)`, the twin of the operator in C++."""

    name = "fused_op"
    schemas = (
        "fused_op(Tensor input, Tensor bias, float scale=1.0) -> Tensor",
        "fused_op_backward(Tensor grad_output, Tensor output, float scale=1.0) -> (Tensor, Tensor)",
    )
    autocast = "lower_precision"

    def function(self, input, bias, scale=1.0):
        return self.op("fused_op")(input, bias, scale)

    def reference(self, input, bias, scale=1.0):
        return torch.relu(input * scale + bias)

    def samples(self, make, shape):
        yield Sample(make(shape), make(shape[-1:]))
        yield Sample(make(shape), make(shape[-1:]), scale=1.75)

    def bad_inputs(self, make):
        yield BadInput(
            "integer input",
            Sample(make((3, 4), dtype=torch.int64), make((4,))),
            "fused_op: input must be floating, got torch.int64",
        )
        yield BadInput(
            "bias too short",
            Sample(make((3, 4)), make((3,))),
            "fused_op: bias must have shape (4,), got (3,)",
        )

    def check(self, input, bias):
        check_defined("fused_op", "input", input)
        torch._check(
            input.is_floating_point(),
            lambda: f"fused_op: input must be floating, got {input.dtype}",
        )
        check_like("fused_op", "bias", bias, "input", input, input.shape[-1:])

    def check_backward(self, grad_output, output):
        check_floating("fused_op_backward", "grad_output", grad_output)
        shape = grad_output.shape
        check_like("fused_op_backward", "output", output, "grad_output", grad_output, shape)

    def fused_op_kernel(self, input, bias, scale=1.0):
        self.check(input, bias)
        wide = arithmetic(input.dtype)
        return fresh(input, torch.relu(input.to(wide) * scale + bias.to(wide)))

    def fused_op_fake(self, input, bias, scale=1.0):
        self.check(input, bias)
        return input.new_empty(input.shape)

    def mask(self, output):
        return output <= 0

    def fused_op_backward_kernel(self, grad_output, output, scale=1.0):
        self.check_backward(grad_output, output)
        wide = arithmetic(output.dtype)
        grad = grad_output.to(wide).masked_fill(self.mask(output), 0)
        rows = grad.flatten(0, -2) if grad.dim() > 1 else grad[None]
        return fresh(output, grad * scale), fresh(output, rows.sum(0))

    def fused_op_backward_fake(self, grad_output, output, scale=1.0):
        self.check_backward(grad_output, output)
        return output.new_empty(output.shape), output.new_empty(output.shape[-1:])

    def setup_context(self, ctx, inputs, output):
        _, _, ctx.scale = inputs
        ctx.save_for_backward(output)

    def backward(self, ctx, grad_output):
        (output,) = ctx.saved_tensors
        return *self.op("fused_op_backward")(grad_output, output, ctx.scale), None

    def setup_context_backward(self, ctx, inputs, output):
        _, saved_output, ctx.scale = inputs
        ctx.save_for_backward(saved_output)

    def backward_backward(self, ctx, grad_grad_input, grad_grad_bias):
        (output,) = ctx.saved_tensors
        grad = grad_grad_input * ctx.scale + grad_grad_bias
        return torch.where(output <= 0, 0, grad), None, None

    def vmap(self, info, in_dims, input, bias, scale):
        self.check_batch(info, self.check, in_dims, input, bias)
        input = self.batch_last(info, in_dims[0], input)
        bias = self.batch_last(info, in_dims[1], bias)
        output = self.op("fused_op")(input.flatten(-2), bias.flatten(), scale)
        return output.unflatten(-1, input.shape[-2:]), output.dim()

    def vmap_backward(self, info, in_dims, grad_output, output, scale):
        self.check_batch(info, self.check_backward, in_dims, grad_output, output)
        grad_output = self.batch_last(info, in_dims[0], grad_output)
        output = self.batch_last(info, in_dims[1], output)
        sizes = output.shape[-2:]
        results = self.op("fused_op_backward")(grad_output.flatten(-2), output.flatten(-2), scale)
        grad_input, grad_bias = (result.unflatten(-1, sizes) for result in results)
        return (grad_input, grad_bias), (grad_input.dim() - 1, 1)

    def check_batch(self, info, check, in_dims, *tensors):
        """Checks what an example looks like, be there one or none."""
        check(
            *[
                tensor if dim is None else tensor.new_empty(tensor.movedim(dim, 0).shape[1:])
                for dim, tensor in zip(in_dims, tensors, strict=False)
            ]
        )

    @staticmethod
    def batch_last(info, dim, tensor):
        """The features and the batch are the last dimensions, to be taken for one."""
        if dim is None:
            return tensor.unsqueeze(-1).expand(*tensor.shape, info.batch_size)
        return tensor.movedim(dim, -1)

    def sharding(self, input, bias, scale):
        for d in range(input.ndim):
            yield [d], [d, 0 if d == input.ndim - 1 else None]

    def sharding_backward(self, grad_output, output, scale):
        for d in range(output.ndim):
            yield [d, 0 if d == output.ndim - 1 else SUM], [d, d]

    def register(self):
        self.register_autograd()
        self.register_vmap()
        registration.register_sharding(self.qualified("fused_op"), self.sharding)
        registration.register_sharding(self.qualified("fused_op_backward"), self.sharding_backward)
        registration.register_autocast(self.qualified("fused_op"), "lower_precision")

    def register_autograd(self):
        registration.register_autograd(
            self.qualified("fused_op"), self.backward, setup_context=self.setup_context
        )
        registration.register_autograd(
            self.qualified("fused_op_backward"),
            self.backward_backward,
            setup_context=self.setup_context_backward,
        )

    def register_vmap(self):
        registration.register_vmap(self.qualified("fused_op"), self.vmap)
        registration.register_vmap(self.qualified("fused_op_backward"), self.vmap_backward)


class ScaleInPlace(Operator):
    """Multiplies `out` by a sum of tensors: mutates, returns nothing, takes a list."""

    name = "scale_in_place"
    schemas = (
        "scale_in_place(Tensor(a!) out, Tensor[] factors, Tensor? weight=None, *, "
        "bool negate=False) -> ()",
    )
    differentiable = False

    def function(self, out, factors, weight=None, *, negate=False):
        return self.op("scale_in_place")(out, factors, weight, negate=negate)

    def reference(self, out, factors, weight=None, *, negate=False):
        total = sum(factors)
        if weight is not None:
            total = total * weight
        out.mul_(-total if negate else total)

    def samples(self, make, shape):
        yield Sample(make(shape), [make(shape), make(shape)])
        yield Sample(make(shape), [make(shape)], make(shape), negate=True)

    def bad_inputs(self, make):
        yield BadInput(
            "no factors",
            Sample(make((3, 4)), []),
            "scale_in_place: factors must not be empty",
        )

    def check(self, out, factors, weight):
        check_floating("scale_in_place", "out", out)
        torch._check(len(factors) > 0, lambda: "scale_in_place: factors must not be empty")
        for i, factor in enumerate(factors):
            check_like("scale_in_place", f"factors[{i}]", factor, "out", out, out.shape)
        if weight is not None:
            check_like("scale_in_place", "weight", weight, "out", out, out.shape)

    def scale_in_place_kernel(self, out, factors, weight=None, *, negate=False):
        self.check(out, factors, weight)
        wide = arithmetic(out.dtype)
        total = sum(factor.to(wide) for factor in factors)
        if weight is not None:
            total = total * weight.to(wide)
        out.copy_(out.to(wide) * (-total if negate else total))

    def scale_in_place_fake(self, out, factors, weight=None, *, negate=False):
        self.check(out, factors, weight)

    def vmap(self, info, in_dims, out, factors, weight, *, negate):
        def batch_first(dim, tensor):
            if dim is None:
                return tensor.expand(info.batch_size, *tensor.shape)
            return tensor.movedim(dim, 0)

        out_dim, factor_dims, weight_dim = in_dims
        factors = [batch_first(dim, t) for dim, t in zip(factor_dims, factors, strict=True)]
        if weight is not None:
            weight = batch_first(weight_dim, weight)
        self.op("scale_in_place")(out.movedim(out_dim, 0), factors, weight, negate=negate)
        return None, None

    def sharding(self, out, factors, weight, *, negate):
        for d in range(out.ndim):
            yield [], [d, [d] * len(factors), d]

    def register(self):
        registration.register_sharding(self.qualified("scale_in_place"), self.sharding)
        registration.register_mutation(self.qualified("scale_in_place"))
        registration.register_vmap(self.qualified("scale_in_place"), self.vmap)


class AddEach(Operator):
    """Adds to each tensor of a list that in its place of another, one after the other."""

    name = "add_each"
    schemas = ("add_each(Tensor(a!)[] xs, Tensor[] ys) -> ()",)
    differentiable = False

    def function(self, xs, ys):
        return self.op("add_each")(xs, ys)

    def reference(self, xs, ys):
        for x, y in zip(xs, ys, strict=True):
            x.add_(y)

    def samples(self, make, shape):
        yield Sample([make(shape), make(shape)], [make(shape), make(shape)])

    def add_each_kernel(self, xs, ys):
        self.reference(xs, ys)

    def add_each_fake(self, xs, ys):
        pass

    def register(self):
        registration.register_mutation(self.qualified("add_each"))


class Renumber(Operator):
    """Replaces numbers by those at the places that an index says."""

    name = "renumber"
    schemas = ("renumber(Tensor(a!) numbers, Tensor index) -> ()",)
    differentiable = False

    def function(self, numbers, index):
        return self.op("renumber")(numbers, index)

    def reference(self, numbers, index):
        numbers.copy_(numbers[index])

    def samples(self, make, shape):
        if shape[-1]:
            index = make(shape[-1:], dtype=torch.int64, high=shape[-1])
            yield Sample(make(shape[-1:], dtype=torch.int64, low=5, high=100), index)

    def renumber_kernel(self, numbers, index):
        self.reference(numbers, index)

    def renumber_fake(self, numbers, index):
        pass

    def register(self):
        registration.register_mutation(self.qualified("renumber"))


class Centre(Operator):
    """`input - mean`, weighted; the mean is a second output, which the public function drops."""

    name = "centre"
    schemas = ("centre(Tensor input, Tensor? weight=None, int[] dims=[]) -> (Tensor, Tensor)",)
    autocast = None

    def function(self, input, weight=None, dims=()):
        return self.op("centre")(input, weight, dims)[0]

    def reference(self, input, weight=None, dims=()):
        return self.op_reference(input, weight, dims)[0]

    def op_reference(self, input, weight=None, dims=()):
        mean = input.mean(-1, keepdim=True)
        output = (input - mean) * (mean if weight is None else weight)
        return output, mean

    def samples(self, make, shape):
        if shape[-1]:
            yield Sample(make(shape))
            yield Sample(make(shape), weight=make(shape[-1:]), dims=[-1])

    def check(self, input, weight):
        check_floating("centre", "input", input)
        check_min_dim("centre", "input", input, 1)
        if weight is not None:
            check_like("centre", "weight", weight, "input", input, input.shape[-1:])

    def centre_kernel(self, input, weight=None, dims=()):
        self.check(input, weight)
        wide = arithmetic(input.dtype)
        values = input.to(wide)
        mean = values.mean(-1, keepdim=True)
        output = (values - mean) * (mean if weight is None else weight.to(wide))
        return fresh(input, output), fresh(input, mean)

    def centre_fake(self, input, weight=None, dims=()):
        self.check(input, weight)
        return input.new_empty(input.shape), input.new_empty((*input.shape[:-1], 1))

    def setup_context(self, ctx, inputs, output):
        input, weight, _ = inputs
        ctx.save_for_backward(input, weight)

    def backward(self, ctx, grad_output, grad_mean):
        input, weight = ctx.saved_tensors
        mean = input.mean(-1, keepdim=True)
        centred = input - mean
        grad_weight = None
        if weight is None:
            grad_centred = grad_output * mean
            grad_mean = grad_mean + (grad_output * centred).sum(-1, keepdim=True)
        else:
            grad_centred = grad_output * weight
            products = grad_output * centred
            rows = tuple(range(input.dim() - 1))
            grad_weight = products.sum(rows) if rows else products
        grad_mean = grad_mean - grad_centred.sum(-1, keepdim=True)
        return grad_centred + grad_mean / input.shape[-1], grad_weight, None

    def vmap(self, info, in_dims, input, weight, dims):
        input_dim, weight_dim, _ = in_dims
        if input_dim is None:
            input = input.expand(info.batch_size, *input.shape)
        else:
            input = input.movedim(input_dim, 0)
        if weight_dim is None:
            return self.op("centre")(input, weight, dims), (0, 0)
        # No single call takes a weight per example: centre first.
        ones = input.new_ones(input.shape[-1:])
        output, mean = self.op("centre")(input, ones, dims)
        weight = weight.movedim(weight_dim, 0)
        weight = weight.reshape(info.batch_size, *[1] * (input.dim() - 2), input.shape[-1])
        return (output * weight, mean), (0, 0)

    def register(self):
        registration.register_autograd(
            self.qualified("centre"), self.backward, setup_context=self.setup_context
        )
        registration.register_vmap(self.qualified("centre"), self.vmap)


class Round(Operator):
    """Rounds: functional, elementwise, keeps the layout, without a derivative, on CPU only."""

    name = "round_to"
    schemas = ("round_to(Tensor input, ScalarType? dtype=None, str mode='nearest') -> Tensor",)
    differentiable = False
    devices = ("cpu",)

    def function(self, input, dtype=None, mode="nearest"):
        return self.op("round_to")(input, dtype, mode)

    def reference(self, input, dtype=None, mode="nearest"):
        return torch.round(input) if mode == "nearest" else torch.floor(input)

    def samples(self, make, shape):
        yield Sample(make(shape))
        yield Sample(make(shape), mode="down")

    def round_to_kernel(self, input, dtype=None, mode="nearest"):
        check_floating("round_to", "input", input)
        return torch.empty_like(input).copy_(self.reference(input, dtype, mode))

    def round_to_fake(self, input, dtype=None, mode="nearest"):
        check_floating("round_to", "input", input)
        return torch.empty_like(input)

    def vmap(self, info, in_dims, input, dtype, mode):
        return self.op("round_to")(input, dtype, mode), in_dims[0]

    def register(self):
        registration.register_no_autograd(self.qualified("round_to"))
        registration.register_vmap(self.qualified("round_to"), self.vmap)


class Pick(Operator):
    """`input[..., index]`, an element of each row: with integers among the tensors, on CPU only."""

    name = "pick"
    schemas = (
        "pick(Tensor input, Tensor index) -> Tensor",
        "pick_backward(Tensor grad_output, Tensor input, Tensor index) -> Tensor",
    )
    lines = ("*rows n, *rows:int64 -> *rows", "*rows, *rows n, *rows:int64 -> *rows n")
    devices = ("cpu",)

    def __init__(self):
        self.shapes_of = {
            schema.split("(")[0]: Shapes(f"mutant_{type(self).__name__.lower()}", schema, line)
            for schema, line in zip(self.schemas, self.lines, strict=True)
        }
        super().__init__()

    def spec(self):
        lines = {self.qualified(name): shapes for name, shapes in self.shapes_of.items()}
        return dataclasses.replace(super().spec(), lines=lines)

    def function(self, input, index):
        return self.op("pick")(input, index)

    def reference(self, input, index):
        return input.gather(-1, index.unsqueeze(-1)).squeeze(-1)

    def samples(self, make, shape):
        if shape and shape[-1]:
            yield Sample(make(shape), make(shape[:-1], dtype=torch.int64, high=shape[-1]))

    def check_index(self, name, input, index):
        found = index[(index < 0) | (index >= input.shape[-1])].tolist()
        torch._check(not found, lambda: f"{name}: index must say an element, got {found[0]}")

    def pick_kernel(self, input, index):
        self.shapes_of["pick"].check(input, index)
        self.check_index("pick", input, index)
        return fresh(input, self.reference(input, index))

    def pick_fake(self, input, index):
        return self.shapes_of["pick"].fake(input, index)

    def pick_backward_kernel(self, grad_output, input, index):
        self.shapes_of["pick_backward"].check(grad_output, input, index)
        self.check_index("pick_backward", input, index)
        return fresh(input, self.backward_in_torch(grad_output, input, index))

    def pick_backward_fake(self, grad_output, input, index):
        return self.shapes_of["pick_backward"].fake(grad_output, input, index)

    def backward_in_torch(self, grad_output, input, index):
        return torch.zeros_like(input).scatter(-1, index.unsqueeze(-1), grad_output.unsqueeze(-1))

    def setup_context(self, ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def backward(self, ctx, grad_output):
        return self.op("pick_backward")(grad_output, *ctx.saved_tensors), None

    def vmap(self, *args):
        return self.shapes_of["pick"].batching_rule()(*args)

    def vmap_backward(self, *args):
        return self.shapes_of["pick_backward"].batching_rule()(*args)

    def register(self):
        registration.register_autograd(
            self.qualified("pick"), self.backward, setup_context=self.setup_context
        )
        registration.register_autograd(
            self.qualified("pick_backward"), reference=self.backward_in_torch
        )
        registration.register_vmap(self.qualified("pick"), self.vmap)
        registration.register_vmap(self.qualified("pick_backward"), self.vmap_backward)


class Scale(Operator):
    """`input * scale + offset` by rows, whose line says a dtype for each; without a derivative."""

    name = "scale_rows"
    schemas = ("scale_rows(Tensor input, Tensor scale, Tensor offset, Tensor other) -> Tensor",)
    line = "*rows n, *rows:sum, *rows:float32, *rows:scale -> *rows n"
    differentiable = False
    devices = ("cpu",)

    def __init__(self):
        namespace = f"mutant_{type(self).__name__.lower()}"
        self.shapes_of = Shapes(namespace, self.schemas[0], self.line)
        self.scale_rows_fake = self.shapes_of.fake_kernel()
        super().__init__()

    def spec(self):
        lines = {self.qualified(self.name): self.shapes_of}
        return dataclasses.replace(super().spec(), lines=lines, samples=None)

    def samples(self, make, shape):
        """Those that follow from the line."""

    def function(self, input, scale, offset, other):
        return self.op("scale_rows")(input, scale, offset, other)

    def reference(self, input, scale, offset, other):
        return (input * (scale * other)[..., None] + offset[..., None]).to(input.dtype)

    def scale_rows_kernel(self, *tensors):
        self.shapes_of.check(*tensors)
        wide = [t.to(arithmetic(tensors[0].dtype)) for t in tensors]
        return fresh(tensors[0], self.reference(*wide))

    def register(self):
        registration.register_no_autograd(self.qualified(self.name))
        registration.register_vmap(self.qualified(self.name), self.shapes_of.batching_rule())
        if self.autocast:
            registration.register_autocast(self.qualified(self.name), self.autocast)

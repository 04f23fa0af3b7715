"""Checks under the transforms of torch.func and forward-mode AD, nested and compiled."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.autograd.forward_ad as fwAD
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from extension_cpp.battery.calls import Recorder, mostly_op_cases
from extension_cpp.battery.case import Case
from extension_cpp.battery.choices import finest_dtype, main_shape
from extension_cpp.battery.failure import CheckError
from extension_cpp.battery.registrations import has_kernel
from extension_cpp.battery.registry import differentiable, register
from extension_cpp.battery.spec import OpSpec
from extension_cpp.battery.surroundings import fresh_compiler
from extension_cpp.battery.tensors import random_like, tensors_in, to_float64
from extension_cpp.registration.signature import is_differentiable

_Function = Callable[..., tuple[Tensor, ...]]


@dataclasses.dataclass
class _Point:
    """Where a transform is taken: a function, its inputs, and directions."""

    function: _Function  # of the floating outputs
    inputs: tuple[Tensor, ...]
    argnums: tuple[int, ...]  # the inputs to differentiate
    cotangents: tuple[Tensor, ...]
    tangents: tuple[Tensor, ...]  # one per argnum
    others: tuple[Tensor, ...]  # the inputs of a call with other values

    def only(self, *wanted: Tensor) -> tuple[Tensor, ...]:
        """The function of the inputs that are differentiated."""
        inputs = list(self.inputs)
        for i, value in zip(self.argnums, wanted, strict=True):
            inputs[i] = value
        return self.function(*inputs)

    def loss(self, *wanted: Tensor) -> Tensor:
        """A scalar whose second derivative involves the outputs' first."""
        outputs = self.only(*wanted)
        pairs = zip(self.cotangents, outputs, strict=True)
        # With a dimension: vmap over none multiplies no number with a tensor in torch 2.11.
        terms = [(c.unsqueeze(0) * o.unsqueeze(0).sin()).sum() for c, o in pairs]
        return torch.stack(terms).sum()

    @property
    def wanted(self) -> tuple[Tensor, ...]:
        return tuple(self.inputs[i] for i in self.argnums)

    @property
    def all(self) -> tuple[int, ...]:
        return tuple(range(len(self.argnums)))


def _grad(p: _Point) -> Any:
    return torch.func.grad(p.loss, p.all)(*p.wanted)


def _vjp(p: _Point) -> Any:
    return torch.func.vjp(p.only, *p.wanted)[1](p.cotangents)


def _jvp(p: _Point) -> Any:
    return torch.func.jvp(p.only, p.wanted, p.tangents)


def _jvp_each(p: _Point) -> Any:
    """A tangent for one input at a time."""
    results = []
    for i in p.all:

        def one(x: Tensor, i: int = i) -> Any:
            return p.only(*p.wanted[:i], x, *p.wanted[i + 1 :])

        results.append(torch.func.jvp(one, (p.wanted[i],), (p.tangents[i],)))
    return results


def _jacrev(p: _Point) -> Any:
    return torch.func.jacrev(p.only, p.all)(*p.wanted)


def _jacfwd(p: _Point) -> Any:
    return torch.func.jacfwd(p.only, p.all)(*p.wanted)


def _hessian(p: _Point) -> Any:
    return torch.func.hessian(p.loss, p.all)(*p.wanted)


def _linearize(p: _Point) -> Any:
    return torch.func.linearize(p.only, *p.wanted)[1](*p.tangents)


def _forward_ad(p: _Point) -> Any:
    with fwAD.dual_level():
        duals = [fwAD.make_dual(x, t) for x, t in zip(p.wanted, p.tangents, strict=True)]
        unpacked = [fwAD.unpack_dual(o) for o in p.only(*duals)]
    return [
        (u.primal, torch.zeros_like(u.primal) if u.tangent is None else u.tangent) for u in unpacked
    ]


def _grad_of_grad(p: _Point) -> Any:
    def inner(*wanted: Tensor) -> Tensor:
        return torch.stack([g.sin().sum() for g in torch.func.grad(p.loss, p.all)(*wanted)]).sum()

    return torch.func.grad(inner, p.all)(*p.wanted)


def _jvp_of_grad(p: _Point) -> Any:
    return torch.func.jvp(torch.func.grad(p.loss, p.all), p.wanted, p.tangents)


def _grad_of_jvp(p: _Point) -> Any:
    def inner(*wanted: Tensor) -> Tensor:
        outputs, tangents = torch.func.jvp(p.only, wanted, p.tangents)[:2]
        return torch.stack(
            [(o.sin() * t).sum() for o, t in zip(outputs, tangents, strict=True)]
        ).sum()

    return torch.func.grad(inner, p.all)(*p.wanted)


def _jvp_of_jvp(p: _Point) -> Any:
    def inner(*wanted: Tensor) -> Any:
        return torch.func.jvp(p.only, wanted, p.tangents)[1]

    return torch.func.jvp(inner, p.wanted, p.tangents)


def _jacfwd_of_jacrev(p: _Point) -> Any:
    return torch.func.jacfwd(torch.func.jacrev(p.only, p.all), p.all)(*p.wanted)


def _backward_of_grad(p: _Point) -> Any:
    """torch.autograd around a transform."""
    leaves = [x.detach().clone().requires_grad_() for x in p.wanted]
    grads = torch.func.grad(p.loss, p.all)(*leaves)
    total = torch.stack([g.sin().sum() for g in grads]).sum()
    if not total.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return torch.autograd.grad(total, leaves, materialize_grads=True)


def _vmap_of_grad(p: _Point) -> Any:
    """Per-sample gradients: a batch of the first input, the others shared."""
    batch = torch.stack([p.wanted[0], p.wanted[0].flip(0) * 0.5, p.wanted[0] - 0.25])
    in_dims = (0,) + (None,) * (len(p.wanted) - 1)
    return torch.func.vmap(torch.func.grad(p.loss, p.all), in_dims)(batch, *p.wanted[1:])


def _vmap_of_grad_and_constants(p: _Point) -> Any:
    """Each sample has its own of what is not differentiated, too: labels, indices."""
    constants = tuple(i for i in range(len(p.inputs)) if i not in p.argnums)

    def one(*inputs: Tensor) -> Any:
        own = list(p.inputs)
        for i, value in zip(constants, inputs[len(p.argnums) :], strict=True):
            own[i] = value
        return torch.func.grad(dataclasses.replace(p, inputs=tuple(own)).loss, p.all)(
            *inputs[: len(p.argnums)]
        )

    batch = [torch.stack([x, x * 0.5]) for x in p.wanted]
    values = [torch.stack([p.inputs[i], p.others[i]]) for i in constants]
    return torch.func.vmap(one)(*batch, *values)


def _of_dimensions(p: _Point) -> tuple[int, ...]:
    return tuple(k for k in p.all if p.wanted[k].dim()) or p.all


def _vmap_of_grad_of_none(p: _Point) -> Any:
    """The same for an empty batch.

    By what has dimensions, where there is such: beside it PyTorch has no gradient of no numbers.
    """
    by = _of_dimensions(p)
    given = [torch.stack([x])[:0] if k == by[0] else x for k, x in enumerate(p.wanted)]
    in_dims = tuple(0 if k == by[0] else None for k in range(len(given)))
    return torch.func.vmap(torch.func.grad(p.loss, by), in_dims)(*given)


def _vmap_of_jvp(p: _Point) -> Any:
    batch = tuple(torch.stack([t, 2 * t]) for t in p.tangents)
    return torch.func.vmap(lambda *t: torch.func.jvp(p.only, p.wanted, t)[1])(*batch)


def _grad_of_vmap(p: _Point) -> Any:
    batch = tuple(torch.stack([x, x * 0.5]) for x in p.wanted)

    def inner(*wanted: Tensor) -> Tensor:
        return torch.func.vmap(p.loss)(*wanted).sum()

    return torch.func.grad(inner, p.all)(*batch)


TRANSFORMS: dict[str, Callable[[_Point], Any]] = {
    "grad": _grad,
    "vjp": _vjp,
    "jvp": _jvp,
    "jvp, one input at a time": _jvp_each,
    "jacrev": _jacrev,
    "jacfwd": _jacfwd,
    "hessian": _hessian,
    "linearize": _linearize,
    "forward AD": _forward_ad,
    "grad of grad": _grad_of_grad,
    "jvp of grad": _jvp_of_grad,
    "grad of jvp": _grad_of_jvp,
    "jvp of jvp": _jvp_of_jvp,
    "jacfwd of jacrev": _jacfwd_of_jacrev,
    "backward of grad": _backward_of_grad,
    "vmap of grad (per-sample gradients)": _vmap_of_grad,
    "vmap of grad, over constants too": _vmap_of_grad_and_constants,
    "vmap of grad, for a batch of none": _vmap_of_grad_of_none,
    "vmap of jvp": _vmap_of_jvp,
    "grad of vmap": _grad_of_vmap,
}


def _pack_nothing(tensor: Tensor) -> Any:
    raise RuntimeError("forward mode saves a tensor for backward, through the caller's hooks")


def _hooked(transform: Callable[[_Point], Any]) -> Callable[[_Point], Any]:
    """Forward mode under hooks for saved tensors, which are none of its business."""

    def run(p: _Point) -> Any:
        with saved_tensors_hooks(_pack_nothing, _pack_nothing):
            return transform(p)

    return run


def _checkpointed(p: _Point, **options: Any) -> _Point:
    """The function computed again in the backward."""

    def function(*inputs: Tensor) -> tuple[Tensor, ...]:
        return checkpoint(p.function, *inputs, **{"use_reentrant": False, **options})

    return dataclasses.replace(p, function=function)


def _doubled(p: _Point) -> tuple[Tensor, ...]:
    return tuple(torch.stack([x, x * 0.5]) for x in p.wanted)


def _jvp_of_vmap(p: _Point) -> Any:
    batch = _doubled(p)
    return torch.func.jvp(torch.func.vmap(p.only), batch, tuple(x.cos() for x in batch))


def _linearize_of_vmap(p: _Point) -> Any:
    batch = _doubled(p)
    linear = torch.func.linearize(torch.func.vmap(p.only), *batch)[1]
    return linear(*[x.cos() for x in batch])


def _forward_ad_of_vmap(p: _Point) -> Any:
    with fwAD.dual_level():
        duals = [fwAD.make_dual(x, x.cos()) for x in _doubled(p)]
        unpacked = [fwAD.unpack_dual(o) for o in torch.func.vmap(p.only)(*duals)]
    return [
        (u.primal, torch.zeros_like(u.primal) if u.tangent is None else u.tangent) for u in unpacked
    ]


def _backward(p: _Point) -> Any:
    leaves = [x.detach().clone().requires_grad_() for x in p.wanted]
    pairs = [(o, c) for o, c in zip(p.only(*leaves), p.cotangents, strict=True) if o.requires_grad]
    if pairs:
        torch.autograd.backward([o for o, _ in pairs], [c for _, c in pairs])
    return [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves]


def _backward_of_reentrant_checkpoint(p: _Point) -> Any:
    # PyTorch refuses that of a function without a derivative, such as a count.
    outputs = p.only(*[x.detach().clone().requires_grad_() for x in p.wanted])
    is_differentiable = any(o.requires_grad for o in outputs)
    return _backward(_checkpointed(p, use_reentrant=is_differentiable))


def _backward_of_selective_checkpoint(p: _Point) -> Any:
    """By turns, results are kept and computed again."""
    results = []
    for keep in (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE):

        def policy(
            ctx: Any, op: Any, *args: Any, keep: CheckpointPolicy = keep, **kwargs: Any
        ) -> CheckpointPolicy:
            is_view = any(value.alias_info is not None for value in op._schema.returns)
            return CheckpointPolicy.PREFER_RECOMPUTE if is_view else keep

        context_fn = functools.partial(create_selective_checkpoint_contexts, policy)
        results.append(_backward(_checkpointed(p, context_fn=context_fn)))
    return results


def _backward_with_hooks(p: _Point) -> Any:
    """Saved tensors are put elsewhere, as a copy, and come back as another."""
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> int:
        packed.append(tensor.detach().clone())
        return len(packed) - 1

    with saved_tensors_hooks(pack, lambda index: packed[index].clone()):
        return _backward(p)


def _backward_with_save_on_cpu(p: _Point) -> Any:
    with save_on_cpu():
        return _backward(p)


# What happens to the tensors that are saved for backward.
_SAVING: dict[str, Callable[[_Point], Any]] = {
    "backward with saved-tensor hooks": _backward_with_hooks,
    "backward with save_on_cpu": _backward_with_save_on_cpu,
    "backward of a checkpoint": lambda p: _backward(_checkpointed(p)),
    "backward of a reentrant checkpoint": _backward_of_reentrant_checkpoint,
    "backward of a selective checkpoint": _backward_of_selective_checkpoint,
    "jvp with saved-tensor hooks": _hooked(_jvp),
    "forward AD with saved-tensor hooks": _hooked(_forward_ad),
    "jvp of vmap with saved-tensor hooks": _hooked(_jvp_of_vmap),
    "jvp of vmap of a checkpoint": lambda p: _jvp_of_vmap(_checkpointed(p)),
    "jvp of jvp of a checkpoint": lambda p: _jvp_of_jvp(_checkpointed(p)),
    "linearize of vmap of a checkpoint": lambda p: _linearize_of_vmap(_checkpointed(p)),
    "forward AD of vmap of a checkpoint": lambda p: _forward_ad_of_vmap(_checkpointed(p)),
}
# Dynamo traces none of these: linearize traces itself, duals do not leave their level, and
# torch.autograd.grad is for the outermost level alone.
_NOT_COMPILED = ("linearize", "forward AD", "backward of grad")
_COMPILED_FIRST = ("grad", "jvp", "vmap of grad (per-sample gradients)")


def _points(case: Case, other: Case) -> tuple[_Point, _Point]:
    """Where transforms of a case and of its reference are taken: one place, the same directions.

    The other case is the same call with other values.
    """

    def floating(function: Callable[..., Sequence[Tensor]]) -> _Function:
        return lambda *inputs: tuple(o for o in function(*inputs) if is_differentiable(o))

    inputs = [t.detach() for t in case.tensors]
    function = floating(case)
    with case.explain("forward", see="kernel"):
        cotangents = random_like(function(*inputs))
    tangents = random_like((inputs[i] for i in case.wanted), seed=3)
    wanted = tuple(case.wanted)
    others = [t.detach() for t in other.tensors]
    return (
        _Point(function, tuple(inputs), wanted, tuple(cotangents), tuple(tangents), tuple(others)),
        _Point(
            floating(case.expected),
            tuple(to_float64(inputs)),
            wanted,
            tuple(to_float64(cotangents)),
            tuple(to_float64(tangents)),
            tuple(to_float64(others)),
        ),
    )


def _agree_transformed(case: Case, other: Case, name: str, *, compiled: bool = False) -> None:
    point, expected_point = _points(case, other)
    transform = (TRANSFORMS | _SAVING)[name]
    what = f"{name} inside torch.compile(fullgraph=True)" if compiled else name
    with warnings.catch_warnings():
        # That a batching rule is missing is for check_vmap to say.
        warnings.simplefilter("ignore")
        try:
            with case.explain(what, see="backward"):
                results = _compiled(transform, point) if compiled else transform(point)
        except CheckError:
            if compiled and not _is_traceable(transform, _plain(point)):
                return
            raise
        try:
            expected = tensors_in(transform(expected_point))
        except IndexError:
            # PyTorch has no product of a batch of no numbers. There are none to compare.
            if transform is not _vmap_of_grad_of_none:
                raise
            by = [expected_point.wanted[k] for k in _of_dimensions(expected_point)]
            expected = [x.new_empty(0, *x.shape) for x in by]
    case.compare(tensors_in(results), expected, what, order=2, see="backward")


def _compiled(transform: Callable[[_Point], Any], point: _Point) -> Any:
    def run(*inputs: Tensor) -> Any:
        return transform(dataclasses.replace(point, inputs=inputs))

    with fresh_compiler():
        return torch.compile(run, backend="aot_eager", fullgraph=True)(*point.inputs)


def _plain(point: _Point) -> _Point:
    """The same with PyTorch's own operators, to ask whether a transform can do it at all."""

    def function(*inputs: Tensor) -> tuple[Tensor, ...]:
        total = torch.stack([t.sin().sum() for t in inputs if is_differentiable(t)]).sum()
        return tuple(total * cotangent for cotangent in point.cotangents)

    return dataclasses.replace(point, function=function)


def _is_traceable(transform: Callable[[_Point], Any], point: _Point) -> bool:
    """Whether Dynamo traces a transform.

    That depends on how many inputs and outputs there are: in torch 2.11, jacfwd over more than one
    input, and jacrev of more than one output, read sizes from a tensor, which Dynamo refuses.
    """
    if not _works(transform, point):
        return True  # an error has left something behind
    return _works(functools.partial(_compiled, transform), point)


def _works(transform: Callable[[_Point], Any], point: _Point) -> bool:
    try:
        transform(point)
    except Exception:
        return False
    return True


def _differentiable_cases(
    spec: OpSpec, device: str, *, thorough: bool
) -> Iterator[tuple[Case, Case]]:
    """Pairs of the same call with different values, of which the first is the one to look at."""
    found, others = (
        mostly_op_cases(
            spec,
            device,
            finest_dtype(spec),
            main_shape(spec, max_dim=2),
            thorough=thorough,
            where=lambda case: case.wanted,
            seed=seed,
        )
        for seed in range(2)
    )
    return zip(found, others, strict=True)


@register(applies=differentiable)
def check_transforms(spec: OpSpec, device: str, *, thorough: bool = False) -> None:
    """Every transform, nested ones too, against the same transform of the reference.

    Args:
        spec: the operator.
        device: the type of device.
        thorough: every sample through the public function, too.
    """
    for case, other in _differentiable_cases(spec, device, thorough=thorough):
        for name in TRANSFORMS:
            _agree_transformed(case, other, name)


@register(applies=differentiable)
def check_saved_tensors(spec: OpSpec, device: str, *, thorough: bool = False) -> None:
    """Checkpoints, and hooks for the tensors that are saved for backward, change no derivative.

    Forward mode saves none: the hooks see nothing, and checkpoints can be nested in it.

    Args:
        spec: the operator.
        device: the type of device.
        thorough: every sample through the public function, too.
    """
    for case, other in _differentiable_cases(spec, device, thorough=thorough):
        for name, transform in _SAVING.items():
            # Whether transforms nest around a checkpoint is up to PyTorch: not yet in torch 2.11.
            if _works(transform, _plain(_points(case, other)[0])):
                _agree_transformed(case, other, name)


@register(applies=differentiable)
def check_compiled_transforms(spec: OpSpec, device: str, *, thorough: bool = False) -> None:
    """Transforms inside `torch.compile(fullgraph=True)`.

    Args:
        spec: the operator.
        device: the type of device.
        thorough: every transform that Dynamo traces and every sample, rather than three of one.
            (And of these one for the operator, which the public function calls.)
    """
    found = _differentiable_cases(spec, device, thorough=thorough)
    for i, (case, other) in enumerate(found if thorough else itertools.islice(found, 2)):
        names = _COMPILED_FIRST[: 1 if i else None]
        if thorough:
            names = tuple(name for name in TRANSFORMS if name not in _NOT_COMPILED)
        for name in names:
            _agree_transformed(case, other, name, compiled=True)


@register()
def check_vmap(spec: OpSpec, device: str, *, thorough: bool = False) -> None:
    """`vmap` over any argument and dimension, nested; not by PyTorch's loop over the examples.

    A batch of none gives results of the same shapes and dtypes, without elements.

    Args:
        spec: the operator.
        device: the type of device.
        thorough: every sample through the public function, too, and nested in both shapes.
    """
    dtype = finest_dtype(spec)
    for i, shape in enumerate(dict.fromkeys([main_shape(spec, max_dim=2), main_shape(spec)])):
        # The same calls with different values: what a batch consists of.
        by_seed = [
            mostly_op_cases(
                spec, device, dtype, shape, thorough=thorough, requires_grad=False, seed=seed
            )
            for seed in range(7)
        ]
        for batch in zip(*by_seed, strict=True):
            for subset in _subsets(batch[0]):
                for in_dims in _places(batch[0], subset):
                    _check_vmap_over(batch, subset, in_dims)
            if not any(batch[0].written) and (thorough or i == 0):
                for outer, inner in itertools.product(range(len(batch[0].tensors)), repeat=2):
                    _check_nested_vmap(batch, outer, inner)


def _subsets(case: Case) -> list[tuple[int, ...]]:
    """Which tensors to batch: any combination of up to three, each and all of more."""
    count = len(case.tensors)
    sizes = range(1, count + 1) if count <= 3 else (1, count)
    subsets = [s for size in sizes for s in itertools.combinations(range(count), size)]
    # A batch of values cannot be written to an argument that has no batch dimension.
    must = set(itertools.compress(range(count), case.written))
    return [subset for subset in subsets if must <= set(subset)]


def _places(case: Case, subset: tuple[int, ...]) -> list[tuple[int | None, ...]]:
    """Where the batched tensors have their batch dimension: first, last, or by turns."""
    found = []
    for place in ("first", "last", "mixed"):
        in_dims: list[int | None] = [None] * len(case.tensors)
        for n, i in enumerate(subset):
            last = place == "last" or (place == "mixed" and n % 2 == 0)
            in_dims[i] = case.tensors[i].dim() if last else 0
        found.append(tuple(in_dims))
    return list(dict.fromkeys(found))


def _check_vmap_over(
    batch: Sequence[Case], subset: tuple[int, ...], in_dims: tuple[int | None, ...]
) -> None:
    case = batch[0]
    over = ", ".join(case.names[i] for i in subset)
    doing = f"vmap over {over} with in_dims {in_dims}"
    counts = []
    for size in (2, 7):
        inputs = [
            t if dim is None else torch.stack([c.tensors[i] for c in batch[:size]], dim)
            for i, (t, dim) in enumerate(zip(case.tensors, in_dims, strict=True))
        ]
        recorder = Recorder(case.spec.namespace)
        with case.explain(doing), warnings.catch_warnings(), recorder:
            warnings.simplefilter("ignore")
            outputs = torch.func.vmap(case, in_dims)(*inputs)
        counts.append(Counter(op for op, _, _ in recorder.calls))
        expected = []
        for example in batch[:size]:
            chosen = [
                t if dim is None else example.tensors[i]
                for i, (t, dim) in enumerate(zip(case.tensors, in_dims, strict=True))
            ]
            expected.append(case.expected(*to_float64(chosen)))
        case.compare(outputs, _stack(expected), doing, see="python")
    for op, count in counts[1].items():
        if count != counts[0][op] and not _may_loop(case.spec, op):
            case.fail(
                f"{doing}: {counts[0][op]} calls for a batch of 2, {count} for one of 7",
                detail="Without a batching rule PyTorch falls back to a loop: register_vmap.",
            )
    empty = [
        t if dim is None else t.narrow(dim, 0, 0) for t, dim in zip(inputs, in_dims, strict=True)
    ]
    with case.explain(f"{doing}, a batch of none,"):
        got = [(o.shape, o.dtype) for o in torch.func.vmap(case, in_dims)(*empty)]
    wanted = [((0, *o.shape[1:]), o.dtype) for o in outputs]
    if got != wanted:
        case.fail(f"{doing}, a batch of none", detail=f"expected: {wanted}\ngot:      {got}")


def _may_loop(spec: OpSpec, op: Any) -> bool:
    """Whether there is a rule, and it may call the operator for each example: see by_example."""
    line = spec.lines.get(op._schema.name)
    follows = line is not None and line.notation.joins_batches
    return has_kernel(op.name(), "FuncTorchBatched") and not follows


def _check_nested_vmap(batch: Sequence[Case], outer: int, inner: int) -> None:
    """Two by two: the outer in the first dimension of a tensor, the inner in the last of another.

    Or of the same.
    """
    case = batch[0]
    count = len(case.tensors)
    outer_dims = tuple(0 if i == outer else None for i in range(count))
    inner_dims = tuple(t.dim() if i == inner else None for i, t in enumerate(case.tensors))

    def value(i: int, a: int, b: int) -> Tensor:
        return batch[(2 * a if i == outer else 0) + (b if i == inner else 0)].tensors[i]

    inputs = []
    for i in range(count):
        grid = [[value(i, a, b) for b in range(2)] for a in range(2)]
        rows = [torch.stack(row, -1) if i == inner else row[0] for row in grid]
        inputs.append(torch.stack(rows) if i == outer else rows[0])
    doing = f"vmap over {case.names[outer]} of vmap over {case.names[inner]}"
    with case.explain(doing), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs = torch.func.vmap(torch.func.vmap(case, inner_dims), outer_dims)(*inputs)
    expected = [
        _stack([case.expected(*to_float64(value(i, a, b) for i in range(count))) for b in range(2)])
        for a in range(2)
    ]
    case.compare(outputs, _stack(expected), doing, see="python")


def _stack(results: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [torch.stack(list(values)) for values in zip(*results, strict=True)]

"""Checks of fake kernels: opcheck, and the strides that kernel and fake kernel agree on."""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from extension_cpp.battery.calls import op_cases
from extension_cpp.battery.case import Case
from extension_cpp.battery.choices import (
    default_dtype,
    layout_dtypes,
    layout_shapes,
    main_shape,
    small_shapes,
    tiny_shapes,
)
from extension_cpp.battery.failure import fail, op_name
from extension_cpp.battery.layouts import is_dense, same_strides
from extension_cpp.battery.registry import register
from extension_cpp.battery.spec import OpSpec
from extension_cpp.battery.surroundings import fresh_compiler
from extension_cpp.battery.tensors import as_leaves, gradients, random_like
from extension_cpp.registration.signature import is_differentiable, is_float8

_UNTRACED = ("test_schema", "test_autograd_registration", "test_faketensor")
_DYNAMIC, _STATIC = "test_aot_dispatch_dynamic", "test_aot_dispatch_static"
_TRACED = ("contiguous", "transposed")


@register()
def check_opcheck(spec: OpSpec, device: str, *, thorough: bool = False) -> None:
    """`torch.library.opcheck`, for operator and backward, in every layout.

    Its tests of traced graphs, which take nearly all of the time, see every kind of call of the
    main shape; and one kind of call of every operator in another order, of no elements and of one:
    check_compile makes graphs in one layout of each kind, and of all such sizes. Graphs whose sizes
    are symbols, which take several times as long, see that one of the main shape alone:
    check_dynamic makes them of every sample.

    Args:
        spec: the operator.
        device: the type of device.
        thorough: all of its tests for every call.
    """
    dtype, main, tiny = default_dtype(spec), main_shape(spec), tiny_shapes(spec)
    # Of no elements, and of one, the first.
    by_size = {math.prod(shape): shape for shape in reversed(tiny)}
    # By operator, as calls of the main shape tell: where there is nothing to differentiate, nothing
    # is refused.
    has_formula: dict[Any, bool] = {}
    for shape in [main, *tiny]:
        seen = set()
        for case in op_cases(spec, device, dtype, shape):
            # Every layout for one kind of call of every operator.
            first = case.op not in seen
            seen.add(case.op)
            with torch.no_grad():
                results = case(*case.tensors)
            # Results are compared with NaN unequal to itself, which is what the mean of nothing is.
            comparable = not any(o.isnan().any() for o in results)
            # Which PyTorch cannot compare: opcheck looks at schemas by what arguments held before.
            has_float8 = any(map(is_float8, (*case.tensors, *results)))
            if case.op not in has_formula:
                is_asked = any(case.written) or (_adds_up(results) and _has_formula(case))
                has_formula[case.op] = is_asked
            if not has_formula[case.op]:
                case = case.laid_out("", [t.detach() for t in case.tensors])
            for laid_out in case.layouts():
                contiguous = laid_out.layout == "contiguous"
                if not contiguous and not (first and shape == main):
                    continue
                traced = shape == main or (first and shape in by_size.values())
                traced = traced and laid_out.layout in _TRACED
                # Sizes of 0 and 1 are constants of such graphs, too.
                symbolic = first and shape == main and traced
                tests = list(_UNTRACED)
                if has_float8:
                    tests.remove("test_schema")
                if comparable and (thorough or traced):
                    tests.append(_STATIC)
                if comparable and (thorough or symbolic):
                    tests.append(_DYNAMIC)
                sample = laid_out.bind(laid_out.tensors)
                with (
                    fresh_compiler(),
                    warnings.catch_warnings(),
                    laid_out.explain("opcheck", see="fake"),
                ):
                    warnings.simplefilter("ignore")
                    torch.library.opcheck(case.op, sample.args, sample.kwargs, test_utils=tests)


def _adds_up(results: Sequence[Tensor]) -> bool:
    """Whether opcheck can add them up, in the dtype of the first, for their gradients.

    Other checks look at the graphs of those of which it cannot.
    """
    first, *rest = map(is_differentiable, results)
    return (first or not any(rest)) and not any(map(is_float8, results))


def _has_formula(case: Case) -> bool:
    """Whether gradients can be asked of an operator; one without a formula says so itself."""
    inputs = as_leaves(case.tensors)
    wanted = [t for t in inputs if t.requires_grad]
    if not wanted:
        return True
    try:
        outputs = [o for o in case(*inputs) if o.requires_grad]
        if outputs:
            gradients(outputs, wanted, random_like(outputs))
    except RuntimeError as error:
        if case.op._schema.name.split("::")[1] in str(error):
            return False
        raise
    return True


@register()
def check_strides(spec: OpSpec, device: str, *, thorough: bool = False) -> None:
    """Kernel and fake kernel agree on the outputs' shapes, strides and dtypes, in every layout.

    And the strides follow one of the two rules: those of dense inputs that agree on them
    (elementwise operators), or freshly contiguous.

    Args:
        spec: the operator.
        device: the type of device.
        thorough: every shape in both dtypes, rather than one in the second; every layout of each,
            rather than of one of each kind; and in more of them, and in the second dtype too, those
            of one tensor at a time.
    """
    every = [shape for shape in spec.shapes if math.prod(shape) <= 10000]
    main = main_shape(spec)
    # Where strides mean something, and where those of a size of one mean nothing.
    ones = [shape for shape in small_shapes(spec) if 1 in shape and math.prod(shape) > 1]
    alone = layout_shapes(spec) if thorough else [main, *ones]
    # By operator and output, the first call that breaks the rule.
    not_elementwise: dict[Any, str] = {}
    not_contiguous: dict[Any, str] = {}
    for dtype in layout_dtypes(spec):
        every_way = thorough or dtype == default_dtype(spec)
        for shape in every if every_way else [main]:
            for case in op_cases(spec, device, dtype, shape):
                # A tensor that stays as it is in several layouts is made fake once.
                mode = FakeTensorMode()
                fake_of = functools.cache(lambda t, mode=mode: mode.from_tensor(_of_its_own(t)))
                case = case.laid_out("", [t.detach() for t in case.tensors])
                # Others are there for the loops in a kernel, which allocate nothing.
                count = None if thorough or shape in layout_shapes(spec) else 1
                each = every_way and shape in alone
                for laid_out in itertools.islice(case.layouts(each=each), count):
                    outputs = laid_out.outputs_only(_compare_with_fake(laid_out, fake_of, mode))
                    for i, output in enumerate(outputs):
                        call = f"{laid_out} gives strides {output.stride()}"
                        if not _keeps_layout(output, laid_out.tensors):
                            not_elementwise.setdefault((case.op, i), call)
                        if not _is_fresh(output):
                            not_contiguous.setdefault((case.op, i), call)
    for op, i in not_elementwise.keys() & not_contiguous.keys():
        fail(
            spec,
            f"the strides of output {i} of {op_name(op)} follow neither rule",
            detail=f"not freshly contiguous: {not_contiguous[op, i]}\n"
            f"not the layout of dense inputs that agree on it: {not_elementwise[op, i]}",
            see="fake",
            device=device,
        )


def _of_its_own(t: Tensor) -> Tensor:
    """The same memory as no view, of which it takes a third of the time to make a fake."""
    whole = torch.empty(0, dtype=t.dtype, device=t.device)
    return whole.set_(t.untyped_storage(), t.storage_offset(), t.shape, t.stride())


def _compare_with_fake(
    case: Case, fake_of: Callable[[Tensor], Tensor], mode: FakeTensorMode
) -> tuple[Tensor, ...]:
    with torch.no_grad():
        with case.explain("the kernel", see="kernel"):
            outputs = case(*case.copies(), in_place=True)
        inputs = [fake_of(t) for t in case.tensors]
        with mode, case.explain("the fake kernel", see="fake"):
            fakes = case(*inputs, in_place=True)
    if len(outputs) != len(fakes):
        case.fail(f"{len(outputs)} outputs, {len(fakes)} from the fake kernel", see="fake")
    for i, (output, fake) in enumerate(zip(outputs, fakes, strict=True)):
        for what, got, faked in (
            ("shape", tuple(output.shape), tuple(fake.shape)),
            ("dtype", output.dtype, fake.dtype),
            ("device", output.device, fake.device),
            ("strides", output.stride(), fake.stride()),
            ("storage offset", output.storage_offset(), fake.storage_offset()),
        ):
            # Strides of size-one dimensions mean nothing: PyTorch's own empty_like differs there.
            if got != faked and not (what == "strides" and same_strides(output, fake)):
                case.fail(
                    f"kernel and fake kernel disagree on the {what} of output {i}",
                    detail=f"kernel: {got}\nfake:   {faked}",
                    see="fake",
                )
    return outputs


def _is_fresh(output: Tensor) -> bool:
    return same_strides(output, torch.empty(output.shape, device="meta"))


def _keeps_layout(output: Tensor, inputs: tuple[Tensor, ...]) -> bool:
    dense = [t for t in inputs if t.shape == output.shape and is_dense(t)]
    if not dense or not all(same_strides(t, dense[0]) for t in dense):
        return _is_fresh(output)
    # Inputs that are broadcast or not dense may, but need not, count as disagreeing.
    return same_strides(output, dense[0]) or (len(dense) < len(inputs) and _is_fresh(output))

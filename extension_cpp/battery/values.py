"""Checks of values: forward, backward, in every layout, for whatever hypothesis thinks of."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import torch
from torch import Tensor

from extension_cpp.battery.calls import cases, mostly_op_cases, op_cases, samples
from extension_cpp.battery.case import Case, op_case, public_case
from extension_cpp.battery.choices import (
    default_dtype,
    finest_dtype,
    layout_dtypes,
    layout_shapes,
    main_shape,
    small_shapes,
)
from extension_cpp.battery.failure import fail
from extension_cpp.battery.layouts import LAYOUTS, strided
from extension_cpp.battery.registry import differentiable, register
from extension_cpp.battery.spec import OpSpec
from extension_cpp.battery.surroundings import poisoned
from extension_cpp.battery.tensors import to_float64
from extension_cpp.registration import references
from extension_cpp.registration.signature import is_differentiable

_FINEST = (torch.float64, torch.complex128)


@register(per_dtype=True)
def check_forward(spec: OpSpec, device: str, dtype: torch.dtype) -> None:
    """Every shape against the reference in float64; with NaN, infinities and signed zeros too.

    Large numbers overflow nowhere that PyTorch's own do not.
    """
    count = 0
    for shape, specials in itertools.product(spec.shapes, (False, True)):
        options = {"requires_grad": False, "specials": specials}
        for case in cases(spec, device, dtype, shape, **options):
            with poisoned():
                case.agree()
            count += 1
    if not count:
        fail(
            spec,
            "samples() yields nothing for any of the spec's shapes",
            detail="Shapes that it takes are given by shapes= of OpSpec.",
            see="spec",
        )
    for case in cases(spec, device, dtype, main_shape(spec), requires_grad=False, large=True):
        case.stay_finite()
    # The public function's outputs have the dtypes of the reference on the same inputs. Of float64
    # the reference is in float64, whatever the line says of an output.
    said = {shape.dtype for shape in spec.line.notation.outputs} if spec.line else set()
    for sample in samples(spec, device, dtype, main_shape(spec), requires_grad=False):
        case = public_case(spec, device, dtype, sample)
        got = [o.dtype for o in case(*case.tensors)]
        try:
            expected = [o.dtype for o in case.expected(*case.tensors)]
        except RuntimeError:
            continue  # as in stay_finite()
        pairs = itertools.zip_longest(got, expected)
        if any(
            a != e and not (dtype == torch.float64 and a in said and e in _FINEST) for a, e in pairs
        ):
            case.fail(f"the outputs' dtypes are {got}, the reference's {expected}", see="kernel")


@register(per_dtype=True, applies=differentiable)
def check_backward(spec: OpSpec, device: str, dtype: torch.dtype) -> None:
    """Gradients over every shape, against those of the reference in float64."""
    for shape in spec.shapes:
        for case in cases(spec, device, dtype, shape):
            with poisoned():
                case.agree(order=case.order)
    for case in cases(spec, device, dtype, main_shape(spec), large=True):
        case.stay_finite()


@register(per_dtype=True, applies=differentiable)
def check_double_backward(spec: OpSpec, device: str, dtype: torch.dtype) -> None:
    """Gradients of gradients over small shapes, against those of the reference in float64."""
    for shape in small_shapes(spec):
        for case in cases(spec, device, dtype, shape):
            with poisoned():
                case.agree(order=2 * case.order)


@register(per_dtype=True, applies=differentiable)
def check_references(spec: OpSpec, device: str, dtype: torch.dtype) -> None:
    """Operators of the backward against the references that give them their derivatives."""
    for shape in small_shapes(spec):
        for case in op_cases(spec, device, dtype, shape):
            if case.op.name() not in references:
                continue
            sample = case.bind(case.copies())
            with torch.no_grad(), case.explain("the reference", see="backward"):
                output = case.op(*sample.args, **sample.kwargs)
                found = references[case.op.name()].pairs(output, sample.args, sample.kwargs)
                pairs = [(v, e.double()) for v, e in found if v is not None and e is not None]
            what = f"{case.label}, of which a reference gives the derivative,"
            case.compare([v for v, _ in pairs], [e for _, e in pairs], what, see="backward")


@register(applies=differentiable)
def check_wanted(spec: OpSpec, device: str) -> None:
    """Gradients of first and second order of some of the inputs, where the others want none.

    Formulas and operators of the backward leave out what nobody asks for. The outputs' gradients
    are constants by turns, as in a gradient penalty.
    """
    for case in cases(spec, device, finest_dtype(spec), main_shape(spec, max_dim=2)):
        every = case.wanted
        some = [
            set(subset) for n in (1, len(every) - 1) for subset in itertools.combinations(every, n)
        ]
        for wanted in [set(every), *(subset for subset in some if subset)]:
            partial = case.with_gradients(wanted)
            for constant in (False, True):
                partial.agree(order=2, constant_cotangents=constant)


@register(per_dtype=True)
def check_layouts(spec: OpSpec, device: str, dtype: torch.dtype, *, thorough: bool = False) -> None:
    """Forward and backward for inputs, and for gradients of the outputs, in every layout.

    In two of the dtypes also where the inputs' layouts differ, which no dtype is asked about.

    Args:
        spec: the operator.
        device: the type of device.
        dtype: the inputs'.
        thorough: every kind of shape in the other dtypes, rather than two, and where layouts differ
            in the second; and of the public function every layout of every sample, rather than, of
            those after the first, two.
    """
    each = dtype in layout_dtypes(spec)
    every = layout_shapes(spec)
    two = list(dict.fromkeys([main_shape(spec), *every[-1:]]))
    for shape in every if each or thorough else two:
        # Of no elements, and of one, all layouts are one but for where they start.
        some = two if dtype != default_dtype(spec) else [s for s in every if math.prod(s) > 1]
        alone = each and (thorough or shape in some)
        for case in mostly_op_cases(spec, device, dtype, shape, thorough=thorough):
            for laid_out in case.layouts(each=alone):
                laid_out.agree(order=case.order)
            for name in _layouts_of_results(case) if case.order else ():
                named = case.laid_out(f"gradient of the output {name}", case.tensors)
                named.agree(order=1, cotangent_layout=LAYOUTS[name])
        for sample in samples(spec, device, dtype, shape)[1:] if not thorough else ():
            case = public_case(spec, device, dtype, sample)
            for laid_out in case.layouts():
                if laid_out.layout in ("transposed", "sliced with a step"):
                    laid_out.agree(order=case.order)
    # What an operator of the backward gives must not depend on the layout either.
    for case in op_cases(spec, device, dtype, main_shape(spec)):
        if case.op is spec.op:
            continue
        for laid_out in case.layouts(each=each):
            with torch.no_grad():
                contiguous = [
                    t.detach().clone(memory_format=torch.contiguous_format)
                    for t in laid_out.tensors
                ]
                expected = to_float64(case(*contiguous, in_place=True))
                with laid_out.explain(case.label, see="kernel"):
                    actual = laid_out(*laid_out.copies(), in_place=True)
            laid_out.compare(
                actual, expected, f"{case.label}, of which contiguous copies are the reference,"
            )


def _layouts_of_results(case: Case) -> list[str]:
    """Those other than contiguous that apply to some result, each once, as in `Case.layouts`."""
    with torch.no_grad():
        results = [torch.empty(o.shape, device="meta") for o in case(*case.tensors)]
    names: dict[Any, str] = {}
    for name, layout in LAYOUTS.items():
        laid_out = [new if (new := layout(t)) is not None else t for t in results]
        names.setdefault(tuple((t.stride(), t.storage_offset()) for t in laid_out), name)
    return [name for name in names.values() if name != "contiguous"]


@register(applies=differentiable)
def check_gradcheck(spec: OpSpec, device: str, *, thorough: bool = False) -> None:
    """Derivatives of both modes and orders, and batched, against finite differences in float64.

    Of results that are infinite, as what is masked may be, there are no differences: they are taken
    for constants.

    Args:
        spec: the operator.
        device: the type of device.
        thorough: every sample through the public function, too, and in two layouts.
    """
    if torch.float64 not in spec.dtypes:
        return
    # It draws from the global generator of the device, and torch.manual_seed seeds those of all.
    devices = [torch.cuda.current_device()] if device == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(0)
        for index in devices:
            torch.cuda.default_generators[index].manual_seed(0)
        shape = main_shape(spec, max_dim=2)
        found = mostly_op_cases(spec, device, torch.float64, shape, thorough=thorough)
        for i, case in enumerate(found):
            for laid_out in itertools.islice(case.layouts(), 2 if thorough or i == 0 else 1):
                _gradcheck(laid_out)


def _gradcheck(case: Case) -> None:
    inputs = tuple(case.copies())
    if not case.wanted:
        return
    with torch.no_grad():
        has_infinities = any(o.isinf().any() for o in case(*inputs) if is_differentiable(o))

    def function(*inputs: Tensor) -> tuple[Tensor, ...]:
        results = tuple(o for o in case(*inputs) if is_differentiable(o))
        return tuple(o.where(~o.isinf(), 0) for o in results) if has_infinities else results

    if case.spec.stops_gradients and not _is_slope(case):
        return
    with case.explain("gradcheck", see="backward"):
        torch.autograd.gradcheck(
            function,
            inputs,
            check_forward_ad=True,
            check_batched_grad=True,
            check_batched_forward_grad=True,
        )
    with case.explain("gradgradcheck", see="backward"):
        torch.autograd.gradgradcheck(
            function, inputs, check_fwd_over_rev=True, check_rev_over_rev=True
        )


def _is_slope(case: Case) -> bool:
    """Whether the derivatives of the reference are what finite differences give, to any order."""
    inputs = tuple(case.copies())
    return torch.autograd.gradcheck(case.expected, inputs, raise_exception=False) and (
        torch.autograd.gradgradcheck(case.expected, inputs, raise_exception=False)
    )


@register()
def check_properties(spec: OpSpec, device: str, *, examples: int = 50) -> None:
    """Shapes, strides, offsets, dtypes, values (NaN, infinities too), as hypothesis finds them."""
    import hypothesis
    from hypothesis import strategies as st

    dims = sorted({len(shape) for shape in spec.shapes})
    sizes = st.one_of(st.integers(0, 5), st.sampled_from([8, 15, 17, 33]))

    def lay_out(draw: Any, tensor: Tensor, expand: bool) -> Tensor:
        order = draw(st.permutations(range(tensor.dim())))
        steps = [draw(st.sampled_from([1, 1, 2, 3])) for _ in order]
        result = strided(tensor, order, steps, draw(st.integers(0, 4)))
        for d in range(tensor.dim()):
            if tensor.shape[d] and expand and draw(st.sampled_from([False, False, False, True])):
                result = result.narrow(d, 0, 1).expand(tensor.shape)
        return result.requires_grad_(tensor.requires_grad)

    # The examples are the same in every run: a test that fails once in a while helps nobody.
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
    )
    @hypothesis.given(st.data())
    def run(data: Any) -> None:
        draw = functools.partial(data.draw)
        shape = tuple(draw(sizes) for _ in range(draw(st.sampled_from(dims))))
        dtype = draw(st.sampled_from(spec.dtypes))
        specials = draw(st.booleans())
        found = samples(
            spec, device, dtype, shape, specials=specials, seed=draw(st.integers(0, 1000))
        )
        hypothesis.assume(found)
        sample = found[draw(st.integers(0, len(found) - 1))]
        for make_case in (public_case, op_case):
            case = make_case(spec, device, dtype, sample)
            pairs = zip(case.tensors, case.written, strict=True)
            # Equal values cancel, up to rounding, and zero times infinity is another matter.
            tensors = [lay_out(draw, t, not written and not specials) for t, written in pairs]
            case.laid_out("a layout of hypothesis", tensors).agree(
                order=0 if specials else case.order
            )

    run()

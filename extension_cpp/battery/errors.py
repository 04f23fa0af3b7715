"""Checks of what is refused: bad inputs, and wrong tensors wherever there is one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from extension_cpp.battery.calls import op_cases
from extension_cpp.battery.case import Case, op_case, public_case
from extension_cpp.battery.choices import default_dtype, main_shape
from extension_cpp.battery.expectations import accept, captured_stderr
from extension_cpp.battery.failure import fail
from extension_cpp.battery.registry import register
from extension_cpp.battery.samples import Make
from extension_cpp.battery.spec import OpSpec
from extension_cpp.battery.surroundings import fresh_compiler
from extension_cpp.battery.tensors import tensors_in
from extension_cpp.shapes import other_tensors


@register()
def check_bad_inputs(spec: OpSpec, device: str, *, thorough: bool = False) -> None:
    """One text: from public function, operator, fake kernel, torch.compile, and in the spec.

    Or in place of the spec, from the line of shapes.

    Args:
        spec: the operator.
        device: the type of device.
        thorough: torch.compile for each thing that follows from the line, rather than for one.
    """
    dtype = default_dtype(spec)
    bad_inputs = list(spec.bad_inputs(Make(device, dtype)))
    names = [bad.name for bad in bad_inputs]
    if len(set(names)) < len(names):
        fail(spec, f"two bad inputs have one name: {sorted(names)}", see="spec")
    compiled = set()
    for bad in bad_inputs:
        case = op_case(spec, device, dtype, bad.sample).laid_out(bad.name, ())
        public = public_case(spec, device, dtype, bad.sample).laid_out(bad.name, ())
        with captured_stderr() as printed:
            text = _message(case, case.tensors)
        if printed:
            case.fail("something is printed to stderr", detail="".join(printed), see="kernel")
        mode = FakeTensorMode()
        fakes = [mode.from_tensor(t) for t in case.tensors]
        with mode:
            faked = _message(case, fakes)
        if faked != text:
            case.fail(
                "kernel and fake kernel disagree on the message",
                detail=f"kernel: {text}\nfake:   {faked}",
                see="fake",
            )
        published = _message(public, public.tensors)
        if published != text:
            public.fail(
                "public function and operator disagree on the message",
                detail=f"public:   {published}\noperator: {text}",
            )
        if not text.startswith(spec.name):
            case.fail(
                "the message does not start with the operator's name", detail=text, see="kernel"
            )
        if text != bad.message:
            if bad.follows:
                case.fail(
                    "the message is not the one that follows from the line of shapes",
                    detail=f"expected: {bad.message}\ngot:      {text}",
                    see="kernel",
                )
            if os.environ.get("EXPECTTEST_ACCEPT"):
                accept(case, bad, text)
            else:
                case.fail(
                    "the message is not the one that the spec expects",
                    detail=f"expected: {bad.message}\ngot:      {text}\n"
                    "EXPECTTEST_ACCEPT=1 pytest -k bad_inputs writes it into the spec.",
                    see="kernel",
                )
        _check_batch(case)
        # The many that follow from a line reach torch.compile from the fake kernel, in one way.
        following = text.partition(", got")[0] if thorough else "what follows"
        kind = following if bad.follows else text
        if kind not in compiled:
            compiled.add(kind)
            _check_compiled(case, text)


def _check_compiled(case: Case, text: str) -> None:
    with fresh_compiler():
        compiled = torch.compile(case, backend="eager", fullgraph=True)
        try:
            compiled(*case.tensors, in_place=True)
        except Exception as error:
            if text not in str(error):
                case.fail(
                    "the error of torch.compile does not contain the message",
                    detail=f"expected: {text}\ngot: {error}",
                    see="fake",
                )
        else:
            case.fail("torch.compile does not raise", see="fake")


def _check_batch(case: Case) -> None:
    """As the examples of a batch it fails too: a batching rule must not make it pass for valid.

    Not even where there is no example, unless the layout is what is bad: of memory that is empty.
    """
    if not case.tensors:
        return
    for size in (2, 0) if _is_bad_in_any_layout(case) else (2,):
        batches = [t.detach().expand(size, *t.shape) for t in case.tensors]
        where = f"under vmap over a batch of {size}"
        try:
            torch.vmap(lambda *tensors: case(*tensors, in_place=True))(*batches)
        except RuntimeError as error:
            if case.spec.name not in str(error):
                case.fail(f"{where}, the error does not name the operator", detail=str(error))
        except Exception as error:
            case.fail(f"{where}, raises {type(error).__name__}", detail=str(error))
        else:
            case.fail(f"{where} it does not raise: see first_example in batching.py")


def _is_bad_in_any_layout(case: Case) -> bool:
    """Whether the call fails for contiguous tensors too, by their shapes, dtypes and devices."""
    mode = FakeTensorMode()
    with mode:
        contiguous = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in case.tensors]
        try:
            case(*contiguous, in_place=True)
        except RuntimeError:
            return True
    return False


@register()
def check_wrong_tensors(spec: OpSpec, device: str) -> None:
    """One tensor of a call at a time, of another dtype, device or shape, or None.

    This holds for every operator that the samples reach, those of the backward included. Kernel and
    fake kernel both take it, and give the same shapes and strides; or both raise one text, which
    starts with the name of the operator that was called. A kernel alone may refuse what the line of
    shapes takes, for integers in a tensor that say no place in another.
    """

    def of(shape: Sequence[int], *, dtype: torch.dtype) -> Tensor:
        return torch.ones(shape, dtype=dtype, device=device)

    for case in op_cases(spec, device, default_dtype(spec), main_shape(spec)):
        for i, tensor in enumerate(case.tensors):
            for how, other in other_tensors(tensor, of):
                # PyTorch needs a tensor to know the backend by, and none is missing from a list.
                if other is None and (len(case.tensors) == 1 or "[" in case.names[i]):
                    continue
                inputs = [t.detach() for t in case.copies()]
                changed = case.laid_out(f"{case.names[i]} {how}", case.tensors)
                _check_wrong(changed, [*inputs[:i], other, *inputs[i + 1 :]])
        if len(case.tensors) > 1:
            _check_wrong_device(case)


def _check_wrong(case: Case, inputs: Sequence[Tensor | None]) -> None:
    mode = FakeTensorMode()
    fakes = [None if t is None else mode.from_tensor(t) for t in inputs]
    got = _outcome(case, inputs, "kernel")
    with mode:
        faked = _outcome(case, fakes, "fake kernel")
    line = case.spec.lines.get(case.op._schema.name)
    said = None
    if line is not None:
        sample = case.bind(inputs)
        try:
            line.check(*sample.args, **sample.kwargs)
        except RuntimeError as error:
            said = str(error)
        # Kernels may refuse more than a line can say: for the values of numbers, and of integers in
        # tensors, which fake ones do not have.
        if said is None and not isinstance(faked, str) and _is_about_integers(case, inputs, got):
            return
    if got != faked:
        case.fail(
            "kernel and fake kernel disagree on an input that may be wrong",
            detail=f"kernel: {got}\nfake:   {faked}",
            see="fake",
        )
    if said is not None and said != got:
        case.fail(
            "kernel and line of shapes disagree on an input that may be wrong",
            detail=f"kernel: {got}\nline:   {said}",
            see="kernel",
        )


def _is_about_integers(case: Case, inputs: Sequence[Tensor | None], got: object) -> bool:
    """Whether a message begins with the name of a tensor of integers."""
    op = case.op._schema.name.split("::")[1]
    return isinstance(got, str) and any(
        got.startswith(f"{op}: {name} ")
        for name, tensor in zip(case.names, inputs, strict=True)
        if tensor is not None and not (tensor.is_floating_point() or tensor.is_complex())
    )


def _check_wrong_device(case: Case) -> None:
    """Fake tensors are on whatever device one says, so that one kind of device is enough."""
    mode = FakeTensorMode()
    elsewhere = "cuda" if case.device == "cpu" else "cpu"
    for i, name in enumerate(case.names):
        changed = case.laid_out(f"{name} on {elsewhere}", case.tensors)
        with mode:
            inputs = [
                torch.empty(t.shape, dtype=t.dtype, device=elsewhere if j == i else case.device)
                for j, t in enumerate(case.tensors)
            ]
            # A number may be on any.
            if inputs[i].dim() and not isinstance(_outcome(changed, inputs, "fake kernel"), str):
                changed.fail("tensors on two devices are taken for valid", see="fake")


def _outcome(case: Case, inputs: Sequence[Tensor | None], what: str) -> str | list[Any]:
    """The text of the error that a call raises, or what its outputs are."""
    see = what.split()[0]
    name = case.op._schema.name.split("::")[1]
    sample = case.bind(inputs)
    try:
        with torch.no_grad():
            outputs = tensors_in(case.op(*sample.args, **sample.kwargs))
    except RuntimeError as error:
        text = str(error)
        if not text.startswith(f"{name}: "):
            case.fail(
                f"the {what} raises what does not start with the operator's name",
                detail=f"{type(error).__name__}: {text}",
                see=see,
            )
        return text
    except Exception as error:
        case.fail(f"the {what} raises {type(error).__name__}", detail=str(error), see=see)
    return [(tuple(o.shape), o.dtype, o.stride() if o.numel() else ()) for o in outputs]


def _message(case: Case, tensors: Sequence[Tensor]) -> str:
    try:
        case(*tensors, in_place=True)  # a copy of what is written to would lose its layout
    except RuntimeError as error:
        return str(error)
    except Exception as error:
        case.fail(f"raises {type(error).__name__}, not RuntimeError", detail=str(error))
    case.fail("does not raise", see="kernel")

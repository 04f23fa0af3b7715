"""The check of names, order and defaults of parameters."""

from __future__ import annotations

import inspect
import sys
from types import CodeType, FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from extension_cpp import registration
from extension_cpp.battery.calls import op_cases
from extension_cpp.battery.case import Case, arguments_of
from extension_cpp.battery.choices import default_dtype, main_shape
from extension_cpp.battery.failure import fail, name_of
from extension_cpp.battery.registry import register
from extension_cpp.battery.spec import OpSpec
from extension_cpp.battery.tensors import replace_tensors, tensors_in


@register()
def check_signature(spec: OpSpec, device: str) -> None:
    """Public function, reference and fake kernels have the schemas' names, order and defaults."""
    arguments = spec.op._schema.arguments
    for what, function in (("public function", spec.function), ("reference", spec.reference)):
        parameters = inspect.signature(function).parameters
        _compare_names(spec, what, list(parameters), spec.op, name_of(function))
        for argument in arguments:
            default = parameters[argument.name].default
            _compare_default(spec, what, argument, default, name_of(function))
    for case in op_cases(spec, device, default_dtype(spec), main_shape(spec)):
        _check_fake_signature(case)


def _compare_names(spec: OpSpec, what: str, names: list[str], op: Any, see: str) -> None:
    expected = [argument.name for argument in op._schema.arguments]
    if names != expected:
        fail(spec, f"the {what} takes {names}, the schema {expected}", see=see)


def _compare_default(spec: OpSpec, what: str, argument: Any, default: Any, see: str) -> None:
    given = default is not inspect.Parameter.empty
    if given != argument.has_default_value():
        one, other = ("a", "none") if given else ("no", "one")
        fail(
            spec, f"{argument.name} has {one} default in the {what}, {other} in the schema", see=see
        )
    if isinstance(default, tuple):
        default = list(default)
    if isinstance(default, torch.dtype | torch.layout | torch.memory_format):
        default = _in_schemas(default)
    if given and default != argument.default_value:
        expected = argument.default_value
        fail(
            spec,
            f"{argument.name} defaults to {default!r} in the {what}, {expected!r} in the schema",
            see=see,
        )


def _in_schemas(value: torch.dtype | torch.layout | torch.memory_format) -> Any:
    """The number by which schemas hold such a default."""
    kinds = {torch.dtype: "ScalarType", torch.layout: "Layout", torch.memory_format: "MemoryFormat"}
    name = str(value).removeprefix("torch.")
    schema = torch._C.parse_schema(f"f({kinds[type(value)]} value={name}) -> ()")
    return schema.arguments[0].default_value


def _check_fake_signature(case: Case) -> None:
    """Watches what is called when trailing arguments are left out, as the dispatcher does."""
    arguments = case.op._schema.arguments
    if any(argument.kwarg_only for argument in arguments):
        return
    values = {argument.name: value for argument, value in arguments_of(case.op, case.sample)}
    required = [values[a.name] for a in arguments if not a.has_default_value()]
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(t.detach()) for t in tensors_in(required)]
    required = replace_tensors(required, iter(fakes))
    entered: list[tuple[CodeType, dict[str, Any]]] = []

    def watch(frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        # The registration of derivatives stands between the dispatcher and the fake kernel.
        others = "torch.", f"{registration.__name__}."
        if event == "call" and not f"{module}.".startswith(others):
            entered.append((frame.f_code, dict(frame.f_locals)))

    previous = sys.getprofile()
    what = f"fake kernel of {case.label}"
    with mode, torch.no_grad():
        sys.setprofile(watch)
        try:
            case.op(*required)
        except TypeError as error:
            sys.setprofile(previous)
            case.fail(
                f"the {what} does not take what the schema says", detail=str(error), see="fake"
            )
        finally:
            sys.setprofile(previous)
    # The first other function that is given the fake inputs is the fake kernel. One that PyTorch
    # supplies itself has no signature of its own.
    for code, local in entered:
        names = list(code.co_varnames[: code.co_argcount])
        given = tensors_in([local[name] for name in names])
        if not given or not fakes or given[0] is not fakes[0]:
            continue
        if names[0] == "self" != arguments[0].name:  # a method
            names = names[1:]
        see = f"{code.co_filename}:{code.co_firstlineno}"
        _compare_names(case.spec, what, names, case.op, see)
        for argument in arguments[len(required) :]:
            _compare_default(case.spec, what, argument, local[argument.name], see)
        return

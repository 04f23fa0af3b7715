"""Checks of what an operator promises PyTorch: schema, registrations, strides, side effects."""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from extension_cpp import registration
from extension_cpp.battery.cases import (
    Case,
    CheckError,
    arguments_of,
    cases,
    default_dtype,
    fail,
    fresh_compiler,
    main_shape,
    name_of,
    op_case,
    op_cases,
    op_name,
    samples,
    small_shapes,
    tiny_shapes,
)
from extension_cpp.battery.layouts import is_dense, same_strides
from extension_cpp.battery.registry import register
from extension_cpp.battery.spec import OpSpec
from extension_cpp.battery.tensors import (
    as_leaves,
    exact_copies,
    gradients,
    random_like,
    replace_tensors,
    tensors_in,
)
from extension_cpp.battery.tolerance import same_bits

_REGISTER_AUTOGRAD = (
    "Call register_autograd, register_no_autograd or register_mutation of "
    "extension_cpp.registration."
)
_OPCHECK_TESTS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_static",
    "test_aot_dispatch_dynamic",
)


@register()
def check_opcheck(spec: OpSpec, device: str) -> None:
    """`torch.library.opcheck`, all of it, for operator and backward, in every layout."""
    dtype, main = default_dtype(spec), main_shape(spec)
    seen = set()
    for shape in [main, *tiny_shapes(spec)]:
        for case in op_cases(spec, device, dtype, shape):
            # Every layout for one kind of call of every operator.
            every = shape == main and case.op not in seen
            seen.add(case.op)
            # Results are compared with NaN unequal to itself, which is what the mean of nothing is.
            with torch.no_grad():
                comparable = not any(o.isnan().any() for o in case(*case.tensors))
            tests = _OPCHECK_TESTS if comparable else _OPCHECK_TESTS[:3]
            if not any(case.written) and not _has_formula(case):
                case = case.laid_out("", [t.detach() for t in case.tensors])
            for laid_out in case.layouts():
                if laid_out.layout != "contiguous" and not every:
                    continue
                sample = laid_out.bind(laid_out.tensors)
                with (
                    fresh_compiler(),
                    warnings.catch_warnings(),
                    laid_out.explain("opcheck", see="fake"),
                ):
                    warnings.simplefilter("ignore")
                    torch.library.opcheck(case.op, sample.args, sample.kwargs, test_utils=tests)


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
def check_strides(spec: OpSpec, device: str) -> None:
    """Kernel and fake kernel agree on the outputs' shapes, strides and dtypes, in every layout.

    And the strides follow one of the two rules: those of dense inputs that agree on them
    (elementwise operators), or freshly contiguous.
    """
    shapes = [shape for shape in spec.shapes if math.prod(shape) <= 10000]
    # By operator and output, the first call that breaks the rule.
    not_elementwise: dict[Any, str] = {}
    not_contiguous: dict[Any, str] = {}
    for dtype in dict.fromkeys([default_dtype(spec), spec.dtypes[-1]]):
        for shape in shapes:
            for case in op_cases(spec, device, dtype, shape):
                for laid_out in case.layouts(each=True):
                    outputs = laid_out.outputs_only(_compare_with_fake(laid_out))
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


def _compare_with_fake(case: Case) -> tuple[Tensor, ...]:
    with torch.no_grad():
        with case.explain("the kernel", see="kernel"):
            outputs = case(*case.copies(), in_place=True)
        mode = FakeTensorMode()
        inputs = [mode.from_tensor(t.detach()) for t in case.tensors]
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


@register()
def check_side_effects(spec: OpSpec, device: str) -> None:
    """Writes to what the schema says alone; outputs share no memory with inputs or one another."""
    for shape in small_shapes(spec):
        for case in op_cases(spec, device, default_dtype(spec), shape):
            for laid_out in case.layouts():
                _check_side_effects_of(laid_out)


def _check_side_effects_of(case: Case) -> None:
    inputs = [t.detach() for t in exact_copies(case.tensors)]
    before = exact_copies(inputs)
    versions = [t._version for t in inputs]
    outputs = case.outputs_only(case(*inputs, in_place=True))
    for i, name in enumerate(case.names):
        bumped = inputs[i]._version != versions[i]
        if case.written[i] and not bumped:
            case.fail(
                f"{name} is written to, and its version counter is not bumped",
                detail="Backward would use new values for old: register_mutation.",
            )
        if not case.written[i] and (bumped or not same_bits(inputs[i], before[i])):
            case.fail(f"{name} is written to, and the schema does not say Tensor(a!)", see="kernel")
    named = {f"argument {name}": t for name, t in zip(case.names, inputs, strict=True)}
    for i, output in enumerate(outputs):
        for name, other in named.items():
            pointers = [t.untyped_storage().data_ptr() for t in (output, other)]
            if output.numel() and other.numel() and pointers[0] == pointers[1]:
                case.fail(f"output {i} shares its memory with {name}", see="kernel")
        named[f"output {i}"] = output


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


def check_namespace(namespace: str) -> None:
    """Every operator of a namespace has an Autograd kernel of its own: a formula, or an error.

    Without one, PyTorch's own fallback loses gradients in silence.
    """
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith(f"{namespace}::")]
    if not names:
        raise CheckError(f"no operator is defined in the namespace {namespace}")
    bare = [name for name in names if not _has_kernel(name, "Autograd")]
    if bare:
        raise CheckError(
            f"no Autograd kernel for {', '.join(bare)}: gradients would be lost in silence. "
            + _REGISTER_AUTOGRAD
        )


def _has_kernel(name: str, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


@register()
def check_registrations(spec: OpSpec, device: str) -> None:
    """The operator, and those of its backward, have kernels for the device and for autograd."""
    dtype = default_dtype(spec)
    for op in {case.op for case in op_cases(spec, device, dtype, main_shape(spec))}:
        name = op._schema.name
        if not _has_kernel(name, device.upper()):
            fail(spec, f"{name} has no {device.upper()} kernel", see="kernel", device=device)
        if not _has_kernel(name, "Autograd"):
            fail(
                spec,
                f"{name} has no Autograd kernel: gradients would be lost in silence",
                detail=_REGISTER_AUTOGRAD,
            )


@register(applies=lambda spec, device: device not in spec.devices)
def check_missing_backend(spec: OpSpec, device: str) -> None:
    """On a device without a kernel, PyTorch's own error names the operator and the device."""
    for sample in samples(spec, device, default_dtype(spec), main_shape(spec), requires_grad=False):
        case = op_case(spec, device, default_dtype(spec), sample)
        try:
            case(*case.tensors)
        except NotImplementedError as error:
            if spec.op._schema.name not in str(error) or device.upper() not in str(error):
                case.fail("the error does not name operator and device", detail=str(error))
        except Exception as error:
            case.fail(f"raises {type(error).__name__}, not NotImplementedError", detail=str(error))
        else:
            case.fail(f"runs on {device}, which its spec does not list", see="spec")


@register()
def check_traffic(spec: OpSpec, device: str) -> None:
    """The bytes that the benchmark divides by are those of the outputs at least."""
    some = False
    for shape in spec.shapes:
        for case in cases(spec, device, default_dtype(spec), shape, requires_grad=False):
            traffic = spec.traffic(case.sample)
            written = sum(o.numel() * o.element_size() for o in case(*case.tensors))
            some = some or traffic.forward > 0
            if not isinstance(traffic.forward, int) or not isinstance(traffic.backward, int):
                case.fail(f"{traffic} is not in whole bytes", see="spec")
            if case.function is spec.function and traffic.forward < written:
                case.fail(f"{traffic}, yet {written} bytes are written", see="spec")
    if not some:
        fail(spec, "traffic is zero for every shape", see="spec")

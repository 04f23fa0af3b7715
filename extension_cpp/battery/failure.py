"""What a check says when it finds something."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor

from extension_cpp.battery.spec import OpSpec


class CheckError(AssertionError):
    """What a check found."""


def fail(
    spec: OpSpec,
    problem: str,
    *,
    call: str = "",
    detail: str = "",
    see: str = "python",
    device: str = "cpu",
) -> NoReturn:
    """Raises for what is not about one call; see `Case.fail`."""
    lines = [f"{spec.name}: {problem}"]
    if call:
        lines.append(f"  call: {call}")
    lines += [f"  {line}" for line in detail.splitlines()]
    lines.append(f"  look at: {_place(spec, see, device)}")
    raise CheckError("\n".join(lines))


def _place(spec: OpSpec, see: str, device: str) -> str:
    file = inspect.getsourcefile(inspect.unwrap(spec.function)) or "?"
    path = shown_path(Path(file))
    suffix = "_cuda.cu" if device.startswith("cuda") else "_cpu.cpp"
    candidates = [path.with_name(spec.name + end) for end in (suffix, ".cpp")]
    kernel = next((file for file in candidates if file.exists()), path)
    return {
        "kernel": f"the kernel in {kernel}",
        "backward": f"the derivative formula in {path}, and its kernel in {kernel}",
        "fake": f"the fake kernel in {path}, and what the kernel allocates in {kernel}",
        "python": str(path),
        "spec": f"the spec of {name_of(spec.function)}",
    }.get(see, see)


def shown_path(path: Path) -> Path:
    """From the working directory, where it lies there."""
    with contextlib.suppress(ValueError):
        return path.relative_to(Path.cwd())
    return path


def name_of(function: Callable[..., Any]) -> str:
    function = inspect.unwrap(function)
    name = getattr(function, "__qualname__", repr(function))
    return f"{getattr(function, '__module__', '?')}.{name}"


def op_name(op: Any) -> str:
    namespace, name = op._schema.name.split("::")
    return f"torch.ops.{namespace}.{name}"


def show(value: Any) -> str:
    if isinstance(value, Tensor):
        text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        if not value.is_contiguous() or 1 in value.shape:
            text += f" strides {value.stride()}"
        if value.storage_offset():
            text += f" offset {value.storage_offset()}"
        return text
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(show, value))}]"
    return repr(value)

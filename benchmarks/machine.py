"""What a run was made on, and of what: recorded with its results."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

import extension_cpp

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "triton", "liger-kernel", "quack-kernels")
QUERY = {
    "driver": "driver_version",
    "sm_clock_mhz": "clocks.sm",
    "sm_clock_max_mhz": "clocks.max.sm",
    "memory_clock_mhz": "clocks.mem",
    "power_limit_w": "power.limit",
    "temperature_c": "temperature.gpu",
}


def hardware(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    model = re.search(r"^model name\s*: (.*)$", _read("/proc/cpuinfo"), re.M)
    name = model[1].strip() if model else platform.processor() or platform.machine()
    instructions = torch.backends.cpu.get_cpu_capability()  # such as AVX2
    return f"{name}, {instructions}, {torch.get_num_threads()} threads"


def state(device: str) -> dict[str, Any]:
    """Driver and clocks, or the load: whatever may change between runs. Ask while it is busy."""
    if device == "cpu":
        clock = re.search(r"^cpu MHz\s*: ([\d.]+)$", _read("/proc/cpuinfo"), re.M)
        return {
            "clock_mhz": float(clock[1]) if clock else None,
            "load": round(os.getloadavg()[0], 2),
        }
    index = torch.cuda.current_device()
    # Its place among the visible devices need not be that on the machine.
    uuid = str(getattr(torch.cuda.get_device_properties(index), "uuid", "")).removeprefix("GPU-")
    query = f"--query-gpu={','.join(QUERY.values())}"
    answer = None
    for identity in (f"GPU-{uuid}", str(index)):
        answer = answer or _run(
            "nvidia-smi", f"--id={identity}", query, "--format=csv,noheader,nounits"
        )
    values = answer.split(", ") if answer else [None] * len(QUERY)
    return dict(zip(QUERY, values, strict=True))


def release(device: str) -> None:
    """Gives back the memory of what was called last: the next sizes are others."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()  # raises, and ends the run, where nothing more can be run
        torch.cuda.empty_cache()


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {
        "extension_cpp": extension_cpp.__version__,
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
    }
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    found["torch"] = str(torch.__version__)  # with the build, as +cu130
    return found


def commit() -> tuple[str | None, bool | None]:
    """The commit, and whether the sources differ from it; None where git does not know."""
    head = _run("git", "-C", str(ROOT), "rev-parse", "HEAD")
    if head is None:
        return None, None
    changed = _run(
        "git", "-C", str(ROOT), "status", "--porcelain", "--", ".", ":!benchmarks/results"
    )
    return head, changed is None or changed != ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _run(*command: str) -> str | None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None

"""`python -m extension_cpp`: what is installed and built, and why it does not load if so."""

import platform
import sys

import extension_cpp
from extension_cpp import _loader


def report() -> list[tuple[str, str]]:
    rows = [
        ("extension_cpp", f"{extension_cpp.__version__} in {_loader.FOLDER}"),
        ("python", f"{platform.python_version()} on {platform.platform()}"),
        ("torch", describe_torch()),
        ("built with", describe_build()),
    ]
    if _loader.failure is None:
        names = [name.removeprefix(f"{_loader.NAMESPACE}::") for name in _loader.operators()]
        rows.append(("operators", ", ".join(names)))
    else:
        rows.append(("not loaded", str(_loader.failure)))
    return rows


def describe_torch() -> str:
    try:
        import torch
    except ImportError as error:
        return f"cannot be imported: {error}"
    if torch.version.cuda is None:
        return f"{torch.__version__}, without CUDA"
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"{torch.__version__}, CUDA {torch.version.cuda}, {', '.join(gpus) or 'no GPU visible'}"


def describe_build() -> str:
    try:
        info = _loader.build_info()
    except ImportError as error:
        return str(error)
    if not info:
        return "not built"
    cuda = f"CUDA {info['cuda']} for {info['architectures']}" if info["cuda"] else "CPU only"
    kind = "".join(f", {name}" for name in ("debug", "sanitize") if info[name])
    return f"torch {info['torch']}, {info['abi']} ABI, {cuda} ({info['reason']}){kind}"


def main() -> int:
    for name, value in report():
        print(f"{name:<14} {value}")
    return 0 if _loader.failure is None else 1


if __name__ == "__main__":
    sys.exit(main())

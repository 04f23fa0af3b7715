"""`python -m extension_cpp`: what is installed, what was built, and why it does not load if it does not."""

import platform
import sys

import extension_cpp
from extension_cpp import _loader


def report() -> list[tuple[str, str]]:
    """What is installed, as rows of a name and a value."""
    info = _loader.build_info()
    rows = [
        ("extension_cpp", f"{extension_cpp.__version__} in {_loader.FOLDER}"),
        ("python", f"{platform.python_version()} on {platform.platform()}"),
        ("torch", describe_torch()),
    ]
    if info:
        cuda = f"CUDA {info['cuda']} for {info['architectures']}" if info["cuda"] else "CPU only"
        rows.append(
            ("built with", f"torch {info['torch']}, {info['abi']} ABI, {cuda} ({info['reason']})")
        )
    if _loader.failure is None:
        import torch

        names = [
            name
            for name in torch._C._dispatch_get_all_op_names()
            if name.startswith(f"{_loader.NAMESPACE}::")
        ]
        rows.append(("operators", ", ".join(sorted(name.split("::")[1] for name in names))))
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
    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return (
        f"{torch.__version__}, CUDA {torch.version.cuda}, {', '.join(devices) or 'no GPU visible'}"
    )


def main() -> int:
    for name, value in report():
        print(f"{name:<14} {value}")
    return 0 if _loader.failure is None else 1


if __name__ == "__main__":
    sys.exit(main())

"""The report as text, in one screen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# Lines for what is wrong: of all messages, and of one. --verbose shows all.
SCREEN = 50
MESSAGE = 16


def header(report: dict[str, Any]) -> str:
    """What is checked, and how it was built."""
    build = report["build"]
    if build["problem"]:
        return f"{report['operator']}: the build failed"
    count = len(build["compiled"])
    if build["seconds"] is None:
        made = "as it was built"
    else:
        made = f"{count or 'no'} file{'' if count == 1 else 's'} compiled, {build['seconds']} s"
    kind = "".join(f", {name}" for name in ("debug", "sanitize") if build.get(name))
    built = ""
    if "abi" in build:
        cuda = f"CUDA {build['cuda']}" if build["cuda"] else "CPU only"
        built = f", {build['abi']} ABI, {cuda}{kind}"
    return f"{report['operator']}: {made}; torch {report['versions']['torch']}{built}"


def outcome(check: dict[str, Any]) -> str:
    """A line."""
    result = check["result"] if check["result"] in ("pass", "skipped") else check["result"].upper()
    first = check["message"].partition("\n")[0]
    line = f"  {check['name']:<20} {check['device']:<5} {check['seconds']:6.2f} s  {result}"
    return line + (f"  {first}" if first else "")


def conclusion(report: dict[str, Any], verbose: bool) -> str:
    """What is wrong and where to look, how fast it is, and what was not looked at."""
    lines: list[str] = []
    if report["build"]["problem"]:
        problem = report["build"]["problem"].splitlines()
        lines += problem if verbose else shortened(problem, SCREEN)
    failed = [check for check in report["checks"] if check["result"] in ("fail", "crash")]
    lines += messages(failed, verbose)
    if "timings" in report:
        lines += ["", *timings(report["timings"])]
    return "\n".join([*lines, "", *verdict(report, failed)])


def messages(failed: list[dict[str, Any]], verbose: bool) -> list[str]:
    """Whole, as far as the screen goes; of those that say the same, the first."""
    same: dict[str, list[dict[str, Any]]] = {}
    for check in failed:
        same.setdefault(check["message"].partition("\n")[0], []).append(check)
    lines: list[str] = []
    for number, checks in enumerate(same.values()):
        names = ", ".join(f"{check['name']} {check['device']}".rstrip() for check in checks)
        message = [f"{names}:", *(f"  {line}" for line in checks[0]["message"].splitlines())]
        if not verbose:
            message = shortened(message, MESSAGE)
            if lines and len(lines) + len(message) > SCREEN:
                return [*lines, "", f"{len(same) - number} more: --verbose"]
        lines += ["", *message]
    return lines


def shortened(lines: list[str], most: int) -> list[str]:
    """Beginning and end, which says where to look."""
    if len(lines) <= most:
        return lines
    left_out = len(lines) - most + 1
    return [*lines[: most - 3], f"  ... {left_out} lines: --verbose", *lines[-2:]]


def timings(found: dict[str, Any]) -> list[str]:
    """A line for each pass: times, and how many times ours PyTorch's are."""
    if not found["rows"]:
        return [f"not timed: {found['why']}"]
    lines = []
    for row in found["rows"]:
        ours = row["us"].get("ours")
        what = " ".join(word for word in (row["form"], row["shape"], row["dtype"]) if word)
        line = f"  {what} {row['device']}, {row['pass']:<8}"
        line += f" {ours:10.1f} us" if ours is not None else "  not timed"
        for name, us in row["us"].items():
            if name != "ours":
                line += f"   {name} {us:10.1f} us" + (f" ({us / ours:.2f}x)" if ours else "")
        lines += [line, *(f"    {name}: {why}" for name, why in row["failed"].items())]
    return lines


def verdict(report: dict[str, Any], failed: list[dict[str, Any]]) -> list[str]:
    lines = []
    if report["build"]["problem"]:
        return [f"{report['operator']}: not built, nothing was checked"]
    run = [check for check in report["checks"] if check["result"] != "skipped"]
    for reason in ("no GPU is visible", "hypothesis is not installed"):
        if names := listed(report["checks"], reason):
            lines.append(f"not run, {reason}: {names}")
    if changed := report.get("schemas"):
        lines.append(
            f"tests/test_schemas.py expects other schemas of {', '.join(changed)}; those that are "
            "there are accepted by EXPECTTEST_ACCEPT=1 make test TESTS=tests/test_schemas.py"
        )
    if failed:
        if report.get("files"):
            lines.append(f"sources: {' '.join(report['files'])}")
        wrong = ", ".join(dict.fromkeys(check["name"] for check in failed))
        lines.append(f"{report['operator']}: {len(failed)} of {len(run)} checks failed: {wrong}")
    elif not run:
        lines.append(f"{report['operator']}: nothing was checked")
    else:
        lines.append(f"{report['operator']}: {len(run)} of {len(run)} checks pass")
    lines[-1] += f" ({report['seconds']} s)"
    return lines


def listed(checks: Iterable[dict[str, Any]], reason: str) -> str:
    """The checks that were skipped for a reason; those of CUDA, which are many, as one."""
    found = [check for check in checks if check["message"] == reason]
    if found and all(check["device"] == "cuda" for check in found):
        return "CUDA"
    return ", ".join(check["name"] for check in found)

import gc
import itertools
import logging
import os
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path

# torch.compile's caches on disk do not see what changes in a backward formula, and are shared with
# other projects of the same sources.
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
# OpenMP's threads wait for each other without working. Else, where there are more of them than
# processors, most of the time goes into waiting.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# What the processor says of its vectors is enough: inductor compiles a program to see whether the
# compiler knows them, in every process, for four seconds.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

import pytest
import torch

# torch's compiler writes down all that it does where somebody listens, and pytest listens to every
# logger that does not propagate.
logging.getLogger("torch.__trace").propagate = True

# Tests whose kernels are to be run by several threads.
THREADED = {"test_forward", "test_backward", "test_determinism"}


def absent(requirements: str) -> list[str]:
    """Packages of a requirements file that are neither installed nor programs on PATH."""
    names = re.findall(r"^[\w-]+", requirements, re.M)
    return [n for n in names if not any(metadata.distributions(name=n)) and not shutil.which(n)]


def pytest_terminal_summary(terminalreporter, exitstatus):
    """Says why tests may have failed that use what is not there."""
    file = Path(__file__).parents[1] / "requirements.txt"
    if exitstatus != pytest.ExitCode.TESTS_FAILED or not file.exists():
        return
    if missing := absent(file.read_text()):
        terminalreporter.write_line(
            f"Not installed: {', '.join(missing)}. What needs them fails: "
            f"pip install -r {file.name} has them all."
        )


@pytest.fixture(autouse=True)
def _threads(request):
    """One thread: there is a test process per core, and waiting threads get in the way."""
    torch.set_num_threads(2 if request.node.originalname in THREADED else 1)


@pytest.fixture(autouse=True)
def _guards_are_not_timed():
    """Dynamo, where an earlier test has imported it, empties caches to time guards, for a log."""
    guards = sys.modules.get("torch._dynamo.guards")
    if guards is not None:
        guards.profile_guard_manager = lambda *arguments: 0.0


TESTS = itertools.count()


@pytest.fixture(autouse=True)
def _modules_are_not_garbage():
    """Leaves what imports made out of garbage collections: with torch's compiler, nearly all.

    To count objects takes as long as a short test: at every tenth.
    """
    if next(TESTS) % 10 == 0 and len(gc.get_objects(generation=2)) > 100_000:
        gc.collect()
        gc.freeze()


@pytest.fixture
def entered(monkeypatch):
    """One entry for each time that the kernel of an Autograd key was entered."""
    from extension_cpp.registration import autograd, forward_mode, mutation, reference

    entries = []

    def any_tangent(*args):
        entries.append(None)
        return forward_mode.any_tangent(*args)

    # A graph of another test may have set it for good.
    monkeypatch.setattr(forward_mode, "graphs_have_tangents", False)
    for module in (autograd, mutation, reference):
        monkeypatch.setattr(module, "any_tangent", any_tangent)
    return entries

"""Operators on DTensor: in four processes, which talk through gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path

import four_processes
import pytest


@pytest.fixture(scope="module")
def raised(tmp_path_factory):
    """For each test what the processes raised in it. They run all of them, once."""
    folder = tmp_path_factory.mktemp("processes")
    program = [sys.executable, four_processes.__file__]
    processes = [
        subprocess.Popen(
            [*program, str(rank), str(folder)],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "PYTHONPATH": "."},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(four_processes.WORLD)
    ]
    try:
        ended = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:  # which wait for one that is no more
            process.kill()
    files = [folder / f"{rank}.json" for rank in range(four_processes.WORLD)]
    for file, output in zip(files, ended, strict=True):
        assert file.exists(), output
    return [json.loads(file.read_text()) for file in files]


@pytest.mark.parametrize("name", four_processes.TESTS)
def test_in_four_processes(name, raised):
    found = [each[name] for each in raised if name in each]
    assert not found, found[0]

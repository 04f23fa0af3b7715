"""Every code block of the documents runs, or is shown to be run elsewhere."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
from scratch import ROOT, python, run

DOCUMENTS = (
    "AGENTS.md",
    "README.md",
    "QUICKSTART.md",
    "DEVELOPMENT.md",
    "benchmarks/README.md",
    "extension_cpp/operators/affine/README.md",
    "extension_cpp/operators/vector_add/README.md",
)

# Commands too costly or too special to run here: the file that runs them, word for word.
RUN_ELSEWHERE = {
    "make demo": ".ci/run",
    "make lint": ".ci/run",
    "make test": ".ci/run",
    "make check OP=fused_op OPTIONS=--quick": "tests/test_templates_built.py",
    "make bench OPTIONS=--list": "tests/test_benchmarks.py",
    "EXTENSION_CPP_ABI=aten make build": "tests/test_packaging.py",
    "pip install --no-build-isolation .": "tests/test_packaging.py",
    "pip install --no-build-isolation -e .": "tests/test_packaging.py",
    "USE_CUDA=0 pip install --no-build-isolation .": "tests/test_packaging.py",
    "USE_CUDA=1 pip install --no-build-isolation .": "tests/test_packaging.py",
}


class Block(NamedTuple):
    document: str
    line: int  # of its first line, counted from 1
    language: str
    code: str


def blocks(document: str) -> list[Block]:
    text = (ROOT / document).read_text()
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [
        Block(document, text[: match.start(2)].count("\n") + 1, match[1], match[2])
        for match in found
    ]


def commands(code: str) -> list[str]:
    """The lines of a shell block, without their comments."""
    joined = code.replace("\\\n", " ")
    lines = (shlex.join(shlex.split(line, comments=True)) for line in joined.splitlines())
    return [line for line in lines if line]


ALL = [block for document in DOCUMENTS for block in blocks(document)]
PYTHON = [block for block in ALL if block.language == "python"]
SHELL = sorted({line for block in ALL if block.language == "sh" for line in commands(block.code)})


def test_the_language_of_each_block_is_known():
    # Plain text is not code. C++ in a document is a second copy of a source: link to it.
    assert {block.language for block in ALL} <= {"python", "sh", "text", "cpp"}


def test_the_operator_that_is_shown_is_the_one_that_is_built():
    shown = [(block.document, block.code) for block in ALL if block.language == "cpp"]
    source = ROOT / "extension_cpp/operators/square/square.cpp"
    assert shown == [("README.md", source.read_text())]


@pytest.mark.parametrize("document", sorted({block.document for block in PYTHON}))
def test_python_blocks_run(document: str, tmp_path: Path):
    """Each in turn, with the names of those before it, as a reader would type them."""
    script = tmp_path / document
    text = ""
    for block in PYTHON:
        if block.document == document:
            # Lines keep their numbers: a traceback names the line of the document.
            text += "\n" * (block.line - 1 - text.count("\n")) + block.code
    script.write_text(text)
    result = python(script, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("command", SHELL)
def test_shell_commands_run(command: str):
    if command in RUN_ELSEWHERE:
        assert command in (ROOT / RUN_ELSEWHERE[command]).read_text()
    else:
        result = run("sh", "-ec", command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
        assert result.returncode == 0, result.stdout


def test_no_command_is_excused_in_vain():
    assert set(RUN_ELSEWHERE) <= set(SHELL)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_make_targets_in_the_text_exist(document: str):
    named = re.findall(r"`(?:\w+=\S+ )*make ([\w-]+)", (ROOT / document).read_text())
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(named) <= set(targets)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str):
    prose = re.sub(r"^```.*?^```$", "", (ROOT / document).read_text(), flags=re.M | re.S)
    links = re.findall(r"\]\((?!https?://)([^)#]+)", prose)
    folder = (ROOT / document).parent
    assert [link for link in links if not (folder / link).exists()] == []


def test_the_page_for_coding_tools_is_a_page():
    assert len((ROOT / "AGENTS.md").read_text().splitlines()) <= 60

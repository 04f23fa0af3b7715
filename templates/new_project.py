"""Makes a project of your own out of this one: its package, namespace and operators.

    python templates/new_project.py my_kernels ../my_kernels
    python templates/new_project.py my_kernels ../my_kernels --ops fused_op,reduce_sum
    python templates/new_project.py --update ../my_kernels

templates/README.md says more.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import keyword
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path

from kinds import TEMPLATES
from naming import is_macro
from repository import PACKAGE, Repository
from schema import CPP_KEYWORDS, Refusal, refuse, stop

ORIGIN = Path("templates", "origin.json")
BRANCH = "template"
# What was measured here says nothing about another project's operators.
MEASURED = Path("benchmarks", "results")
# What `make demo` runs.
DEMO = "examples/quickstart.py"


def main(argv: list[str] | None = None, root: Path = TEMPLATES.parent) -> None:
    arguments = parse_arguments(argv)
    source = Repository(root)
    try:
        commit_of(source)  # before anything is made
        if arguments.update:
            update(source, arguments.update.resolve())
        else:
            create(source, arguments.name, arguments.target.resolve(), arguments.ops.split(","))
    except Refusal as refusal:
        stop(f"new_project.py: {refusal}")
    except KeyboardInterrupt:
        raise SystemExit("new_project.py: stopped; nothing was made") from None


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Makes a project of your own out of this one.",
        epilog="More in templates/README.md.",
    )
    parser.add_argument("name", nargs="?", help="of the package and of the operators' namespace")
    parser.add_argument("target", nargs="?", type=Path, help="a folder that is empty or not there")
    parser.add_argument(
        "--ops", default="fused_op", help="the operators to keep, with commas; default: %(default)s"
    )
    parser.add_argument(
        "--update",
        metavar="PROJECT",
        type=Path,
        help="take this version's changes into a project made earlier",
    )
    arguments = parser.parse_args(argv)
    if arguments.update is None and arguments.target is None:
        parser.error("give a name and a target, or --update PROJECT")
    return arguments


def create(source: Repository, name: str, target: Path, ops: list[str]) -> None:
    check_package_name(name, source)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Refusal(f"{target} exists and is not an empty folder")
    if source.root == target or source.root in target.parents:
        raise Refusal(f"{target} lies inside this repository: choose a folder outside")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(f"{target.parent} cannot be made a folder: {error.strerror}") from None
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{name}-") as scratch:
        project = Path(scratch, name)
        dropped = generate(source, name, ops, project)
        commit(project, f"Start from {describe(project)}")
        git(project, "branch", BRANCH)
        if target.exists():
            target.rmdir()
        project.rename(target)
    print(f"{target}: the package {name} with {', '.join(operators(Repository(target, name)))}")
    if dropped:
        print("Left out, as they use other operators:", *dropped, sep="\n    ")
    demo = "    make demo\n" if (target / DEMO).exists() else ""
    print(f"\nNext:\n    cd {shlex.quote(str(target))}\n{demo}    make test")


def update(source: Repository, project: Path) -> None:
    """Commits what `create` makes today to the project's branch `template`, to be merged."""
    try:
        origin = json.loads((project / ORIGIN).read_text())
    except FileNotFoundError:
        raise Refusal(f"{project} has no {ORIGIN}: it was not made by new_project.py") from None
    if not git(project, "branch", "--list", BRANCH):
        raise Refusal(
            f"{project} has no branch '{BRANCH}', which holds what new_project.py made. Make it at "
            f"the first commit: git branch {BRANCH} $(git rev-list --max-parents=0 HEAD)"
        )
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch, "fresh")
        generate(source, origin["name"], origin["operators"], fresh)
        git(fresh, "fetch", "--quiet", str(project), BRANCH)
        git(fresh, "update-ref", "HEAD", "FETCH_HEAD")
        made = commit(fresh, f"Update to {describe(fresh)}")
        git(project, "fetch", "--quiet", str(fresh), f"HEAD:{BRANCH}")
    if made:
        print(f"Next:\n    cd {shlex.quote(str(project))}\n    git merge {BRANCH}")
    else:
        print(f"{project} is up to date with {describe(project)}")


def generate(source: Repository, name: str, ops: Iterable[str], project: Path) -> list[str]:
    """Writes the project's files, under git but not committed; returns what was left out."""
    ops = with_dependencies(source, ops)
    for path in source.files():
        if path.is_relative_to(source.root / MEASURED):
            continue
        copy = project / renamed(str(path.relative_to(source.root)), name)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
        with contextlib.suppress(UnicodeDecodeError):
            copy.write_text(renamed(path.read_text(), name))
    git(project, "init", "--quiet", "--initial-branch=main")
    for readme in ("README.md", "templates/README.md"):
        without_results(project / readme)
    without_claims(project / "benchmarks" / "NOTES.md")
    dropped = drop_operators(Repository(project, name), set(ops))
    write_origin(source, project, name, ops)
    reformat(project)
    return dropped


def renamed(text: str, name: str) -> str:
    """Replaces the package's name, in each of its spellings."""
    text = text.replace(PACKAGE, name).replace(PACKAGE.upper(), name.upper())
    return text.replace(PACKAGE.replace("_", "-"), name.replace("_", "-"))


def without_results(readme: Path) -> None:
    """Empties the section that shows what was measured."""
    section = r"(<!-- benchmark: .*? -->\n).*?(<!-- end of benchmark -->\n)"
    readme.write_text(re.sub(section, r"\1\2", readme.read_text(), flags=re.S))


def without_claims(notes: Path) -> None:
    """Says of the notes, in which sources give their reasons, where all that was measured."""
    there = "What stands now is in the results beside this file; this page keeps why."
    here = "That was in the repository which this project was made from, whose operators they name."
    text = notes.read_text()
    assert there in text
    notes.write_text(text.replace(there, here))


def operators(repository: Repository) -> list[str]:
    return sorted(
        path.name for path in repository.operators.iterdir() if (path / "ops.py").exists()
    )


def with_dependencies(source: Repository, ops: Iterable[str]) -> list[str]:
    """The operators asked for, and those that they import."""
    there, found = operators(source), [op.strip() for op in ops]
    for op in found:  # which grows on the way
        if op not in there:
            raise Refusal(f"there is no operator '{op}'; there are: {', '.join(there)}")
        sources = "".join(path.read_text() for path in (source.operators / op).glob("*.py"))
        imported = re.findall(rf"{PACKAGE}\.operators\.(\w+)", sources)
        found += [name for name in imported if name not in found]
    return sorted(set(found))


def drop_operators(project: Repository, kept: set[str]) -> list[str]:
    """Takes out all other operators, and the files and the passages that are about them."""
    unwanted = [op for op in operators(project) if op not in kept]
    using = {use.split(":")[0] for op in unwanted for use in project.uses(op)}
    names = {name for op in unwanted for name in project.names(op)}
    for op in unwanted:
        project.remove(op).apply()
    dropped = []
    for name in sorted(using):
        path = project.root / name
        if path.suffix == ".md":
            path.write_text(without_passages(project, path, names))
        elif name.startswith(("examples/", "tests/", "benchmarks/")) and path.exists():
            path.unlink()
            dropped.append(name)
    for name in dropped:  # which grows on the way
        imports = re.compile(rf"^(?:from|import) {Path(name).stem}\b", re.M)
        for path in sorted((project.root / name).parent.glob("*.py")):
            if imports.search(path.read_text()):
                path.unlink()
                dropped.append(str(path.relative_to(project.root)))
    for path in (path for path in project.files() if path.suffix == ".md"):
        path.write_text(with_example(path.read_text(), unwanted, min(kept)))
    without_files(project, dropped)
    return sorted(dropped)


def with_example(document: str, unwanted: list[str], kept: str) -> str:
    """A document whose commands name an operator that is there."""
    commands = rf"(\bOP=|--ops |\bgrep |testing )(?:{'|'.join(unwanted)})\b"
    return re.sub(commands, rf"\1{kept}", document) if unwanted else document


def without_files(project: Repository, dropped: list[str]) -> None:
    """Takes files that are gone out of what runs them, or links to them."""

    def edit(name: str, *patterns: str) -> None:
        path = project.root / name
        text = path.read_text()
        for pattern in patterns:
            text = re.sub(pattern, "", text, flags=re.M)
        path.write_text(text)

    for name in map(re.escape, dropped):
        edit(".ci/run", rf"(--deselect )?\b{name}(::\w+)? ?", r"^ +\\\n", r" *\\\n *(?=\")")
        edit("DEVELOPMENT.md", rf"^\| \[{name}\].*\n")
    if DEMO in dropped:
        edit(".ci/run", r"^.*\bdemo\b.*\n")
        edit("Makefile", r"^demo: .*\n\t.*\n\n", r"(?<=^\.PHONY: help) demo")
        edit("README.md", r"^make demo\b.*\n")
        edit("DEVELOPMENT.md", "`demo`, ")


def without_passages(project: Repository, path: Path, names: set[str]) -> str:
    """A document without the paragraphs, items, rows and code blocks that speak of operators."""
    text = path.read_text()
    pattern = project.mention(names, path, text)
    pieces = re.split(r"(^```.*?^```\n|\n\n+|\n(?=[-|*]|\d+\. ))", text, flags=re.M | re.S)
    kept: list[str] = []
    for piece in pieces:
        if not pattern.search(piece):
            kept.append(piece)
        elif kept and kept[-1] == "\n":  # before an item or a row
            kept.pop()
    return re.sub(r"\n{3,}", "\n\n", "".join(kept))


def write_origin(source: Repository, project: Path, name: str, ops: list[str]) -> None:
    pyproject = (source.root / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.*)"', pyproject, re.M)
    record = {
        "from": PACKAGE,
        "version": version[1] if version else "unknown",
        "commit": commit_of(source),
        "name": name,
        "operators": ops,
    }
    (project / ORIGIN).write_text(json.dumps(record, indent=2) + "\n")


def commit_of(source: Repository) -> str:
    """The commit that a project is made of."""
    if not (source.root / ".git").exists():
        raise Refusal(f"{source.root} is no git repository, of which a project is made: clone it")
    return git(source.root, "rev-parse", "HEAD")


def describe(project: Path) -> str:
    origin = json.loads((project / ORIGIN).read_text())
    return f"{origin['from']} {origin['version']} ({origin['commit'][:12]})"


def reformat(project: Path) -> None:
    """Formats the sources: a longer or shorter name breaks lines elsewhere."""
    command = ["make", "--silent", "format", f"PYTHON={sys.executable}"]
    result = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    if result.returncode:
        print(f"{result.stderr}Run `make format` in the new project")


def commit(project: Path, message: str) -> bool:
    """Commits everything; returns whether there was anything."""
    git(project, "add", "--all")
    if not git(project, "status", "--porcelain"):
        return False
    identity = []
    if not git(project, "config", "--default", "", "--get", "user.email"):
        identity = ["-c", "user.name=new_project.py", "-c", "user.email=new_project@localhost"]
    git(project, *identity, "commit", "--quiet", "--no-verify", "-m", message)
    return True


def git(folder: Path, *arguments: str) -> str:
    command = ["git", *arguments]
    try:
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Refusal("git was not found, which a project is made with: install it") from None
    if result.returncode:
        raise Refusal(f"git {' '.join(arguments)} failed: {result.stderr.strip()}")
    return result.stdout.strip()


def check_package_name(name: str, source: Repository) -> None:
    import torch

    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise Refusal(
            f"'{name}' is no name for a package: lower-case letters, digits and single underscores"
        )
    top = {path.relative_to(source.root).parts[0] for path in source.files()}
    # Among them what git leaves out, as it does what builds leave behind.
    command = ["git", "check-ignore", "--quiet", f"{name}/"]
    ignored = subprocess.run(command, cwd=source.root, check=False).returncode == 0
    beside = ignored or {name, f"{name}.py"} & top
    shared = "".join(path.read_text() for path in source.csrc.rglob("*.*"))
    ours = name in (PACKAGE, "my_op", *operators(source)) or re.search(rf"\b{name}::", shared)
    defined = {op.partition("::")[0] for op in torch._C._dispatch_get_all_op_names()}
    defined |= {*dir(torch._ops._Ops), *vars(torch.ops)}
    cpp = name in CPP_KEYWORDS or is_macro(name) or hasattr(ctypes.CDLL(None), name)
    # Not those of this folder, which Python finds first.
    elsewhere = [path for path in sys.path if Path(path).resolve() != Path(__file__).parent]
    module = name in sys.stdlib_module_names or PathFinder.find_spec(name, elsewhere)
    refuse(
        f"choose another name: '{name}' is ",
        (ours, "used by the sources for something else"),
        ("my_op" in name, "in part 'my_op', for which new_op.py writes an operator's name"),
        (beside, "a file or a folder beside the package"),
        (keyword.iskeyword(name) or module, "a keyword or a module of Python"),
        (cpp, "a name of C++ or its library"),
        (name in defined, "a namespace of torch's"),
    )


if __name__ == "__main__":
    main()

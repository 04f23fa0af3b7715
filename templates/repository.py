"""The places of the repository that know an operator: its folder, its schema, its imports.

How they are added, removed, and put back when something goes wrong on the way.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import torch
from formatting import format_text
from schema import Refusal

PACKAGE = "extension_cpp"
CPP = (".h", ".cpp", ".cu", ".cuh")

# Of a line that is shown, characters.
SHOWN = 100


@dataclass
class Changes:
    """What to write and to delete: all of it or, after an error, nothing.

    Attributes:
        texts: of the files; None for a folder that goes.
    """

    root: Path
    texts: dict[Path, str | None] = field(default_factory=dict)
    applied: bool = False

    def apply(self) -> None:
        with (
            ExitStack() as last,
            tempfile.TemporaryDirectory(dir=self.root, prefix=".new_op-") as scratch,
            ExitStack() as undo,
        ):
            # What is a moment's work is not interrupted.
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
            last.callback(signal.signal, signal.SIGINT, before)
            for number, (path, text) in enumerate(self.texts.items()):
                kept = Path(scratch, str(number))
                if os.path.lexists(path):
                    os.rename(path, kept)
                    undo.callback(os.rename, kept, path)
                if text is None:
                    continue
                if not path.parent.exists():
                    path.parent.mkdir()
                    undo.callback(path.parent.rmdir)
                undo.callback(path.unlink, missing_ok=True)
                path.write_text(text, encoding="utf-8", newline="\n")
                if kept.exists():
                    shutil.copymode(kept, path)
            undo.pop_all()
            self.applied = True

    def show(self) -> str:
        """What apply() would do."""
        lines = []
        for path, text in self.texts.items():
            name = str(path.relative_to(self.root))
            if text is None:
                lines.append(f"delete {name}/")
            elif path.exists():
                old, new = path.read_text().splitlines(), text.splitlines()
                diff = difflib.unified_diff(old, new, name, name, n=1, lineterm="")
                lines += [f"edit {name}", *(f"    {line}" for line in list(diff)[2:])]
            else:
                lines.append(f"write {name} ({text.count(chr(10))} lines)")
        return "\n".join(lines)


class Repository:
    """A checkout of the package."""

    def __init__(self, root: Path, package: str = PACKAGE) -> None:
        self.root, self.package = root, package
        self.csrc = root / package / "csrc"
        # The public functions and the modules.
        self.imports = {"ops": root / package / "ops.py", "module": root / package / "nn.py"}
        self.operators = root / package / "operators"
        # The public interface as one expectation.
        self.snapshot = root / "tests" / "test_schemas.py"

    # What there is

    def import_statements(self, name: str) -> dict[Path, list[str]]:
        """The statements of ops.py and nn.py that import from an operator's folder."""
        pattern = rf"^from {self.package}\.operators\.{name}\.\w+ import (?:\([^)]*\)|[^(\n]*)\n"
        return {path: re.findall(pattern, path.read_text(), re.M) for path in self.imports.values()}

    def _registered(self, folder: Path) -> set[str]:
        """The operators that the sources of a folder declare or register kernels of."""
        sources = "".join(path.read_text() for path in folder.glob("*") if path.suffix in CPP)
        return set(re.findall(r'(?:\bOperator \w+\{|m\.impl\()\s*"(\w+)', sources))

    def _owner(self, name: str, besides: str) -> str | None:
        """The operator, another than `besides`, whose sources register kernels under a name."""
        for folder in sorted(self.operators.iterdir()):
            if folder.name != besides and name in self._registered(folder):
                return folder.name
        return None

    # What is added

    def check_free(self, schemas: list[str]) -> None:
        """Refuses an operator that exists, in whole or in part."""
        names = [schema.partition("(")[0] for schema in schemas]
        name, folder = names[0], self.operators / names[0]
        for wanted in names:
            if owner := self._owner(wanted, besides=name):
                part = "" if owner == wanted else f", as a part of {owner}"
                raise Refusal(f"the operator '{wanted}' exists already{part}")
        imported = self.import_statements(name)[self.imports["ops"]]
        there = ["its folder"] * folder.exists() + ["its import in ops.py"] * bool(imported)
        if there:
            found = " and ".join(there)
            raise Refusal(f"the operator '{name}' exists: {found}. To take it out: --remove {name}")

    def add(self, name: str, files: dict[str, str], schemas: list[str]) -> Changes:
        if f"{name}.h" in files and (self.csrc / f"{name}.h").exists():
            raise Refusal(f"the operator's name '{name}' is that of the header csrc/{name}.h")
        changes = Changes(self.root, {self.operators / name / file: files[file] for file in files})
        ops = self.imports["ops"]
        statement = f"from {self.package}.operators.{name}.ops import {name} as {name}\n"
        text = ops.read_text() + statement
        try:
            ast.parse(text)
        except SyntaxError as error:  # as of a merge with conflicts
            raise Refusal(
                f"{ops.relative_to(self.root)}:{error.lineno} is no Python ({error.msg}): mend it, "
                "then ask again"
            ) from None
        changes.texts[ops] = format_text(ops.name, text)
        self._expect(changes, lambda lines: sorted([*lines, *map(as_torch_spells, schemas)]))
        return changes

    def _expect(self, changes: Changes, edit: Callable[[list[str]], list[str]]) -> None:
        """Edits the list of schemas that a test expects, one a line."""
        text = self.snapshot.read_text() if self.snapshot.exists() else ""
        expected = re.search(r'(?<="""\\\n)(?:\w+\(.*\n)*(?=""")', text)
        if expected is None:
            return
        new = "".join(f"{line}\n" for line in edit(expected[0].splitlines()))
        if new != expected[0]:
            changes.texts[self.snapshot] = text[: expected.start()] + new + text[expected.end() :]

    # What is removed

    def remove(self, name: str) -> Changes:
        """Takes out an operator, also one that is half there; of a folder that is a link, the link.

        Raises:
            Refusal: no operator stands under that name, or it is a part of another's.
        """
        if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
            raise Refusal(
                f"{name!r} is no operator's name, which is one word: that of a folder in "
                f"{self.operators.relative_to(self.root)}"
            )
        folder = self.operators / name
        if owner := self._owner(name, besides=name):
            raise Refusal(f"'{name}' is a part of the operator '{owner}': --remove {owner}")
        statements = self.import_statements(name)
        names = {name, *self._registered(folder)}
        # Of a backward that the sources have no more the line is left.
        longer = tuple(f"{x.name}_" for x in self.operators.glob(f"{name}_*"))
        backward = re.compile(rf"{name}(_\w+)?_backward")

        def is_own(schema: str) -> bool:
            own = schema.partition("(")[0]
            made = backward.fullmatch(own) and not f"{own}_".startswith(longer)
            return bool(own in names or made) and not self._owner(own, besides=name)

        if not folder.exists() and not any(statements.values()):
            raise Refusal(f"there is no operator '{name}'")
        changes = Changes(self.root, {folder: None} if folder.exists() else {})
        for path, found in statements.items():
            text = path.read_text()
            for statement in found:
                text = text.replace(statement, "", 1)
            if found:
                changes.texts[path] = text
        self._expect(changes, lambda lines: [x for x in lines if not is_own(x)])
        return changes

    def uses(self, name: str) -> list[str]:
        """Where an operator is used outside of its own folder and lines: `path:line: text`."""
        names = self.names(name)
        own_places = (self.snapshot, *self.imports.values())
        # Its examples speak of operators that are to be made, whichever there are.
        guide = self.root / "templates" / "README.md"
        found = []
        for path in self.files():
            if self.operators / name in path.parents or path in (*own_places, guide):
                continue
            text = path.read_text(errors="ignore")
            # The pattern is slow, and nearly all files and lines have none of the names.
            if not any(name in text for name in names):
                continue
            lines = text.split("\n")
            for number in self._mentioning(names, path, text):
                line = lines[number].strip()
                shown = line if len(line) <= SHOWN else f"{line[:SHOWN].rstrip()} ..."
                found.append(f"{path.relative_to(self.root)}:{number + 1}: {shown}")
        return found

    def _mentioning(self, names: set[str], path: Path, text: str) -> list[int]:
        """The lines of a file that speak of operators, those of imports of several lines, too."""
        pattern = self.mention(names, path, text)
        numbers = {
            number
            for number, line in enumerate(text.split("\n"))
            if any(name in line for name in names) and pattern.search(line)
        }
        imports = rf"^from {self.package}\.(?:ops|nn) import \([^)]*"
        for statement in re.finditer(imports, text, re.M):
            ends = [match.end() for match in pattern.finditer(statement.group())]
            numbers |= {text.count("\n", 0, statement.start() + end) for end in ends}
        return sorted(numbers)

    def mention(self, names: set[str], path: Path, text: str) -> re.Pattern[str]:
        """A pattern for the ways in which a file speaks of operators."""
        any_name = rf"(?:{'|'.join(sorted(names))})\b"
        ways = [
            rf"\b{self.package}(?:\.ops|\.nn)?(?:\.|::){any_name}",
            rf"\boperators[./]{any_name}",
            rf"^from {self.package}\.(?:ops|nn) import (?:\([^)]*?|.*?)\b{any_name}",
        ]
        if re.search(rf"^from {self.package} import .*\b(?:ops|nn)\b", text, re.M):
            ways.append(rf"(?<![\w.])(?:ops|nn)\.{any_name}")
        for alias in self._aliases(path, text):
            ways.append(rf"(?<![\w.]){alias}\.{any_name}")
        if path.suffix == ".md":
            ways += [rf"`{any_name}`", rf"\[`?{any_name}`?\]"]
        return re.compile("|".join(ways), re.M)

    def _aliases(self, path: Path, text: str) -> list[str]:
        """The names that a file gives to the operators' namespace."""
        namespace = f"torch.ops.{self.package}"
        if path.suffix != ".py" or namespace not in text:
            return []
        with suppress(SyntaxError):
            return [
                target.id
                for node in ast.parse(text).body
                if isinstance(node, ast.Assign) and ast.unparse(node.value) == namespace
                for target in node.targets
                if isinstance(target, ast.Name)
            ]
        return []

    def names(self, name: str) -> set[str]:
        """The names under which an operator is imported: its own, and that of its module."""
        statements = "".join(s for found in self.import_statements(name).values() for s in found)
        return {name} | set(re.findall(r"import (\w+) as", statements))

    def files(self) -> list[Path]:
        """The files of the repository, those that git ignores left out."""
        command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
        try:
            listed = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
        except FileNotFoundError:  # no git
            return self._files_without_git()
        if listed.returncode:  # no repository, as in an unpacked source distribution
            return self._files_without_git()
        paths = [self.root / name for name in listed.stdout.split("\0") if name]
        return sorted({path for path in paths if path.is_file()})

    def _files_without_git(self) -> list[Path]:
        """Those that no pattern of .gitignore names, and that lie in no hidden folder or venv."""
        ignored = self.root / ".gitignore"
        lines = ignored.read_text().splitlines() if ignored.exists() else []
        patterns = [line.strip().rstrip("/") for line in lines if line.strip()[:1] not in "#!"]

        def is_wanted(path: Path) -> bool:
            place = f"/{path.relative_to(self.root).as_posix()}"
            return not any(fnmatch(place if x.startswith("/") else path.name, x) for x in patterns)

        found = []
        for folder, folders, files in os.walk(self.root):
            if "pyvenv.cfg" in files:
                folders.clear()
                continue
            folders[:] = [x for x in folders if x[0] != "." and is_wanted(Path(folder, x))]
            found += [path for x in files if is_wanted(path := Path(folder, x))]
        return sorted(path for path in found if path.is_file())


def as_torch_spells(schema: str) -> str:
    """A schema as torch prints it, as it stands in a string of Python."""
    return str(torch._C.parse_schema(schema)).replace("\\", "\\\\")

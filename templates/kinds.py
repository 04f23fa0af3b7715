"""The templates: what each is for, and what of it depends on the kind alone."""

from __future__ import annotations

import dataclasses
import functools
import re
import runpy
from pathlib import Path
from typing import Any

from schema import Schema, parse

TEMPLATES = Path(__file__).resolve().parent
PACKAGE = TEMPLATES.parent / "extension_cpp"
LIST = "Tensor[]"


@functools.cache
def defined_in(file: str) -> dict[str, Any]:
    """What a file of the package defines, whose library need not be built yet."""
    return runpy.run_path(str(PACKAGE / file))


def notation() -> dict[str, Any]:
    return defined_in("notation.py")


class Kind:
    """A template; its sources say most of it.

    Attributes:
        name: of its folder.
        schema: its own.
        input: the shape of every tensor among the arguments, in the notation of csrc/notation.h.
        outputs: those of the results; the last stands for all that follow.
        backward_takes: the tensors that the backward takes; "input" is the first of the operator.
        backward_inputs: their shapes.
        lists: whether it takes lists of tensors, as a kernel of its own does.
        by_rows: whether it is a functor for rows (csrc/rows.h).
    """

    def __init__(self, name: str) -> None:
        self.name = name
        source = "".join(path.read_text() for path in sorted((TEMPLATES / name).glob("my_op*")))
        declared = re.findall(r'const Operator kMyOp\w*\{\s*"(.*?)",\s*"(.*?)"\};', source)
        text, line = declared[0]
        schema = parse(text.replace("my_op", "template_op", 1))  # which may be no operator's name
        self.schema = dataclasses.replace(schema, text=text, name="my_op")
        inputs, outputs = sides(line)
        self.input, self.outputs = inputs[0], tuple(outputs)
        self.backward_takes = re.findall(r"Tensor (\w+)", "".join(s for s, _ in declared[1:]))
        self.backward_inputs = [
            shape.partition(":")[0] for _, backward in declared[1:] for shape in sides(backward)[0]
        ]
        self.lists = "my_op_kernel" in source
        self.by_rows = "rowwise<MyOp" in source

    def accepts(self, schema: Schema) -> bool:
        lists = any(a.type == LIST for a in schema.arguments)
        return returned(self.schema) == returned(schema) and (self.lists or not lists)

    @property
    def fits(self) -> str:
        """What schemas it is for, in words."""
        takes = "" if self.lists else "take a fixed number of tensors and "
        return f"operators that {takes}{returned(self.schema)}"


def sides(line: str) -> tuple[list[str], list[str]]:
    """The shapes in a line, of arguments and of results."""
    inputs, _, outputs = line.partition("->")
    return (
        [shape.strip() for shape in inputs.split(",")],
        [shape.strip() for shape in outputs.split(",")],
    )


def returned(schema: Schema) -> str:
    if schema.mutates:
        return "write to an argument, Tensor(a!), and return nothing"
    return "return one new tensor" if schema.outputs == 1 else "return several new tensors"


KINDS = {
    name: Kind(name)
    for name in (
        *("elementwise", "rowwise", "reduction", "scan", "multi_output", "kernel"),
        *("multi_output_kernel", "inplace", "inplace_kernel"),
    )
}


@dataclasses.dataclass
class Options:
    """The command line of new_op.py, which fills it in."""

    schema: str = ""
    source: str = ""  # file.py:function
    template: str | None = None  # which of KINDS
    shapes: str | None = None  # the line, where it is not that of the template
    cuda: Path | None = None  # an existing source
    no_cuda: bool = False
    no_cpu: bool = False
    no_grad: bool = False
    backward: str = "operator"  # or "torch"
    remove: str | None = None
    dry_run: bool = False

    @property
    def own_backward(self) -> bool:
        return not self.no_grad and self.backward == "operator"

    @property
    def devices(self) -> tuple[str, ...]:
        return ("cpu",) * (not self.no_cpu) + ("cuda",) * (not self.no_cuda)

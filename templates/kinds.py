"""The templates: what each is for, and what of it depends on the kind alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from schema import Schema, parse

TEMPLATES = Path(__file__).resolve().parent
LIST = "Tensor[]"


class Kind:
    """A template; its sources say most of it.

    Attributes:
        name: of its folder.
        fits: what schemas it is for, in words.
        lists: whether it takes lists of tensors.
        schema: its own.
        input: the shape of every tensor among the arguments, in the notation of csrc/notation.h.
        outputs: those of the results; the last stands for all that follow.
        backward_takes: the tensors that the backward takes; "input" is the first of the operator.
        host: the host function of csrc that it calls, where it has no kernel of its own.
    """

    def __init__(self, name: str, fits: str, lists: bool = False) -> None:
        self.name, self.fits, self.lists = name, fits, lists
        source = "".join(path.read_text() for path in sorted((TEMPLATES / name).glob("my_op*")))
        declared = re.findall(r'const Operator kMyOp\w*\{\s*"(.*?)",\s*"(.*?)"\};', source)
        self.schema, line = declared[0]
        inputs, outputs = (re.split(r", *", side.strip()) for side in line.split("->"))
        self.input, self.outputs = inputs[0], tuple(outputs)
        self.backward_takes = re.findall(r"Tensor (\w+)", "".join(s for s, _ in declared[1:]))
        self.host = "".join(re.findall(r"return (\w+)<MyOp\b", source))

    def accepts(self, schema: Schema) -> bool:
        own = parse_template(self.schema)
        lists = any(a.type == LIST for a in schema.arguments)
        return (
            own.mutates == schema.mutates
            and (own.outputs > 1) == (schema.outputs > 1)
            and (self.lists or not lists)
        )


def parse_template(text: str) -> Schema:
    schema = parse(text.replace("my_op", "template_op", 1))
    return Schema(text, "my_op", schema.arguments, schema.outputs)


# For `fits`.
FIXED = "operators that take a fixed number of tensors and return"
KINDS = {
    kind.name: kind
    for kind in (
        Kind("elementwise", f"{FIXED} one new tensor"),
        Kind(
            "rowwise",
            f"{FIXED} one new tensor",
        ),
        Kind(
            "reduction",
            f"{FIXED} one new tensor",
        ),
        Kind(
            "multi_output",
            f"{FIXED} several new tensors",
        ),
        Kind(
            "kernel",
            "operators that return one new tensor",
            lists=True,
        ),
        Kind(
            "inplace",
            "operators that write to an argument, Tensor(a!), take a fixed number of tensors and "
            "return nothing",
        ),
    )
}


@dataclass(frozen=True)
class Options:
    """What the command line asks for besides the schema."""

    cpu: bool = True
    cuda: bool = True
    grad: bool = True
    backward: str = "operator"  # or "torch"
    cuda_source: tuple[str, str] | None = None  # the name and the text of a file
    shapes: str | None = None  # the line, where it is not that of the template

    @property
    def own_backward(self) -> bool:
        return self.grad and self.backward == "operator"

    @property
    def devices(self) -> tuple[str, ...]:
        return ("cpu",) * self.cpu + ("cuda",) * self.cuda

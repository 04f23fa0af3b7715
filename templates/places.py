"""What of an operator depends on its schema, and is not about one language."""

from __future__ import annotations

import re

from kinds import LIST, Kind, Options
from naming import camel, free
from schema import Argument, Schema


class Places:
    """The texts of one operator that depend on its schema.

    fragments() gives those that stand within lines, and blocks, which take whole lines. Where a
    block is empty, its lines are gone.

    Attributes:
        schema: it may have stand-ins for its arguments' names.
        backward_schema: that of the backward operator, with the names themselves.
    """

    def __init__(self, schema: Schema, kind: Kind, options: Options, backward_schema: str) -> None:
        self.schema = schema
        self.kind = kind
        self.options = options
        self.backward_schema = backward_schema
        self.name = schema.name
        self.camel = camel(schema.name)
        self.main = schema.main
        self.tensors = [a for a in schema.arguments if a.is_tensor]
        self.positional = [a for a in schema.arguments if not a.kwarg_only]
        self.others = [a for a in self.tensors if a is not schema.main]

    @property
    def also_written(self) -> list[Argument]:
        return [a for a in self.others if a.mutated]


def backward_schema(kind: Kind, schema: Schema) -> str:
    # As naming.py spells them in Python: the operator's own arguments keep their names.
    own = {schema.main.name, *(a.name for a in schema.settings)}
    names = [schema.main.name if n == "input" else free(n, own) for n in kind.backward_takes]
    arguments = [f"Tensor {name}" for name in names]
    arguments += [f"{a.type} {a.name}" for a in schema.settings]
    return f"{schema.name}_backward({', '.join(arguments)}) -> Tensor"


def shapes(kind: Kind, schema: Schema) -> str:
    """The line of shapes of a template's operator (csrc/notation.h)."""
    tensors = [a for a in schema.arguments if a.is_tensor]
    first = [a.type for a in tensors].index("Tensor")
    # A list is as long as a kernel takes (csrc/arguments.h), and what comes first may be none.
    most = {LIST: " [64]"}
    inputs = [kind.input + most.get(a.type, "") for a in tensors]
    inputs[:first] = [f"{shape}:{tensors[first].name}" for shape in inputs[:first]]
    outputs = [kind.outputs[min(k, len(kind.outputs) - 1)] for k in range(schema.outputs)]
    return f"{', '.join(inputs)} -> {', '.join(outputs)}".rstrip()


def backward_shapes(kind: Kind, schema: Schema, line: str) -> str:
    """That of its backward operator, whose tensors have the shapes that they have there."""
    inputs, outputs = ([s.strip() for s in side.split(",")] for side in line.split("->"))
    tensors = [a for a in schema.arguments if a.is_tensor]
    main = re.sub(r"\s*:.*", "", inputs[tensors.index(schema.main)])
    by_name = {"grad_output": re.sub(r"\s*:.*", "", outputs[0]), "input": main, "mean": outputs[-1]}
    return f"{', '.join(by_name[name] for name in kind.backward_takes)} -> {main}"


def weighted(k: int, value: str, number: str = "{}") -> str:
    """The k-th term of a sum, with a weight of its own: two that change places are noticed."""
    return value if k == 0 else f"{value} / {number.format(k + 1)}"

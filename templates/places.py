"""What of an operator depends on its schema, and is not about one language."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from element_types import ARITHMETIC, OWN, of_results
from kinds import LIST, Kind, Options, notation, sides
from naming import camel, free
from schema import Argument, Schema, names_in, parse


class Places:
    """The texts of one operator that depend on its schema.

    fragments() gives those that stand within lines, and blocks, which take whole lines. Where a
    block is empty, its lines are gone.

    Attributes:
        number: how a number of the arithmetic is written.
        schema: it may have stand-ins for its arguments' names.
        backward_schema: that of the backward operator, with the names themselves.
    """

    number = "{}"

    def __init__(self, schema: Schema, kind: Kind, options: Options, backward_schema: str) -> None:
        self.schema = schema
        self.kind = kind
        self.options = options
        self.backward_schema = backward_schema
        self.name = schema.name
        self.camel = camel(schema.name)
        self.main = schema.main
        self.positional = [a for a in schema.arguments if not a.kwarg_only]
        self.others = [a for a in schema.tensors if a is not schema.main]
        self.also_written = [a for a in self.others if a.mutated]

    def each(
        self, arguments: Sequence[Argument], usual: str, by_type: Mapping[str, str] = {}
    ) -> str:
        """A piece for each argument `a`. In a sum each has a weight: two that change places are
        noticed.
        """
        weights = ["", *(f" / {self.number.format(k)}" for k in range(2, len(arguments) + 1))]
        return "".join(
            by_type.get(a.type, usual).format(a=a, weight=weight)
            for a, weight in zip(arguments, weights, strict=False)
        )

    @property
    def results(self) -> Sequence[str]:
        """The types of the results' elements."""
        if self.options.shapes is not None and self.schema.outputs:
            return of_results(notation()["parse_notation"](self.schema.text, self.options.shapes))
        own = [ARITHMETIC if shape.endswith(":sum") else OWN for shape in self.kind.outputs]
        return [own[min(k, len(own) - 1)] for k in range(self.schema.outputs)]

    @property
    def promotes(self) -> bool:
        """Whether tensors of several dtypes may meet under autocast, and are to be of one.

        What has a dtype of its own stays in it; of what is written to, a copy would be.
        """
        floating = [a for a in self.schema.tensors if not a.integer]
        of_its_dtype = all(a.element == OWN and not a.converted for a in floating)
        return of_its_dtype and len(floating) > 1 and not self.schema.mutates

    def factor(self, setting: str) -> str:
        """What the main tensor is multiplied by, in which there is a term for each setting."""
        terms = self.each(self.schema.settings, f" + {setting}{{weight}}")
        return f" * ({self.number.format(1)}{terms})" if terms else ""


def backward_schema(kind: Kind, schema: Schema) -> str:
    # As naming.py spells them in Python: the operator's own arguments keep their names.
    own = {schema.main.name, *(a.name for a in schema.settings)}
    names = [schema.main.name if n == "input" else free(n, own) for n in kind.backward_takes]
    arguments = [f"Tensor {name}" for name in names]
    arguments += [f"{a.type} {a.name}" for a in schema.settings]
    return f"{schema.name}_backward({', '.join(arguments)}) -> Tensor"


def shapes(kind: Kind, schema: Schema) -> str:
    """The line of shapes of a template's operator (csrc/notation.h)."""
    # A list is as long as a kernel takes (csrc/arguments.h), and what comes first may be none.
    inputs = [kind.input + (" [64]" if a.type == LIST else "") for a in schema.tensors]
    first = [a.type for a in schema.tensors].index("Tensor")
    inputs[:first] = [f"{shape}:{schema.tensors[first].name}" for shape in inputs[:first]]
    outputs = [kind.outputs[min(k, len(kind.outputs) - 1)] for k in range(schema.outputs)]
    return own_sizes(schema.text, f"{', '.join(inputs)} -> {', '.join(outputs)}".rstrip())


def own_sizes(schema: str, line: str) -> str:
    """A line of a template's, whose `n` is none of the schema's numbers."""
    return re.sub(r"(?<![\w*:=])n\b", free("n", names_in(schema, "int", "SymInt")), line)


def backward_shapes(kind: Kind, schema: Schema, line: str) -> str:
    """That of its backward operator, whose tensors have the shapes that they have there."""

    def of_any_dtype(shape: str) -> str:
        return re.sub(r"\s*:.*", "", shape)

    inputs, outputs = sides(line)
    main = of_any_dtype(inputs[schema.tensors.index(schema.main)])
    grad_output = of_any_dtype(outputs[0])
    if grad_output.startswith("="):  # all dimensions of an argument, as the text calls it
        names = [a.name for a in parse(schema.text).tensors]
        like = dict(zip(names, inputs, strict=False)).get(grad_output[1:].strip(), grad_output)
        grad_output = of_any_dtype(like)
    # Of several results, the second: the first statistic.
    by_name = {"grad_output": grad_output, "input": main, "mean": outputs[min(1, len(outputs) - 1)]}
    return f"{', '.join(by_name[name] for name in kind.backward_takes)} -> {main}"

"""The pieces of an operator's spec.py that depend on its schema."""

from __future__ import annotations

import re
from collections import Counter

from kinds import LIST
from places import weighted
from python import Python


class Spec(Python):
    """For any schema, in the same order."""

    def fragments(self) -> tuple[list[str], list[str]]:
        inline = [
            self.without_types("reference"),
            self.without_types("op_reference"),
            self.python_call("op_reference"),
            self.python_factor,
            self.python_terms,
            f"return output{', mean' * (self.schema.outputs - 1)}",
        ]
        return inline, [self.calls]

    @property
    def python_terms(self) -> str:
        terms = ""
        for k, a in enumerate(self.others):
            entries = f"sum((i + 1) * entry for i, entry in enumerate({a.name}))"
            term = weighted(k, entries if a.type == LIST else a.name)
            terms += (
                f" + (0 if {a.name} is None else {term})" if a.type == "Tensor?" else f" + {term}"
            )
        return terms

    def _sample(self, values: dict[str, str]) -> str:
        given = [a for a in self.schema.arguments if a.name in values]
        parts = [f"{a.name}={values[a.name]}" if a.kwarg_only else values[a.name] for a in given]
        return f"yield Sample({', '.join(parts)})"

    @property
    def calls(self) -> str:
        """What follows from the line of shapes is left out."""
        fields = {"name": f'"{self.name}"', "reference": "reference"}
        text = ""
        if self.schema.outputs > 1:
            fields["op_reference"] = "op_reference"
        if self.needs_samples:
            fields["samples"] = "samples"
            text += "# EDIT: calls whose first tensor has this shape.\ndef samples(make, shape):\n"
            text += "".join(f"    {line}\n" for line in self.samples) + "\n\n"
        if len(self.options.devices) == 1:
            fields["devices"] = f'("{self.options.devices[0]}",)'
        if self.schema.mutates or self.options.no_grad:
            fields["differentiable"] = "False"
        return f"{text}spec = OpSpec({', '.join(f'{k}={v}' for k, v in fields.items())})"

    @property
    def needs_samples(self) -> bool:
        """Whether those that follow would not give each argument a value of its own."""
        types = [a.type for a in self.schema.settings]
        return len(set(types)) < len(types) or not {*types} <= {"int", "float", "bool"}

    @property
    def samples(self) -> list[str]:
        arguments = self.schema.arguments
        counts: Counter[str] = Counter()
        values = {}
        for a in arguments:
            # Distinct within each type; int and int? share a series.
            series = a.type.rstrip("?").replace("SymInt", "int")
            values[a.name] = a.info.values(counts[series])
            counts[series] += 1
        # Of switches there are two values only: so many calls that each differs from each somewhere.
        switches = [a.name for a in arguments if a.type == "bool"]
        lines = []
        for bit in range(max(1, (len(switches) - 1).bit_length())):
            values |= {name: str(not n >> bit & 1) for n, name in enumerate(switches)}
            lines.append(self._sample(values))
        # And one without what may be left out.
        bare = {a.name: values[a.name] for a in arguments if a.default is None}
        bare |= {a.name: "None" for a in arguments if a.name in bare and a.type.endswith("?")}
        bare |= {a.name: "[]" for a in arguments if a.name in bare and a.type == LIST}
        return list(dict.fromkeys([*lines, self._sample(bare)]))

    def complete(self, file: str, text: str) -> str:
        """Has the reference write what the operator writes besides, and imports what is used."""
        writes = "".join(f"\n    {a.name}.copy_({self.main.name})" for a in self.also_written)
        text = re.sub(r"\.copy_\(.*", lambda match: match[0] + writes, text)
        return "import torch\nfrom extension_cpp.testing import Sample\n" + text

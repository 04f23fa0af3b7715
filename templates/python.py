"""The pieces of an operator's ops.py and of its spec.py that depend on its schema."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from itertools import count

from element_types import FLOAT8, OWN, of_other_floats
from given_shapes import made
from kinds import LIST
from places import Places
from schema import Argument

# Those that samples may need.
IMPORTS = """\
import torch
from extension_cpp.shapes import sum_dtype
from extension_cpp.testing import Sample
"""


class Python(Places):
    """For any schema, in the same order."""

    def fragments(self) -> tuple[list[str], list[str]]:
        main, settings = self.main.name, self.schema.settings
        position = self.positional.index(self.main)
        takes = [main if name == "input" else name for name in self.kind.backward_takes]
        keyword_only = any(a.kwarg_only for a in self.schema.arguments)
        inline = [
            f"({self.parameters(lambda a: a.python_parameter)})",
            self.python_call(f".{self.name}"),
            f"(ctx, inputs, {'keyword_only_inputs, ' if keyword_only else ''}output)",
            f"inputs[{position}]",
            self.each(settings, ", ctx.{a.name}"),
            f"ctx.needs_input_grad[{position}]",
            self.input_grads,
            f"_backward_in_torch({', '.join([*takes, *(a.name for a in settings)])})",
            self.factor("{a.python_number}"),
        ]
        described = [a for a in self.schema.arguments if a is not self.main]
        numbers = [a for a in settings if re.match(r"(float|int)\b", a.info.hint)]
        blocks = [
            "\n".join(f"{a.name}: {a.info.describe.format(main=main)}" for a in described),
            self.each(numbers, f'checks.check_number("{self.name}", "{{a.name}}", {{a.name}})\n'),
            self.kept_settings,
        ]
        return inline, blocks

    def parameters(self, spell: Callable[[Argument], str]) -> str:
        by_keyword = [spell(a) for a in self.schema.arguments if a.kwarg_only]
        star = ["*"] if by_keyword else []
        return ", ".join([*map(spell, self.positional), *star, *by_keyword])

    def python_call(self, function: str, values: dict[str, str] | None = None) -> str:
        """Of an operator's own arguments, or of those that have values."""
        values = values or {a.name: a.name for a in self.schema.arguments}
        words, by_keyword = [], False
        for a in self.schema.arguments:
            by_keyword |= a.kwarg_only or a.name not in values
            if a.name in values:
                words.append(f"{a.name}=" * by_keyword + values[a.name])
        return f"{function}({', '.join(words)})"

    @property
    def kept_settings(self) -> str:
        lines = []
        for k, a in enumerate(self.schema.arguments):
            place = f'keyword_only_inputs["{a.name}"]' if a.kwarg_only else f"inputs[{k}]"
            lines += [] if a.is_tensor else [f"ctx.{a.name} = {place}"]
        return "\n".join(lines) or ("" if "input" in self.kind.backward_takes else "pass")

    @property
    def input_grads(self) -> str:
        of_list = {LIST: "(j + 1) * grad_output{weight}\n"}
        grads = self.each(self.others, "grad_output{weight}\n", of_list).splitlines()
        for k, a in enumerate(self.others):
            # What has been rounded would be summed, where it was broadcast.
            wide = "grad_output.to(sum_dtype(grad_output.dtype))"
            grads[k] = grads[k].replace("grad_output", wide) if of_other_floats(a) else grads[k]
        found = dict(zip(self.others, grads, strict=True)) | {self.main: f"grad_{self.main.name}"}
        # Where there are several results it may be None, of which there is no part.
        several, is_there = self.schema.outputs > 1, "grad_output is not None and "
        for position, a in enumerate(self.positional):
            needed = f"ctx.needs_input_grad[{position}]"
            if a.integer:
                found[a] = "None"
            elif a.type == LIST:
                needed = (
                    f"{is_there * several}needed else None for j, needed in enumerate({needed})"
                )
                found[a] = f"[{found[a]} if {needed}]"
            elif a in self.others:
                is_part = several and found[a] != "grad_output"
                found[a] += f" if {is_there * is_part}{needed} else None"
        return f"return ({', '.join(found.get(a, 'None') for a in self.positional)})"

    def complete(self, file: str, text: str) -> str:
        """Imports all that any type needs; formatting takes out what is not used."""
        text = text.replace("\nimport", "\nfrom collections.abc import Sequence\nimport", 1)
        if not self.promotes:
            text = re.sub(r"# EDIT: .*\nregistration\.register_autocast\(.*\n", "", text)
        # Where no other gradient is made of it.
        text = re.sub(r"\n    grad_output = .*(?=\n    return (?!.*\bgrad_output\b))", "", text)
        last = "\nfrom extension_cpp import checks, registration\n"
        return text.replace(last, f"{last}from extension_cpp.shapes import sum_dtype\n", 1)


class Spec(Python):
    """For any schema, in the same order."""

    def fragments(self) -> tuple[list[str], list[str]]:
        given = self.parameters(lambda a: f"{a.name}={a.default}" if a.default else a.name)
        entries = " + sum((i + 1) * entry for i, entry in enumerate({a.name})){weight}"
        maybe = " + (0 if {a.name} is None else {a.name}{weight})"
        inline = [
            f"({given})",
            self.factor("{a.python_number}"),
            self.each(self.others, " + {a.name}{weight}", {"Tensor?": maybe, LIST: entries}),
            f"return output{', mean' * (self.schema.outputs - 1)}",
            self.calls,
        ]
        return inline, []

    @property
    def calls(self) -> str:
        """What follows from the line of shapes is left out. A template may say more behind it."""
        reference = "op_reference" if self.schema.outputs > 1 else "reference"
        words, text = [f'name="{self.name}"', f"{reference}={reference}"], ""
        types = [a.type for a in self.schema.settings]
        # Those that follow would not give each argument a value of its own.
        if len(set(types)) < len(types) or not {*types} <= {"int", "float", "bool"}:
            words.append("samples=samples")
            text += "# EDIT: calls whose first tensor has this shape.\ndef samples(make, shape):\n"
            text += self.samples
        if len(self.options.devices) == 1:
            words.append(f'devices=("{self.options.devices[0]}",)')
        if self.schema.mutates or self.options.no_grad:
            words.append("differentiable=False")
        if self.promotes:
            words.append('autocast="promote"')
        return f"{text}spec = OpSpec({', '.join(words)}"

    @property
    def samples(self) -> str:
        """The body of the function."""
        arguments = self.schema.arguments
        series: defaultdict[str, count[int]] = defaultdict(count)
        values = {}
        for a in arguments:
            # Distinct within each type; int and int? share a series.
            n = next(series[a.type.rstrip("?").replace("SymInt", "int")])
            values[a.name] = a.info.values[n % len(a.info.values)]
        condition, said = "", dict[str, str]()
        if self.options.shapes is not None:
            condition, said = made(self.schema, self.options.shapes, values)
            values |= said
        # Of switches there are two values only: so many calls that each pair differs somewhere.
        switches = [a.name for a in arguments if a.type == "bool"]
        lines = []
        for bit in range(max(1, (len(switches) - 1).bit_length())):
            values |= {name: str(not n >> bit & 1) for n, name in enumerate(switches)}
            lines.append(self.python_call("Sample", values))
        # And one without what may be left out.
        kept = [a for a in arguments if a.default is None or (a.name in said and not a.is_tensor)]
        bare = {a.name: values[a.name] for a in kept}
        bare |= {a.name: "None" for a in arguments if a.name in bare and a.type.endswith("?")}
        bare |= {a.name: "[]" for a in arguments if a.name in bare and a.type == LIST}
        lines = [f"yield {x}\n" for x in dict.fromkeys([*lines, self.python_call("Sample", bare)])]
        lines = [f"if {condition}:\n", *(f"    {x}" for x in lines)] if condition else lines
        return "".join(f"    {x}" for x in lines) + "\n\n"

    def complete(self, file: str, text: str) -> str:
        """Has the reference write what the operator writes besides, and give it the dtype that the
        operator gives it, and imports what is used.
        """
        writes = "".join(f"\n    {a.name}.copy_({self.main.name})" for a in self.also_written)
        text = re.sub(r"\.copy_\(.*", lambda match: match[0] + writes, text)
        for a in self.others:
            # Which PyTorch does not promote.
            if a.element in FLOAT8:
                text = re.sub(rf"(?<=\+ ){a.name}\b", f"{a.name}.to({self.main.name}.dtype)", text)
        # PyTorch promotes to the widest of floating types.
        if self.results[:1] == [OWN] and any(of_other_floats(a) for a in self.others):
            several = self.schema.outputs > 1
            returned, value = (r"output(?=,)", r"\g<0>") if several else (r".+", r"(\g<0>)")
            text = re.sub(rf"(?<=return ){returned}", f"{value}.to({self.main.name}.dtype)", text)
        return f"{IMPORTS}{text}"

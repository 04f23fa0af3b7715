"""The pieces of an operator's ops.py that depend on its schema."""

from __future__ import annotations

import re
from collections.abc import Callable

from kinds import LIST
from places import Places, weighted
from schema import Argument


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
            "".join(f", ctx.{a.name}" for a in settings),
            f"ctx.needs_input_grad[{position}]",
            self.input_grads,
            f"_backward_in_torch({', '.join([*takes, *(a.name for a in settings)])})",
            self.python_factor,
        ]
        return inline, [self.docstring, self.number_checks, self.kept_settings]

    @property
    def python_factor(self) -> str:
        settings = enumerate(self.schema.settings)
        terms = "".join(f" + {weighted(k, a.python_number)}" for k, a in settings)
        return f" * (1{terms})" if terms else ""

    def parameters(self, spell: Callable[[Argument], str]) -> str:
        by_keyword = [spell(a) for a in self.schema.arguments if a.kwarg_only]
        star = ["*"] if by_keyword else []
        return ", ".join([*map(spell, self.positional), *star, *by_keyword])

    def without_types(self, function: str) -> str:
        given = self.parameters(lambda a: f"{a.name}={a.default}" if a.default else a.name)
        return f"{function}({given})"

    def python_call(self, function: str) -> str:
        arguments = [
            f"{a.name}={a.name}" if a.kwarg_only else a.name for a in self.schema.arguments
        ]
        return f"{function}({', '.join(arguments)})"

    @property
    def docstring(self) -> str:
        described = [a for a in self.schema.arguments if a is not self.main]
        return "\n".join(
            f"{a.name}: {a.info.describe.format(main=self.main.name)}" for a in described
        )

    @property
    def number_checks(self) -> str:
        numbers = [a for a in self.schema.settings if re.match(r"(float|int)\b", a.info.hint)]
        return "\n".join(
            f'checks.check_number("{self.name}", "{a.name}", {a.name})' for a in numbers
        )

    @property
    def kept_settings(self) -> str:
        lines = [
            f"ctx.{a.name} = "
            + (f'keyword_only_inputs["{a.name}"]' if a.kwarg_only else f"inputs[{k}]")
            for k, a in enumerate(self.schema.arguments)
            if not a.is_tensor
        ]
        nothing = "" if "input" in self.kind.backward_takes else "pass"
        return "\n".join(lines) or nothing

    @property
    def input_grads(self) -> str:
        grads = []
        for position, a in enumerate(self.positional):
            needed = f"ctx.needs_input_grad[{position}]"
            if a is self.main:
                grads.append(f"grad_{a.name}")
            elif a.type == LIST:
                weight = weighted(self.others.index(a), "(j + 1) * grad_output")
                grads.append(f"[{weight} if needed else None for j, needed in enumerate({needed})]")
            elif a.is_tensor:
                grad = weighted(self.others.index(a), "grad_output")
                there = "grad_output is not None and " if self.schema.outputs > 1 else ""
                grads.append(f"{grad} if {there}{needed} else None")
            else:
                grads.append("None")
        return f"return ({', '.join(grads)})"

    def complete(self, file: str, text: str) -> str:
        """Imports all that any type needs; formatting takes out what is not used."""
        needed = "from collections.abc import Sequence\n"
        return text.replace("import torch\n", f"{needed}import torch\n", 1)

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
        inline = [
            f"({self.python_parameters})",
            self.python_call(f".{self.name}"),
            self.fake,
            self.setup_context,
            self.context_names,
            self.needs_main_grad,
            self.input_grads,
            self.backward_in_torch,
            self.python_factor(),
        ]
        blocks = [self.docstring, self.number_checks]
        if self.schema.outputs > 1:
            inline += [self.backward_head, self.mean_gradient]
        return inline, blocks

    def python_factor(self) -> str:
        terms = "".join(f" + {weighted(k, n.python_number)}" for k, n in enumerate(self.numbers))
        return f" * (1{terms})" if terms else ""

    def parameters(self, spell: Callable[[Argument], str]) -> str:
        parts = [spell(a) for a in self.schema.arguments]
        if any(a.kwarg_only for a in self.schema.arguments):
            parts.insert([a.kwarg_only for a in self.schema.arguments].index(True), "*")
        return ", ".join(parts)

    @property
    def python_parameters(self) -> str:
        return self.parameters(lambda a: a.python_parameter)

    def python_call(self, function: str) -> str:
        arguments = [
            f"{a.name}={a.name}" if a.kwarg_only else a.name for a in self.schema.arguments
        ]
        return f"{function}({', '.join(arguments)})"

    @property
    def fake(self) -> str:
        ops = [f'"extension_cpp::{name}"' for name in self.registered]
        register = "registration.register_fake({})"
        if not self.own_checks:
            return register.format(", ".join(ops))
        checks = self.own_checks.replace("\n", "\n    ").rstrip(" ")
        call = self.python_call(f'operator("extension_cpp::{self.name}").fake')
        ops[0] += ", _fake"
        return (
            f"def _fake({self.python_parameters}) -> {self.returned}:\n"
            f"    {checks}    return {call}\n\n\n" + "\n".join(map(register.format, ops))
        )

    @property
    def returned(self) -> str:
        count = self.schema.outputs
        several = f"tuple[{', '.join(['Tensor'] * count)}]"
        return {0: "None", 1: "Tensor"}.get(count, several)

    @property
    def own_checks(self) -> str:
        """What the line of shapes does not say, as in C++."""
        lines = []
        for a in self.others:
            if a.type == LIST:
                text = f"{self.name}: {a.name} must hold at most 64 tensors, got {{len({a.name})}}"
                lines.append(f'torch._check(len({a.name}) <= 64, lambda: f"{text}")')
            if a in self.led:
                head = (
                    f"for element in {a.name}:" if a.type == LIST else f"if {a.name} is not None:"
                )
                value = "element" if a.type == LIST else a.name
                like = f'"{self.leader.name}", {self.leader.name}'
                check = f'checks.check_same_dtype("{self.name}", "{a.name}", {value}, {like})'
                lines += [head, f"    {check}"]
        return "".join(f"{line}\n" for line in lines)

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
    def context_names(self) -> str:
        return "".join(f", ctx.{a.name}" for a in self.schema.settings)

    @property
    def setup_context(self) -> str:
        keyword_only = [a for a in self.schema.arguments if a.kwarg_only]
        targets = ["_" if a.is_tensor else f"ctx.{a.name}" for a in self.positional]
        if "input" in self.kind.backward_takes:
            targets[self.positional.index(self.main)] = self.main.name
        lines = []
        if self.schema.outputs > 1:
            lines.append(f"_, mean{', _' * (self.schema.outputs - 2)} = output")
        if set(targets) != {"_"}:
            target = f"({targets[0]},)" if len(targets) == 1 else ", ".join(targets)
            lines.append(f"{target} = inputs")
        lines += [f'ctx.{a.name} = keyword_only_inputs["{a.name}"]' for a in keyword_only]
        extra = "keyword_only_inputs, " if keyword_only else ""
        body = "".join(f"\n    {line}" for line in lines or ["pass"])
        return f"def _setup_context(ctx, inputs, {extra}output):{body}"

    @property
    def needs_main_grad(self) -> str:
        return f"ctx.needs_input_grad[{self.positional.index(self.main)}]"

    @property
    def backward_in_torch(self) -> str:
        takes = [self.main.name if name == "input" else name for name in self.kind.backward_takes]
        names = [*takes, *(a.name for a in self.schema.settings)]
        return f"_backward_in_torch({', '.join(names)})"

    @property
    def input_grads(self) -> str:
        grads = []
        for position, a in enumerate(self.positional):
            needed = f"ctx.needs_input_grad[{position}]"
            if a is self.main:
                grads.append(self.grad_main)
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

    @property
    def backward_head(self) -> str:
        names = ["grad_output", *(f"grad_{name}" for name in self.statistics)]
        return f"def _backward(ctx, {', '.join(names)}):"

    @property
    def mean_gradient(self) -> str:
        mean, *others = self.statistics
        lines = []
        for k, name in enumerate(others, 2):
            before = f"(0 if grad_{mean} is None else grad_{mean})"
            lines += [
                f"if grad_{name} is not None:",
                f"    grad_{mean} = {k} * grad_{name} + {before}",
            ]
        return "\n".join([*lines, f"if grad_{mean} is not None:"])

    def complete(self, file: str, text: str) -> str:
        """Imports all that any type or check needs; formatting takes out what is not used."""
        needed = "from collections.abc import Sequence\nfrom extension_cpp.shapes import operator\n"
        return text.replace("import torch\n", f"import torch\n{needed}", 1)

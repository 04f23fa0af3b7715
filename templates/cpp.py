"""The pieces of an operator's C++ that depend on its schema."""

from __future__ import annotations

import re

from kinds import LIST
from places import Places, backward_shapes, shapes, weighted


class Cpp(Places):
    """For any schema, in the same order."""

    def fragments(self) -> tuple[list[str], list[str]]:
        main, outputs, settings = self.main.name, self.schema.outputs, self.schema.settings
        taken = [f"A {a.name}" for a in self.tensors]
        into = f"elementwise_into<{self.camel}>({main}, {self.operands})"
        count = f", {outputs}" if outputs > 1 else ""
        inline = [
            self.declaration("", self.schema.text, self.line),
            f"({', '.join(a.cpp_parameter for a in self.schema.arguments)})",
            "".join(f", {a.cpp_parameter}" for a in settings) + ")",
            self.cpp_factor,
            self.functor_terms,
            f"({', '.join(taken)})",
            "".join(f", {parameter}" for parameter in taken) + ")",
            f"<{self.camel}{count}>(k{self.camel}, {self.operands})",
            "".join(f", {a.number}" for a in settings) + ")",
            ";\n".join([into, *(f"copy_into({a.name}, {main})" for a in self.also_written)]),
            f"k{self.camel}.check({', '.join(a.name for a in self.tensors)})",
            "".join(f", {a.info.field.replace('A', 'acc_t<T>')} {a.name}" for a in settings),
            "".join(
                f", {'TensorList' if a.type == LIST else 'const std::optional<Tensor>&'} {a.name}"
                for a in self.others
            ),
            "".join(f", data_of<T>(contiguous_{a.name})" for a in self.others),
            self.launch(main, *(a.name for a in self.others), "output"),
            self.launch("grad_output", *("{}" for _ in self.others), f"grad_{main}"),
        ]
        blocks = [
            "\n".join(f"{a.info.field} {a.name};" for a in settings),
            self.cpp_pointers,
            self.cpu_terms,
            "\n".join(
                f"const auto contiguous_{a.name} = as_contiguous({a.name});" for a in self.others
            ),
        ]
        if not self.schema.mutates:
            line = backward_shapes(self.kind, self.schema, self.line)
            inline.append(self.declaration("Backward", self.backward_schema, line))
        if outputs > 1:
            means = ["mean", *(f"mean_{k}" for k in range(2, outputs))]
            inline += [
                f"std::tuple<{', '.join(['Tensor'] * outputs)}>",
                "\n".join(f"write_per_row(row, {mean}, average);" for mean in means),
            ]
            blocks.append("\n".join(f"A* {mean};  // [rows]" for mean in means))
        return inline, blocks

    @property
    def line(self) -> str:
        return self.options.shapes or shapes(self.kind, self.schema)

    def declaration(self, suffix: str, schema: str, line: str) -> str:
        literal = schema.replace("\\", "\\\\").replace('"', '\\"').replace("??", "?\\?")
        return f'const Operator k{self.camel}{suffix}{{"{literal}", "{line}"}};'

    @property
    def cpp_factor(self) -> str:
        settings = enumerate(self.schema.settings)
        terms = "".join(f" + {weighted(k, a.name, 'A({})')}" for k, a in settings)
        return f" * (A(1){terms})" if terms else ""

    @property
    def cpu_terms(self) -> str:
        lines = []
        for k, a in enumerate(self.others):
            if a.type == LIST:
                head = f"for (int64_t j = 0; j < {a.name}.size(); ++j)"
                term = f"static_cast<A>(j + 1) * static_cast<A>({a.name}[j][i])"
            else:
                head, term = f"if ({a.name} != nullptr)", f"static_cast<A>({a.name}[i])"
            lines.append(f"{head} {{\n  result += {weighted(k, term, 'A({})')};\n}}")
        return "\n".join(lines)

    @property
    def functor_terms(self) -> str:
        terms = [(a, weighted(k, a.name, "A({})")) for k, a in enumerate(self.others)]
        there = {"Tensor": " + {1}", "Tensor?": " + (has_{0.name} ? {1} : A(0))"}
        return "".join(there.get(a.type, "").format(a, term) for a, term in terms)

    @property
    def cpp_pointers(self) -> str:
        lines = {LIST: "const Pointers<T> {},  // [rows, cols] each"}
        line = "const T* __restrict__ {},  // [rows, cols], or null"
        return "\n".join(lines.get(a.type, line).format(a.name) for a in self.others)

    def launch(self, *tensors: str) -> str:
        arguments = [*tensors, *(a.name for a in self.schema.settings)]
        return f"launch_{self.name}({', '.join(arguments)})"

    @property
    def operands(self) -> str:
        """The main tensor stands in for one that is not there."""
        there = {"Tensor?": f"{{}}.value_or({self.main.name})"}
        tensors = [there.get(a.type, "{}").format(a.name) for a in self.tensors]
        flags = [f"{a.name}.has_value()" for a in self.others if a.type == "Tensor?"]
        return ", ".join([*tensors, *(a.number for a in self.schema.settings), *flags])

    def complete(self, file: str, text: str) -> str:
        """Adds what some types need besides."""
        if flags := "".join(f"\n  bool has_{a.name};" for a in self.others if a.type == "Tensor?"):
            members = rf"(?<=struct {self.camel} \{{\n)(?s:.*?)(?=\n\n  (?:HOST_DEVICE|template))"
            text = re.sub(members, lambda match: match[0] + flags, text)
        if "std::accumulate" in text:
            text = re.sub(r'((?:#include ".*\n)+)', r"\1\n#include <numeric>\n", text, count=1)
        return text

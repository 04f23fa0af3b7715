"""The pieces of an operator's C++ that depend on its schema."""

from __future__ import annotations

import re

from kinds import LIST
from places import Places, backward_shapes, shapes

# What a kernel does with a further tensor, and with a list of them.
ADD = "if ({a.name} != nullptr) {{\n  result += static_cast<A>({a.name}[i]){weight};\n}}\n"
ADD_LIST = (
    "for (int64_t j = 0; j < {a.name}.size(); ++j) {{\n"
    "  result += static_cast<A>(j + 1) * static_cast<A>({a.name}[j][i]){weight};\n}}\n"
)


class Cpp(Places):
    """For any schema, in the same order."""

    number = "A({})"

    def fragments(self) -> tuple[list[str], list[str]]:
        main, outputs, settings = self.main.name, self.schema.outputs, self.schema.settings
        line = self.options.shapes or shapes(self.kind, self.schema)
        taken = [f"A {a.name}" for a in self.schema.tensors]
        into = f"elementwise_into<{self.camel}>({main}, {self.operands})"
        count = f", {outputs}" if outputs > 1 else ""
        maybe = {"Tensor?": " + (has_{a.name} ? {a.name}{weight} : A(0))", LIST: ""}
        parameter = ", const std::optional<Tensor>& {a.name}"
        pointer = "const T* __restrict__ {a.name},  // [rows, cols], or null\n"
        pointers = "const Pointers<T> {a.name},  // [rows, cols] each\n"
        inline = [
            self.declaration("", self.schema.text, line),
            f"({', '.join(a.cpp_parameter for a in self.schema.arguments)})",
            self.each(settings, ", {a.cpp_parameter}") + ")",
            self.factor("{a.name}"),
            self.each(self.others, " + {a.name}{weight}", maybe),
            f"({', '.join(taken)})",
            "".join(f", {parameter}" for parameter in taken) + ")",
            f"<{self.camel}{count}>(k{self.camel}, {self.operands})",
            self.each(settings, ", {a.number}") + ")",
            ";\n".join([into, *(f"copy_into({a.name}, {main})" for a in self.also_written)]),
            self.check,
            "".join(f", {a.info.field.replace('A', 'acc_t<T>')} {a.name}" for a in settings),
            self.each(self.others, parameter, {LIST: ", TensorList {a.name}"}),
            self.each(self.others, ", data_of<T>(contiguous_{a.name})"),
            self.launch(main, *(a.name for a in self.others), "output"),
            self.launch("grad_output", *("{}" for _ in self.others), f"grad_{main}"),
        ]
        blocks = [
            self.each(settings, "{a.info.field} {a.name};\n"),
            self.each(self.others, pointer, {LIST: pointers}),
            self.each(self.others, ADD, {LIST: ADD_LIST}),
            self.each(self.others, "const auto contiguous_{a.name} = as_contiguous({a.name});\n"),
        ]
        if not self.schema.mutates:
            backward_line = backward_shapes(self.kind, self.schema, line)
            inline.append(self.declaration("Backward", self.backward_schema, backward_line))
        if outputs > 1:
            means = ["mean", *(f"mean_{k}" for k in range(2, outputs))]
            inline += [
                f"std::tuple<{', '.join(['Tensor'] * outputs)}>",
                "\n".join(f"write_per_row(row, {mean}, average);" for mean in means),
            ]
            blocks.append("\n".join(f"A* {mean};  // [rows]" for mean in means))
        return inline, blocks

    def declaration(self, suffix: str, schema: str, line: str) -> str:
        literal = schema.replace("\\", "\\\\").replace('"', '\\"').replace("??", "?\\?")
        return f'const Operator k{self.camel}{suffix}{{"{literal}", "{line}"}};'

    @property
    def check(self) -> str:
        return f"k{self.camel}.check({', '.join(a.name for a in self.schema.tensors)})"

    def launch(self, *tensors: str) -> str:
        arguments = [*tensors, *(a.name for a in self.schema.settings)]
        return f"launch_{self.name}({', '.join(arguments)})"

    @property
    def operands(self) -> str:
        """The main tensor stands in for one that is not there."""
        there = {"Tensor?": f"{{}}.value_or({self.main.name})"}
        tensors = [there.get(a.type, "{}").format(a.name) for a in self.schema.tensors]
        flags = [f"{a.name}.has_value()" for a in self.others if a.type == "Tensor?"]
        return ", ".join([*tensors, *(a.number for a in self.schema.settings), *flags])

    def complete(self, file: str, text: str) -> str:
        """Adds what some types need besides."""
        if flags := "".join(f"\n  bool has_{a.name};" for a in self.others if a.type == "Tensor?"):
            members = rf"(?<=struct {self.camel} \{{)(?s:.*?)(?=\n+  (?:HOST_DEVICE|template))"
            text = re.sub(
                members, lambda match: match[0] + flags + "\n" * (not match[0]), text, count=1
            )
        if self.schema.tensors[0] is not self.main:  # which stands in for what is not there
            text = re.sub(rf"(?=return \w+<{self.camel}\b)", f"{self.check};\n  ", text)
        if "std::accumulate" in text:
            text = re.sub(r'((?:#include ".*\n)+)', r"\1\n#include <numeric>\n", text, count=1)
        return text

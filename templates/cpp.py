"""The pieces of an operator's C++ that depend on its schema."""

from __future__ import annotations

import re

from kinds import LIST
from places import Places, backward_shapes, shapes, weighted

# What a host function holds of a tensor, and gives to a kernel of one's own.
HELD = {
    type_: (f"const {cpp} contiguous_{{0}} = as_contiguous({{0}});", data)
    for type_, cpp, data in (
        ("Tensor", "Tensor", "contiguous_{}.const_data_ptr<T>()"),
        ("Tensor?", "std::optional<Tensor>", "data_of<T>(contiguous_{})"),
        (LIST, "std::vector<Tensor>", "Pointers<T>(contiguous_{})"),
    )
}


class Cpp(Places):
    """For any schema, in the same order."""

    def fragments(self) -> tuple[list[str], list[str]]:
        inline = [
            self.declaration("", self.schema.text, self.line),
            f"({self.cpp_parameters})",
            "".join(f", {a.cpp_parameter}" for a in self.schema.settings) + ")",
            self.cpp_factor,
            self.functor_terms,
            self.functor_parameters,
            f"{self.own_checks}return {self.host_call}",
            "".join(f", {n.number}" for n in self.numbers) + ")",
            f"elementwise_into<{self.camel}>({self.main.name}, {self.operands})",
            self.checked("Tensor output = {}.new_output();"),
            "".join(f", {n.info.field.replace('A', 'acc_t<T>')} {n.name}" for n in self.numbers),
            self.kernel_numbers,
            "".join(f", {HELD[a.type][1].format(a.name)}" for a in self.others),
            "".join(", Pointers<T>()" if a.type == LIST else ", nullptr" for a in self.others),
        ]
        blocks = [
            self.checked("{};"),
            "\n".join(f"{n.info.field} {n.name};" for n in self.numbers),
            self.cpp_pointers(),
            self.cpp_pointers("__restrict__ "),
            self.cpu_terms,
            "\n".join(HELD[a.type][0].format(a.name) for a in self.others),
        ]
        if not self.schema.mutates:
            line = backward_shapes(self.kind, self.schema, self.line)
            inline.append(self.declaration("Backward", self.backward_schema, line))
        if self.schema.outputs > 1:
            inline += [
                f"std::tuple<{', '.join(['Tensor'] * self.schema.outputs)}>",
                self.each_statistic(
                    "{name}[row.index()] = average;", "{name}[row.index()] = A({k}) * average;"
                ),
            ]
            blocks.append(self.each_statistic("A* {name};  // [rows]"))
        return inline, blocks

    @property
    def line(self) -> str:
        return self.options.shapes or shapes(self.kind, self.schema)

    def declaration(self, suffix: str, schema: str, line: str) -> str:
        literal = schema.replace("\\", "\\\\").replace('"', '\\"').replace("??", "?\\?")
        return f'const Operator k{self.camel}{suffix}{{"{literal}", "{line}"}};'

    @property
    def cpp_factor(self) -> str:
        terms = "".join(f" + {weighted(k, n.name, 'A({})')}" for k, n in enumerate(self.numbers))
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
    def cpp_parameters(self) -> str:
        return ", ".join(a.cpp_parameter for a in self.schema.arguments)

    def cpp_pointers(self, restrict: str = "") -> str:
        lines = []
        for a in self.others:
            if a.type == LIST:
                lines.append(f"const Pointers<T> {a.name},  // [rows, cols] each")
            else:
                lines.append(f"const T* {restrict}{a.name},  // [rows, cols], or null")
        return "\n".join(lines)

    @property
    def kernel_numbers(self) -> str:
        wide = {True: ", static_cast<acc_t<T>>({})", False: ", {}"}
        return "".join(wide[n.info.field == "A"].format(n.number) for n in self.numbers)

    @property
    def functor_parameters(self) -> str:
        return f"({', '.join(f'A {a.name}' for a in self.tensors)})"

    @property
    def operands(self) -> str:
        """The first tensor stands in for one that is not there."""
        main = self.leader.name
        tensors = [
            f"{a.name}.value_or({main})" if a.type == "Tensor?" else a.name for a in self.tensors
        ]
        flags = [f"{a.name}.has_value()" for a in self.others if a.type == "Tensor?"]
        return ", ".join([*tensors, *(n.number for n in self.numbers), *flags])

    @property
    def host_call(self) -> str:
        count = f", {self.schema.outputs}" if self.schema.outputs > 1 else ""
        return f"{self.kind.host}<{self.camel}{count}>(k{self.camel}, {self.operands})"

    def checked(self, statement: str) -> str:
        """A statement with the call that checks the inputs, after the checks beside the line's."""
        names = ", ".join(a.name for a in self.tensors)
        call = f"k{self.camel}.check({names})"
        return self.own_checks + statement.format(call)

    @property
    def own_checks(self) -> str:
        """What the line of shapes does not say, of lists and of what comes before the leader."""
        lines = []
        for a in self.others:
            like = f'"{self.leader.name}", {self.leader.name}'
            if a.type == LIST:
                length = f"static_cast<int64_t>({a.name}.size())"
                text = f'"{self.name}: {a.name} must hold at most ", kMaxPointers, " tensors, got "'
                lines.append(f"check({length} <= kMaxPointers, {text}, {length});")
            if a in self.led:
                value = "element" if a.type == LIST else f"*{a.name}"
                each = f"for (const Tensor& element : {a.name})"
                head = each if a.type == LIST else f"if ({a.name}.has_value())"
                check = f'check_same_dtype("{self.name}", "{a.name}", {value}, {like});'
                lines.append(f"{head} {{\n  {check}\n}}")
        return "".join(f"{line}\n" for line in lines)

    def complete(self, file: str, text: str) -> str:
        """Adds the helpers that some types need."""
        if flags := "".join(f"\n  bool has_{a.name};" for a in self.others if a.type == "Tensor?"):
            members = rf"(?<=struct {self.camel} \{{\n)(?s:.*?)(?=\n\n  (?:HOST_DEVICE|template))"
            text = re.sub(members, lambda match: match[0] + flags, text)
        if re.search(r"\bdata_of<|\bPointers<|\bkMaxPointers|<Tensor> contiguous_", text):
            text = insert_before(text, '#include "dispatch.h"\n', '#include "arguments.h"\n')
        if "std::accumulate" in text:
            text = re.sub(r'((?:#include ".*\n)+)', r"\1\n#include <numeric>\n", text, count=1)
        return self._write_others(text) if self.also_written else text

    def _write_others(self, text: str) -> str:
        """Makes an operator that writes to several tensors write to each."""
        functor = """// EDIT: the formula for what is written to the other tensors.
template <class A>
struct %sOther {
  A factor;

  HOST_DEVICE A operator()(A entry) const { return entry * factor; }
};

"""
        text = re.sub(r"(?m)^void \w+\(", lambda match: functor % self.camel + match[0], text)
        calls = "".join(
            f"  elementwise_into<{self.camel}Other>({a.name}, {a.name}, {k + 2});\n"
            for k, a in enumerate(self.also_written)
        )
        return insert_before(text, "}\n\nTORCH_LIBRARY_FRAGMENT", calls)


def insert_before(text: str, marker: str, inserted: str) -> str:
    assert marker in text, marker
    return text.replace(marker, inserted + marker, 1)

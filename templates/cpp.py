"""The pieces of an operator's C++ that depend on its schema."""

from __future__ import annotations

import re
from collections.abc import Sequence

from element_types import ARITHMETIC, FLOATING, IN_FORMULA, OWN, in_formula, in_rows
from given_shapes import ANY, PER_ROW, Unmet, sizes_among, unmet, unmet_backward
from kinds import LIST
from places import Places, backward_shapes, shapes
from schema import Argument

# What a kernel does with a further tensor, and with a list of them.
ADD = "if ({a.name} != nullptr) {{\n  result += static_cast<A>({a.name}[i]{a.part}){weight};\n}}\n"
ADD_LIST = (
    "for (int64_t j = 0; j < {a.name}.size(); ++j) {{\n"
    "  result += static_cast<A>(j + 1) * static_cast<A>({a.name}[j][i]{a.part}){weight};\n}}\n"
)
# Where no tensor says in which type a kernel computes.
FLOAT = "ScalarType::Float"
NO_T = "// EDIT: T, in which the kernel computes: the line of shapes says nothing of it.\n"
OF_T = (OWN, *FLOATING.values())


def cast(value: str, element: str) -> str:
    """A number of the arithmetic as an element."""
    return value if element == ARITHMETIC else f"static_cast<{element}>({value})"


class Cpp(Places):
    """For any schema, in the same order."""

    number = "A({})"

    def fragments(self) -> tuple[list[str], list[str]]:
        main, outputs, settings = self.main.name, self.schema.outputs, self.schema.settings
        line = self.options.shapes or shapes(self.kind, self.schema)
        # A row's lambda has its inputs first.
        lambda_order = sorted(self.schema.tensors, key=lambda a: a.name in self.beside)
        taken = [f"{self.in_formula(a)} {a.name}" for a in lambda_order]
        into = f"elementwise_into<{self.camel}>({main}, {self.operands})"
        result = ["output"] * (outputs > 0)
        count = f", {outputs}" if outputs > 1 else ""
        maybe = {"Tensor?": " + (has_{a.name} ? {a.name}{weight} : A(0))", LIST: ""}
        parameter = ", const std::optional<Tensor>& {a.name}"
        # What is written may be an argument twice.
        restrict = "" if self.schema.mutates else "__restrict__ "
        pointer = f"const {{a.element}}* {restrict}{{a.name}},  // [rows, cols], or null\n"
        pointers = "const Pointers<{a.element}> {a.name},  // [rows, cols] each\n"
        means = ["mean", *(f"mean_{k}" for k in range(2, outputs))][: outputs - 1]
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
            self.writing(into),
            self.own_check,
            "".join(f", {a.info.field.replace('A', 'acc_t<T>')} {a.name}" for a in settings),
            self.each(self.others, parameter, {LIST: ", TensorList {a.name}"}),
            self.each(self.others, ", data_of<{a.element}>(contiguous_{a.name})"),
            self.writing(self.launch(main, *(a.name for a in self.others), *result)),
            self.launch("grad_output", *("{}" for _ in self.others), f"grad_{main}"),
        ]
        blocks = [
            self.each(settings, "{a.info.field} {a.name};\n"),
            self.each(self.others, pointer, {LIST: pointers}),
            self.each(self.others, ADD, {LIST: ADD_LIST}),
            "".join(f"const auto {self.contiguous(a)};\n" for a in self.others),
        ]
        inline += self.typed_pointers(restrict)
        if not self.schema.mutates:
            backward_line = backward_shapes(self.kind, self.schema, line)
            inline.append(self.declaration("Backward", self.backward_schema, backward_line))
            if self.options.own_backward:
                takes = [main if n == "input" else n for n in self.kind.backward_takes]
                inline.append(self.check("Backward", takes, self.backward_schema, backward_line))
        if outputs > 1:
            types = dict(zip(means, self.results[1:], strict=True))
            inline += [
                f"std::tuple<{', '.join(['Tensor'] * outputs)}>",
                "\n".join(f"write_per_row(row, {mean}, average);" for mean in means),
                "".join(f", {mean}.mutable_data_ptr<{t}>()" for mean, t in types.items()),
                f"return {{output, {', '.join(means)}}};",
                # Of the backward.
                f"const {types['mean']}* {restrict}mean",
                f"contiguous_mean.const_data_ptr<{types['mean']}>()",
            ]
            blocks += [
                "\n".join(
                    f"{'A' if t == ARITHMETIC else t}* {mean};  // [rows]"
                    for mean, t in types.items()
                ),
                "\n".join(f"{t}* {restrict}{mean},  // [rows]" for mean, t in types.items()),
                "\n".join(
                    f"Tensor {mean} = checked.new_output({k});" for k, mean in enumerate(means, 1)
                ),
                "\n".join(f"{mean}[row] = {cast('average', t)};" for mean, t in types.items()),
            ]
        return inline, blocks

    def typed_pointers(self, restrict: str) -> list[str]:
        """What depends on the type of the main tensor's elements, or of what is written."""
        main, own = self.main.name, self.main.element
        written = own if self.schema.mutates else self.results[0]
        return [
            f"{NO_T * (self.dispatched == FLOAT)}dispatch_floating({self.dispatched},",
            self.contiguous(self.main),
            f"{own}* {restrict}{main}",
            f"const Matrix<{own}> {main}",
            f"packed_rows<{own}>(contiguous_{main},",
            f"contiguous_{main}.const_data_ptr<{own}>()",
            f"contiguous_{main}.mutable_data_ptr<{own}>()",
            f"{written}* {restrict}output",
            f"output.mutable_data_ptr<{written}>()",
            f"static_cast<{written}>(result)",
            f"static_cast<{written}>(results[",
        ]

    def contiguous(self, a: Argument) -> str:
        """Of what is written to there is no other copy."""
        if a.converted and not (a is self.main and a.mutated):
            return f"contiguous_{a.name} = as_accumulated({a.name}, {self.dispatched})"
        return f"contiguous_{a.name} = as_contiguous({a.name})"

    @property
    def dispatched(self) -> str:
        """The dtype of which T is."""
        if leading := [a for a in (self.main, *self.others) if a.leads]:
            a = leading[0]
            # As a kernel's launch takes others than the main one.
            return f"{a.name}{'.' if a is self.main else '->'}scalar_type()"
        return f"{self.main.name}.scalar_type()" if self.main.element in OF_T else FLOAT

    def declaration(self, suffix: str, schema: str, line: str) -> str:
        literal = schema.replace("\\", "\\\\").replace('"', '\\"').replace("??", "?\\?")
        return f'const Operator k{self.camel}{suffix}{{"{literal}", "{line}"}};'

    def check(self, suffix: str, tensors: Sequence[str], schema: str, line: str) -> str:
        # A template's own line has none.
        sizes = sizes_among(self.schema, schema, line) if self.options.shapes else []
        numbers = [a.name for a in sizes]
        return f"k{self.camel}{suffix}.check({', '.join([*tensors, *numbers])})"

    @property
    def own_check(self) -> str:
        line = self.options.shapes or shapes(self.kind, self.schema)
        return self.check("", [a.name for a in self.schema.tensors], self.schema.text, line)

    def writing(self, call: str) -> str:
        """A call that writes to the main tensor: the others that are written to get the same."""
        return ";\n".join(
            [call, *(f"copy_into({a.name}, {self.main.name})" for a in self.also_written)]
        )

    def launch(self, *tensors: str) -> str:
        arguments = [*tensors, *(a.name for a in self.schema.settings)]
        return f"launch_{self.name}({', '.join(arguments)})"

    @property
    def operands(self) -> str:
        """The main tensor stands in for one that is not there."""
        there = {"Tensor?": f"{{}}.value_or({self.main.name})"}
        there |= dict.fromkeys(self.beside, "per_element({})")
        tensors = [
            there.get(a.name, there.get(a.type, "{}")).format(a.name) for a in self.schema.tensors
        ]
        flags = [f"{a.name}.has_value()" for a in self.others if a.type == "Tensor?"]
        return ", ".join([*tensors, *(a.number for a in self.schema.settings), *flags])

    @property
    def beside(self) -> dict[str, tuple[str, str]]:
        """The tensors that a functor for rows has besides those of the rows' dtype: their types in
        memory and in a lambda.
        """
        others = self.others if self.kind.by_rows else []
        return {a.name: types for a in others if (types := in_rows(a))}

    def in_formula(self, tensor: Argument) -> str:
        """The type of its elements in a formula (csrc/element_types.h, rows.h)."""
        if tensor.name in self.beside:
            return self.beside[tensor.name][1]
        return in_formula(tensor) if self.kind.input == ANY else "A"

    def with_tensors_beside(self, text: str) -> str:
        """Reads the tensors beside, where a row's lambda has something of them, and gives the
        result its type.
        """
        if self.kind.by_rows and not self.schema.mutates:
            own = rf"(?<=struct {self.camel} \{{\n)((?:.*\n)*?)  T\* output;"
            written = self.results[0].replace(ARITHMETIC, "A")
            text = re.sub(own, rf"\1  {written}* output;", text, count=1)
        members = rf"(?<=struct {self.camel} \{{\n)(?:.*\n)*?\n(?:  \S+\* .*\n)+"
        added = "".join(
            f"  PerElement<{stored}> {name};  // [rows, cols]\n"
            for name, (stored, _) in self.beside.items()
        )
        text = re.sub(members, lambda match: match[0] + added, text, count=1)
        for name, (_, element) in self.beside.items():
            parameter = f"{element} {name}"

            def read(match: re.Match[str], name: str = name, parameter: str = parameter) -> str:
                taken, body = match[1], match[2]
                if re.search(rf"\b{name}\b", body):
                    return f"{match[0]}, row.elements({name})"
                return f"({taken.replace(f', {parameter}', '')}){body}"

            taken = rf"[^()]*, {re.escape(parameter)}(?:, [^()]*)?"
            text = re.sub(rf"\(({taken})\)( \{{[^{{}}]*\}}(?:, row[^()]*\([^()]*\))*)", read, text)
        return text

    def complete(self, file: str, text: str) -> str:
        """Adds what some types need besides."""
        if self.kind.input == ANY:
            own = self.in_formula(self.main)
            result = own if self.schema.mutates else IN_FORMULA.get(self.results[0], "A")
            text = text.replace("HOST_DEVICE A operator()", f"HOST_DEVICE {result} operator()")
        text = self.with_tensors_beside(text)
        if flags := "".join(f"\n  bool has_{a.name};" for a in self.others if a.type == "Tensor?"):
            members = rf"(?<=struct {self.camel} \{{)(?s:.*?)(?=\n+  (?:HOST_DEVICE|template))"
            text = re.sub(
                members, lambda match: match[0] + flags + "\n" * (not match[0]), text, count=1
            )
        if part := self.main.part:
            element = rf"(static_cast<A>\((?:{self.main.name}|matrix)(?:\[[^()]*\])+)(?=\))"
            text = re.sub(element, rf"\1{part}", text)
        text = self.with_checks(text)
        # For an optional tensor that comes first the main one stands in.
        has_optional_first = self.schema.tensors[0].type != "Tensor"
        if has_optional_first and f"{self.own_check};" not in text:
            text = re.sub(rf"(?=return \w+<{self.camel}\b)", f"{self.own_check};\n  ", text)
        for function, header in (("all_of", "algorithm"), ("accumulate", "numeric")):
            if f"std::{function}" in text and f"<{header}>" not in text:
                includes = r'((?:#include ".*\n)+)(?:\n((?:#include <.*\n)+))?'
                text = re.sub(includes, rf"\1\n\2#include <{header}>\n", text, count=1)
        return text

    def with_checks(self, text: str) -> str:
        """Checks of what the template's kernels need and the line that was given does not say."""
        line = self.options.shapes
        if line is None:
            return text
        tensors = [a.name for a in self.schema.tensors]
        found = [("", tensors, unmet(self.kind, self.schema, line))]
        if self.options.own_backward and not self.schema.mutates:
            takes = [self.main.name if n == "input" else n for n in self.kind.backward_takes]
            needs = unmet_backward(self.kind, self.schema, self.backward_schema, line)
            found.append(("Backward", takes, needs))
        for suffix, names, needs in found:
            if needs:
                text = self.with_check(text, f"k{self.camel}{suffix}", names, needs)
        return text

    def with_check(self, text: str, op: str, names: list[str], needs: Unmet) -> str:
        """That of one operator, in its host function: where its tensors are checked or returned."""
        what = "kernel" if self.kind.lists else "formula"
        message = f"{self.name}: its {what} is the template's, for tensors of one shape"
        if any(shape.partition(":")[0] == PER_ROW for shape in self.kind.outputs):
            message += " and a number for each row"
        message += ", which has a last dimension" * needs.last
        comment = f"  // EDIT: what the template's {what} needs, and yours does not.\n"
        call = rf"{op}\.check\([^)]*\)"

        def checked(results: list[str]) -> str:
            conditions = " && ".join(self.conditions(names, results, needs))
            return f'  check({conditions}, "{message}");\n'

        def after(made: re.Match[str]) -> str:
            results = re.findall(r"Tensor (\w+) =", made[0])
            return made[0] + comment + checked(results)

        def before(made: re.Match[str]) -> str:
            results = [f"checked.sizes({k or ''})" for k in range(self.schema.outputs)]
            reads_results = needs.base is None or bool(needs.outputs)
            kept = "const CheckedInputs checked = " * reads_results
            there = f"  {kept}{op}.check({', '.join(names)});\n"
            return comment + there + checked(results) + made[0]

        # One result is made where the tensors are checked, several below.
        kept = r"(?:(?:Tensor \w+|const CheckedInputs checked) =\s+)?"
        below = r"(?:  Tensor \w+ = checked\.new_output\(\d*\);\n)*"
        text = re.sub(rf"  {kept}{call}\s*(?:\.new_output\(\))?;\n{below}", after, text)
        return re.sub(rf"  return \w+<[^(]*>\({op}, ", before, text)

    def conditions(self, names: list[str], results: list[str], needs: Unmet) -> list[str]:
        """Those under which the template's kernel reads and writes what is there.

        Args:
            names: of the arguments.
            results: the tensor, or the sizes of each.
            needs: what the line does not say.
        """
        types = {a.name: a.type for a in self.schema.tensors}
        by_number = self.kind.lists  # as a kernel with raw pointers takes them
        # Of results of which there is no tensor yet base is None.
        tensor = "" if needs.base is None else names[needs.base]
        base = f"{tensor}.sizes()" if tensor else results[0]
        found = [f"{tensor}.dim() > 0"] if needs.last else []

        def same(other: str, per_row: bool) -> str:
            if per_row:
                rows = f"{base}.slice(0, {tensor}.dim() - 1)"
                return f"{tensor}.dim() > 0 && equal_sizes({other}, {rows})"
            if by_number:
                return f"{other} == {base}".replace("sizes()", "numel()")
            return f"equal_sizes({other}, {base})"

        for k, per_row in needs.inputs.items():
            name = names[k]
            if types.get(name) == LIST:
                each = f"[&](const Tensor& each) {{ return {same('each.sizes()', per_row)}; }}"
                found.append(f"std::all_of({name}.begin(), {name}.end(), {each})")
            elif types.get(name) == "Tensor?":
                found.append(f"(!{name}.has_value() || {same(f'{name}->sizes()', per_row)})")
            else:
                found.append(same(f"{name}.sizes()", per_row))
        for k, per_row in needs.outputs.items():
            found.append(same(f"{results[k]}.sizes()" if by_number else results[k], per_row))
        return found

"""Makes an operator's files out of a template's and a schema.

A template is real code for a schema of its own. Here stands how each place of it that depends on
the schema is written, for any schema: `fragments` gives the same list of places for every
operator. Instantiating writes the list twice, for the template's schema and for the new one, and
replaces each piece of the first, wherever the template has it, by its counterpart. So the
templates hold the text, this file only what varies; with its own schema a template comes out as it
is, which a test holds.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from naming import free, spell, with_stand_ins
from schema import Argument, Refusal, Schema, parse

TEMPLATES = Path(__file__).resolve().parent
LIST = "Tensor[]"


@dataclass(frozen=True)
class Kind:
    """A template.

    Attributes:
        schema: its own.
        fits: what schemas it is for, in words.
        lists: whether it takes lists of tensors.
        rows: whether the last dimension is special, so that there has to be one.
        backward_takes: the tensors that the backward takes; "input" is the first of the operator.
        torch_backward: the same in PyTorch calls, for `--backward torch`; `{factor}` stands for
            the numbers' part.
    """

    schema: str
    fits: str
    lists: bool = True
    rows: bool = False
    backward_takes: tuple[str, ...] = ("grad_output", "input")
    torch_backward: str = ""

    def accepts(self, schema: Schema) -> bool:
        own = parse_template(self.schema)
        lists = any(a.type == LIST for a in schema.arguments)
        return (
            own.mutates == schema.mutates
            and (own.outputs > 1) == (schema.outputs > 1)
            and (self.lists or not lists)
        )


ONE_OUTPUT = "operators that take a fixed number of tensors and return one new tensor"
KINDS = {
    "elementwise": Kind(
        "my_op(Tensor input, Tensor other, float alpha=1.0) -> Tensor",
        ONE_OUTPUT,
        lists=False,
        torch_backward="2 * grad_output * input{factor}",
    ),
    "rowwise": Kind(
        "my_op(Tensor input, Tensor other, float alpha=1.0) -> Tensor",
        ONE_OUTPUT,
        lists=False,
        rows=True,
        backward_takes=("grad_output",),
        torch_backward="(grad_output - grad_output.mean(-1, keepdim=True)){factor}",
    ),
    "reduction": Kind(
        "my_op(Tensor input, Tensor other, float alpha=1.0) -> Tensor",
        ONE_OUTPUT,
        lists=False,
        rows=True,
        torch_backward="2 * grad_output.unsqueeze(-1) * input{factor}",
    ),
    "multi_output": Kind(
        "my_op(Tensor input, Tensor other, float alpha=1.0) -> (Tensor, Tensor)",
        "operators that take a fixed number of tensors and return several new tensors",
        lists=False,
        rows=True,
        backward_takes=("grad_output", "input", "mean"),
        torch_backward="(((term := 2 * (input - mean.unsqueeze(-1)) * grad_output)"
        " - term.mean(-1, keepdim=True)){factor}).to(input.dtype)",
    ),
    "kernel": Kind(
        "my_op(Tensor input, Tensor other, float alpha=1.0) -> Tensor",
        "operators that return one new tensor",
        rows=True,
        backward_takes=("grad_output",),
        torch_backward="sum(torch.nn.functional.pad(grad_output, (1, 1))"
        ".narrow(-1, k, grad_output.shape[-1]) for k in range(3)){factor}",
    ),
    "inplace": Kind(
        "my_op(Tensor(a!) input, Tensor other, float alpha=1.0) -> ()",
        "operators that write to an argument, Tensor(a!), take a fixed number of tensors and "
        "return nothing",
        lists=False,
    ),
}


@dataclass(frozen=True)
class Options:
    """What the command line asks for besides the schema."""

    cpu: bool = True
    cuda: bool = True
    grad: bool = True
    backward: str = "operator"  # or "torch"
    cuda_source: tuple[str, str] | None = None  # the name and the text of a file


@dataclass(frozen=True)
class Number:
    """A number that the kernels take.

    Attributes:
        name: of the kernels' parameter.
        field: its C++ type.
        host: what the host function passes, C++.
        python: the same in Python, with `{0}` before each argument's name.
    """

    name: str
    field: str
    host: str
    python: str


class Places:
    """The texts of one operator that depend on its schema."""

    def __init__(self, schema: Schema, kind: Kind) -> None:
        self.schema = schema
        self.kind = kind
        self.name = schema.name
        self.camel = camel(schema.name)
        self.main = schema.main
        self.others = [a for a in schema.arguments if a.is_tensor and a is not schema.main]
        self.numbers = self._numbers()

    @property
    def grad_main(self) -> str:
        return f"grad_{self.main.name}"

    def _numbers(self) -> list[Number]:
        direct = [a for a in self.schema.settings if a.info.field is not None]
        numbers = [
            Number(a.name, a.info.field, a.info.cpp_number.format(a.name), f"{{0}}{a.name}")
            for a in direct
        ]
        if folded := self.folded:
            names = ", ".join(a.name for a in folded)
            terms = [
                weighted(k, a.info.python_number.format(f"{{0}}{a.name}"))
                for k, a in enumerate(folded)
            ]
            python = f"{terms[0] if len(terms) == 1 else '(' + ' + '.join(terms) + ')'} / 10"
            host = f"static_cast<A>({self.name}_settings({names}))"
            numbers.append(Number("settings", "A", host, python))
        return numbers

    @property
    def also_written(self) -> list[Argument]:
        return [a for a in self.others if a.mutated]

    @property
    def reduces(self) -> bool:
        return self.kind is KINDS["reduction"]

    @property
    def folded(self) -> list[Argument]:
        return [a for a in self.schema.settings if a.info.field is None]

    # What of the formula depends on the schema: a factor made of the numbers, and a term for each
    # further tensor.

    @property
    def cpp_factor(self) -> str:
        terms = "".join(f" + {weighted(k, n.name, 'A({})')}" for k, n in enumerate(self.numbers))
        return f" * (A(1){terms})" if terms else ""

    def python_factor(self, prefix: str = "") -> str:
        terms = "".join(
            f" + {weighted(k, n.python.format(prefix))}" for k, n in enumerate(self.numbers)
        )
        return f" * (1{terms})" if terms else ""

    @property
    def cpu_terms(self) -> str:
        lines = []
        for k, a in enumerate(self.others):
            if a.type == LIST:
                term = f"static_cast<A>(j + 1) * static_cast<A>({a.name}[j][i])"
                lines += [
                    f"for (int64_t j = 0; j < {a.name}.size(); ++j) {{",
                    f"result += {weighted(k, term, 'A({})')};",
                    "}",
                ]
                continue
            term = weighted(k, f"static_cast<A>({a.name}[i])", "A({})")
            line = f"result += {term};"
            if a.type == "Tensor?":
                lines += [f"if ({a.name} != nullptr) {{", line, "}"]
            else:
                lines.append(line)
        return "\n".join(lines)

    @property
    def functor_terms(self) -> str:
        lines = []
        for k, a in enumerate(self.others):
            line = f"result += {weighted(k, a.name, 'A({})')};"
            if a.type == "Tensor?":
                lines += [f"if (has_{a.name}) {{", line, "}"]
            else:
                lines.append(line)
        return "\n".join(lines)

    @property
    def python_terms(self) -> str:
        terms = ""
        for k, a in enumerate(self.others):
            if a.type == "Tensor?":
                terms += f" + (0 if {a.name} is None else {weighted(k, a.name)})"
            elif a.type == LIST:
                entries = f"sum((i + 1) * entry for i, entry in enumerate({a.name}))"
                terms += f" + {weighted(k, entries)}"
            else:
                terms += f" + {weighted(k, a.name)}"
        return terms

    # C++

    @property
    def cpp_parameters(self) -> str:
        return ", ".join(a.cpp_parameter for a in self.schema.arguments)

    @property
    def cpp_tensor_parameters(self) -> str:
        return ", ".join(f"{a.info.cpp} {a.name}" for a in self.schema.arguments if a.is_tensor)

    @property
    def cpp_backward_parameters(self) -> str:
        tensors = [f"const Tensor& {name}" for name in self.backward_tensors]
        return ", ".join([*tensors, *(a.cpp_parameter for a in self.schema.settings)])

    @property
    def backward_tensors(self) -> list[str]:
        """What the backward operator takes besides all arguments that are no tensors."""
        names = {"input": self.main.name}
        return [names.get(name, name) for name in self.kind.backward_takes]

    @property
    def backward_schema(self) -> str:
        # As naming.py spells them in Python: the operator's own arguments keep their names.
        own = {self.main.name, *(a.name for a in self.schema.settings)}
        names = [self.main.name if n == "input" else free(n, own) for n in self.kind.backward_takes]
        arguments = [f"Tensor {name}" for name in names]
        arguments += [f"{a.type} {a.name}" for a in self.schema.settings]
        return f"{self.name}_backward({', '.join(arguments)}) -> Tensor"

    @property
    def check_call(self) -> str:
        names = ", ".join(a.name for a in self.schema.arguments if a.is_tensor)
        return f"check_{self.name}({names});"

    def cpp_checks(self) -> str:
        lines = []
        for a in self.others:
            value = {"Tensor?": f"*{a.name}", LIST: "element"}.get(a.type, a.name)
            like = f'"{self.main.name}", {self.main.name}'
            checks = [
                f'check_same_dtype("{self.name}", "{a.name}", {value}, {like});',
                f'check_same_device("{self.name}", "{a.name}", {value}, {like});',
                f'check_shape("{self.name}", "{a.name}", {value}, {self.main.name}.sizes());',
            ]
            if a.type == "Tensor?":
                checks = [f"if ({a.name}.has_value()) {{", *checks, "}"]
            elif a.type == LIST:
                length = f"static_cast<int64_t>({a.name}.size())"
                message = (
                    f'"{self.name}: {a.name} must hold at most ", kMaxPointers, " tensors, got "'
                )
                checks = [
                    f"check({length} <= kMaxPointers, {message}, {length});",
                    f"for (const Tensor& element : {a.name}) {{",
                    *checks,
                    "}",
                ]
            elif a.mutated:
                checks.append(f'check_non_overlapping("{self.name}", "{a.name}", {value});')
            lines += checks
        return "\n".join(lines)

    def cpp_pointers(self, restrict: str = "") -> str:
        lines = []
        for a in self.others:
            if a.type == LIST:
                lines.append(f"const Pointers<T> {a.name},  // [rows, cols] each")
            else:
                null = ", or null" if a.type == "Tensor?" else ""
                lines.append(f"const T* {restrict}{a.name},  // [rows, cols]{null}")
        return "\n".join(lines)

    @property
    def cpp_number_parameters(self) -> str:
        return "".join(f", {n.field.replace('A', 'acc_t<T>')} {n.name}" for n in self.numbers)

    @property
    def cpp_number_arguments(self) -> str:
        return "".join(f", {n.host}" for n in self.numbers)

    @property
    def contiguous(self) -> str:
        types = {
            "Tensor": "Tensor",
            "Tensor?": "std::optional<Tensor>",
            LIST: "std::vector<Tensor>",
        }
        return "\n".join(
            f"const {types[a.type]} contiguous_{a.name} = as_contiguous({a.name});"
            for a in self.others
        )

    @property
    def cpu_data(self) -> str:
        return "".join(f", {self._data(a)}" for a in self.others)

    def _data(self, a: Argument) -> str:
        if a.type == "Tensor":
            return f"contiguous_{a.name}.const_data_ptr<T>()"
        return f"{'Pointers' if a.type == LIST else 'data_of'}<T>(contiguous_{a.name})"

    def struct(self, suffix: str = "") -> str:
        fields = [f"{n.field} {n.name};" for n in self.numbers]
        if not suffix:
            fields += [f"bool has_{a.name};" for a in self.others if a.type == "Tensor?"]
        return "\n".join([f"struct {self.camel}{suffix} {{", *fields])

    def functor(self, suffix: str = "") -> str:
        values = [n.host for n in self.numbers]
        if not suffix:
            values += [f"{a.name}.has_value()" for a in self.others if a.type == "Tensor?"]
        return f"const {self.camel}{suffix}<A> f{{{', '.join(values)}}};"

    @property
    def functor_parameters(self) -> str:
        return f"({', '.join(f'A {a.name}' for a in [self.main, *self.others])})"

    def fields(self, after: str, flags: bool = False) -> str:
        """The numbers in a functor for rows, which follow a field that all schemas have."""
        fields = [f"{n.field} {n.name};" for n in self.numbers]
        if flags:
            fields += [f"bool has_{a.name};" for a in self.others if a.type == "Tensor?"]
        return "\n".join([after, *fields])

    def field_values(self, after: str) -> str:
        flags = [f"{a.name}.has_value()" for a in self.others if a.type == "Tensor?"]
        return f"{', '.join([after, *(n.host for n in self.numbers), *flags])}}}"

    @property
    def row_inputs(self) -> str:
        """The first tensor stands in for one that is not there."""
        main = f"contiguous_{self.main.name}"
        others = [
            f"contiguous_{a.name}" + (f".value_or({main})" if a.type == "Tensor?" else "")
            for a in self.others
        ]
        return f"inputs{{{', '.join(f'{name}.const_data_ptr<T>()' for name in [main, *others])}}}"

    @property
    def operands(self) -> str:
        """The first tensor stands in for one that is not there."""
        others = [
            f"{a.name}.value_or({self.main.name})" if a.type == "Tensor?" else a.name
            for a in self.others
        ]
        return f"{', '.join([self.main.name, *others])})"

    @property
    def python_operands(self) -> str:
        main = self.main.name
        others = [
            f"{main} if {a.name} is None else {a.name}" if a.type == "Tensor?" else a.name
            for a in self.others
        ]
        return f"({main}.shape, {', '.join([main, *others])})"

    # Several outputs: the result, and statistics of the rows: the mean, and multiples of it.

    @property
    def statistics(self) -> list[str]:
        return ["mean", *(f"mean_{k}" for k in range(2, self.schema.outputs))]

    def each_statistic(self, first: str, other: str = "", separator: str = "\n") -> str:
        """`first` for the mean; for each of the others `other`, or the same."""
        mean, *others = self.statistics
        texts = [
            (other or first).format(name=name, mean=mean, k=k) for k, name in enumerate(others, 2)
        ]
        return separator.join([first.format(name=mean), *texts])

    def output_list(self, template: str) -> str:
        return template.format(", ".join(["output", *self.statistics]))

    @property
    def new_statistics(self) -> str:
        main = self.main.name
        sizes, dtype = (
            f"{main}.sizes().slice(0, {main}.dim() - 1)",
            f"{self.name}_statistics({main})",
        )
        return self.each_statistic(f"Tensor {{name}} = new_empty({main}, {sizes}, {dtype});")

    @property
    def fake_statistics(self) -> str:
        main = self.main.name
        return self.each_statistic(
            f"{{name}} = {main}.new_empty({main}.shape[:-1], dtype=_statistics_dtype({main}))"
        )

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

    # Python

    def _python_parameters(self, arguments: list[Argument], text: dict[str, str]) -> str:
        parts, star = [], False
        for a in arguments:
            if a.kwarg_only and not star:
                parts.append("*")
                star = True
            parts.append(text[a.name])
        return ", ".join(parts)

    @property
    def python_parameters(self) -> str:
        arguments = self.schema.arguments
        return self._python_parameters(arguments, {a.name: a.python_parameter for a in arguments})

    def reference_parameters(self, function: str) -> str:
        arguments = self.schema.arguments
        text = {a.name: a.name + (f"={a.default}" if a.default else "") for a in arguments}
        return f"{function}({self._python_parameters(arguments, text)})"

    @property
    def vmap_parameters(self) -> str:
        arguments = self.schema.arguments
        return (
            f"in_dims, {self._python_parameters(arguments, {a.name: a.name for a in arguments})})"
        )

    def python_call(self, function: str) -> str:
        arguments = [
            f"{a.name}={a.name}" if a.kwarg_only else a.name for a in self.schema.arguments
        ]
        return f"{function}({', '.join(arguments)})"

    @property
    def python_backward_parameters(self) -> str:
        tensors = [f"{name}: Tensor" for name in self.backward_tensors]
        return ", ".join([*tensors, *(f"{a.name}: {a.info.hint}" for a in self.schema.settings)])

    @property
    def python_backward_names(self) -> str:
        return ", ".join([*self.backward_tensors, *(a.name for a in self.schema.settings)])

    @property
    def docstring(self) -> str:
        lines = []
        for a in self.schema.arguments:
            if a is not self.main:
                lines.append(f"{a.name}: {a.info.describe.format(main=self.main.name)}")
        return "\n".join(lines)

    @property
    def number_checks(self) -> str:
        numbers = [a for a in self.schema.settings if re.match(r"(float|int)\b", a.info.hint)]
        return "\n".join(f'check_number("{self.name}", "{a.name}", {a.name})' for a in numbers)

    @property
    def python_checks(self) -> str:
        lines = []
        for a in self.others:
            value = "element" if a.type == LIST else a.name
            like = f'"{self.main.name}", {self.main.name}'
            indent = "    " if a.type != "Tensor" else ""
            if a.type == "Tensor?":
                lines.append(f"if {a.name} is not None:")
            elif a.type == LIST:
                message = (
                    f"{self.name}: {a.name} must hold at most 64 tensors, got {{len({a.name})}}"
                )
                lines.append(f'torch._check(len({a.name}) <= 64, lambda: f"{message}")')
                lines.append(f"for element in {a.name}:")
            lines += [
                f'{indent}check_same_dtype("{self.name}", "{a.name}", {value}, {like})',
                f'{indent}check_same_device("{self.name}", "{a.name}", {value}, {like})',
                f'{indent}check_shape("{self.name}", "{a.name}", {value}, {self.main.name}.shape)',
            ]
            if a.mutated:
                lines.append(f'check_non_overlapping("{self.name}", "{a.name}", {value})')
        return "\n".join(lines)

    @property
    def context_names(self) -> str:
        return "".join(f", ctx.{a.name}" for a in self.schema.settings)

    @property
    def setup_context(self) -> str:
        keyword_only = [a for a in self.schema.arguments if a.kwarg_only]
        targets = []
        for a in self.schema.arguments:
            if a.is_tensor:
                saved = a is self.main and "input" in self.kind.backward_takes
                targets.append(a.name if saved else "_")
            elif not a.kwarg_only:
                targets.append(f"ctx.{a.name}")
        lines = [f'ctx.{a.name} = keyword_only_inputs["{a.name}"]' for a in keyword_only]
        before = []
        if self.schema.outputs > 1:
            unneeded = ["_"] * (self.schema.outputs - 2)
            before = [f"{', '.join(['_', self.statistics[0], *unneeded])} = output"]
        extra = "keyword_only_inputs, " if keyword_only else ""
        return (
            f"def _setup_context(ctx, inputs, {extra}output):\n{unpacking(targets, lines, before)}"
        )

    @property
    def setup_context_backward(self) -> str:
        tensors = self.backward_tensors if len(self.kind.backward_takes) > 1 else ["_"]
        targets = [*tensors, *(f"ctx.{a.name}" for a in self.schema.settings)]
        return f"def _setup_context_backward(ctx, inputs, output):\n{unpacking(targets, [], [])}"

    @property
    def needs_main_grad(self) -> str:
        positional = [a for a in self.schema.arguments if not a.kwarg_only]
        return f"ctx.needs_input_grad[{positional.index(self.main)}]"

    @property
    def input_grads(self) -> str:
        grads = []
        for position, a in enumerate(a for a in self.schema.arguments if not a.kwarg_only):
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
        return f"return ({', '.join(grads)},)"

    @property
    def nones(self) -> str:
        return "".join("None,\n" for _ in self.schema.settings)

    @property
    def to_front(self) -> str:
        lines = []
        positions = {a.name: k for k, a in enumerate(self.schema.arguments)}
        plain = [a.name for a in self.schema.arguments if a.type == "Tensor"]
        dims = ", ".join(f"in_dims[{positions[name]}]" for name in plain)
        dims = f"({dims},)" if len(plain) == 1 else f"({dims})"
        if [positions[name] for name in plain] == list(range(len(plain))):
            dims = f"in_dims[:{len(plain)}]"
        target = f"({plain[0]},)" if len(plain) == 1 else ", ".join(plain)
        lines.append(f"{target} = to_front(info.batch_size, {dims}, {', '.join(plain)})")
        for a in self.schema.arguments:
            dim = f"in_dims[{positions[a.name]}]"
            if a.type == "Tensor?":
                lines += [
                    f"if {a.name} is not None:",
                    f"    ({a.name},) = to_front(info.batch_size, ({dim},), {a.name})",
                ]
            elif a.type == LIST:
                lines.append(
                    f"{a.name} = to_front(info.batch_size, {dim} or [None] * len({a.name}), "
                    f"*{a.name})"
                )
        return "\n".join(lines)

    @property
    def backward_to_front(self) -> str:
        names, count = ", ".join(self.backward_tensors), len(self.backward_tensors)
        target = f"({names},)" if count == 1 else names
        return f"{target} = to_front(info.batch_size, in_dims[:{count}], {names})"

    @property
    def unbatched(self) -> str:
        """Whether something that the operator writes to has no batch dimension."""
        dims = [f"in_dims[{k}]" for k, a in enumerate(self.schema.arguments) if a.mutated]
        return f"if {dims[0]} is None:" if len(dims) == 1 else f"if None in ({', '.join(dims)}):"

    # spec.py

    def _value(self, a: Argument, shape: str = "shape", dtype: str = "", n: int = 0) -> str:
        if a.type == LIST:
            return f"[make({shape}{dtype}), make({shape}{dtype})]"
        if a.is_tensor:
            return f"make({shape}{dtype})"
        return a.info.values(n)

    def _sample(self, arguments: list[Argument], values: dict[str, str]) -> str:
        parts, by_name = [], False
        for a in self.schema.arguments:
            if a not in arguments:
                by_name = True
            elif a.kwarg_only or by_name:
                parts.append(f"{a.name}={values[a.name]}")
            else:
                parts.append(values[a.name])
        return f"Sample({', '.join(parts)})"

    @property
    def samples(self) -> str:
        arguments = self.schema.arguments
        counts: dict[object, int] = {}
        values = {}
        for a in arguments:
            # Distinct within each type; int and int? share a series.
            series = a.type.rstrip("?").replace("SymInt", "int")
            values[a.name] = self._value(a, n=counts.setdefault(series, 0))
            counts[series] += 1
        lines = [f"yield {self._sample(arguments, values)}"]
        required = [a for a in arguments if a.default is None]
        bare = {a.name: "None" if a.type.endswith("?") else values[a.name] for a in required}
        bare |= {a.name: "[]" for a in required if a.type == LIST}
        second = f"yield {self._sample(required, bare)}"
        if second != lines[0]:
            lines.append(second)
        if sum(a.type == "bool" for a in arguments) > 2:
            # Of switches there are two values only: once more with others, so that each differs
            # from each somewhere.
            flipped = iter(["True", "True", "False", "False"] * len(arguments))
            values |= {a.name: next(flipped) for a in arguments if a.type == "bool"}
            lines.append(f"yield {self._sample(arguments, values)}")
        return "\n".join(lines)

    @property
    def bad_inputs(self) -> str:
        required = [a for a in self.schema.arguments if a.default is None]
        shape, main = "(3, 4)", self.main.name
        base = {a.name: self._value(a, shape) for a in self.schema.arguments}

        def bad(what: str, arguments: list[Argument], values: dict[str, str], text: str) -> str:
            arguments = [a for a in self.schema.arguments if a in required or a in arguments]
            sample = self._sample(arguments, base | values)
            return f'yield BadInput("{what}", {sample}, "{self.name}: {text}",)'

        lines = [
            bad(
                f"integer {main}",
                [],
                {main: f"make({shape}, dtype=torch.int64)"},
                f"{main} must be torch.float64, torch.float32, torch.float16 or torch.bfloat16, "
                f"got torch.int64",
            )
        ]
        if self.kind.rows:
            values = {a.name: self._value(a, "()") for a in self.schema.arguments}
            text = f"{main} must have at least 1 dimension, got shape ()"
            lines.append(bad(f"0-d {main}", [], values, text))
        for a in self.others:
            values = {
                main: f"make({shape}, dtype=torch.float32)",
                a.name: self._value(a, shape, ", dtype=torch.float16"),
            }
            text = f"{a.name} must have the dtype of {main}, torch.float32, got torch.float16"
            # Of two tensors with a wrong dtype only the first is spoken of.
            values |= {
                b.name: self._value(b, shape, ", dtype=torch.float32")
                for b in self.others
                if b is not a
            }
            lines.append(bad(f"{a.name} of another dtype", [a], values, text))
            values = {a.name: self._value(a, "(4,)")}
            text = f"{a.name} must have shape (3, 4), got (4,)"
            lines.append(bad(f"{a.name} of another shape", [a], values, text))
        for a in self.schema.arguments:
            if a.mutated:
                values = {a.name: "make((3, 1), requires_grad=False).expand(3, 4)"}
                text = f"{a.name} must not overlap itself, got shape (3, 4) and strides (1, 0)"
                lines.append(bad(f"{a.name} that overlaps itself", [a], values, text))
        return "\n".join(lines)

    @property
    def main_value(self) -> str:
        if self.main.kwarg_only:
            return f'sample.kwargs["{self.main.name}"]'
        return f"sample.args[{self.schema.arguments.index(self.main)}]"

    @property
    def forward_traffic(self) -> str:
        read = 1 + sum(a.type == "Tensor" for a in self.others)
        # A reduction writes less than a tensor.
        return f"forward={read} * size + result" if self.reduces else f"forward={read + 1} * size"


def camel(name: str) -> str:
    """The name of the operator's functor."""
    return "".join(word.capitalize() for word in name.split("_"))


def unpacking(targets: list[str], after: list[str], before: list[str]) -> str:
    """The statement that unpacks `inputs`, among others; "_" stands for what is not needed."""
    lines = after
    if set(targets) != {"_"}:
        target = f"({targets[0]},)" if len(targets) == 1 else ", ".join(targets)
        lines = [f"{target} = inputs", *lines]
    return "\n".join(f"    {line}" for line in [*before, *lines] or ["pass"])


def weighted(k: int, value: str, number: str = "{}") -> str:
    """The k-th term of a sum, with a weight of its own: two that change places are noticed."""
    return value if k == 0 else f"{value} / {number.format(k + 1)}"


@dataclass(frozen=True)
class Fragment:
    """A piece of text; one that is a block takes whole lines, which are gone where it is empty."""

    text: str
    block: bool = False


def fragments(places: Places) -> list[Fragment]:
    """Everything in the templates' files that depends on the schema, in the same order for every
    schema.
    """
    inline = [
        # C++
        f"({places.cpp_parameters})",
        f"({places.cpp_tensor_parameters})",
        places.cpp_backward_parameters,
        places.check_call,
        places.cpp_factor,
        places.struct(),
        places.struct("Backward"),
        places.functor(),
        places.functor("Backward"),
        places.functor_parameters,
        f"({places.main.name}.sizes(), {places.operands}",
        f"(f, output, {places.operands}",
        f"(f, {places.main.name}, {places.operands}",
        places.cpp_number_parameters,
        places.cpp_number_arguments,
        places.cpu_data,
        places.fields("output;  // [rows, cols]", flags=True),
        places.fields("output;  // [rows]", flags=True),
        places.fields(f"{places.grad_main};  // [rows, cols]"),
        places.field_values("output.mutable_data_ptr<T>()"),
        places.row_inputs,
        # ops.py
        f"({places.python_parameters})",
        f"({places.python_backward_parameters})",
        places.python_operands,
        places.python_call(f".{places.name}"),
        f"({places.python_backward_names})",
        f"in_dims, {places.python_backward_names})",
        places.vmap_parameters,
        places.setup_context,
        places.setup_context_backward,
        places.context_names,
        places.needs_main_grad,
        places.input_grads,
        places.python_factor("ctx."),
        places.unbatched if places.schema.mutates else "",
        # spec.py
        places.reference_parameters("reference"),
        places.reference_parameters("op_reference"),
        places.python_call("op_reference"),
        places.python_factor(),
        places.python_terms,
        places.main_value,
        places.forward_traffic,
    ]
    several = [
        # C++
        f"std::tuple<{', '.join(['Tensor'] * places.schema.outputs)}>",
        places.each_statistic(
            "{name}[row] = sums[0] / static_cast<A>(cols);", "{name}[row] = A({k}) * {mean}[row];"
        ),
        places.each_statistic(
            "{name}[row.index()] = average;", "{name}[row.index()] = A({k}) * average;"
        ),
        places.each_statistic(", {name}.mutable_data_ptr<A>()", separator=""),
        places.fields(places.each_statistic("A* __restrict__ {name};  // [rows]"), flags=True),
        places.field_values(
            places.each_statistic("{name}.mutable_data_ptr<A>()", separator=", "),
        ),
        places.output_list("return {{{}}};"),
        # ops.py
        f"tuple[{', '.join(['Tensor'] * places.schema.outputs)}]",
        places.output_list("return {}"),
        f"({', '.join(['0'] * places.schema.outputs)})",
        places.backward_head,
        places.mean_gradient,
    ]
    several_blocks = [
        places.each_statistic("acc_t<T>* {name},  // [rows]"),
        places.new_statistics,
        places.fake_statistics,
        # spec.py
        places.each_statistic("{name} = {name}.squeeze(-1)", "{name} = {k} * {mean}"),
    ]
    blocks = [
        # C++
        places.cpp_checks(),
        places.functor_terms,
        places.cpp_pointers(),
        places.cpp_pointers("__restrict__ "),
        places.cpu_terms,
        places.contiguous,
        # ops.py
        places.docstring,
        places.number_checks,
        places.python_checks,
        places.nones,
        places.to_front,
        places.backward_to_front,
        # spec.py
        places.samples,
        places.bad_inputs,
    ]
    if places.schema.outputs > 1:
        inline, blocks = inline + several, blocks + several_blocks
    return [Fragment(text) for text in inline] + [Fragment(text, block=True) for text in blocks]


def pattern(fragment: Fragment) -> str:
    """A regular expression for the fragment, however it is wrapped."""
    tokens = re.findall(r"\w+|[^\w\s]", fragment.text)
    parts = []
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        parts.append(re.escape(token))
        between_words = re.match(r"\w", token) and re.match(r"\w", following)
        parts.append(r"\s+" if between_words else r"\s*")
    text = "".join(parts[:-1])
    # A word is a whole word, and formatters add a comma before a bracket that closes on a line of
    # its own.
    text = re.sub(r"\\s\*(\\[)\]}])", r"\\s*,?\\s*\1", text)
    before = r"(?<!\w)" if re.match(r"\w", tokens[0]) else ""
    after = r"(?!\w)" if re.match(r"\w", tokens[-1]) else ""
    text = f"{before}{text}{after}"
    if fragment.block:
        return rf"(?<=\n)[ \t]*{text}[ \t]*\n"
    if tokens[0] in ",*+":  # an operator goes with the white space before it
        text = rf"\s*{text}"
    return text


def replace(text: str, old: Places, new: Places) -> str:
    """Replaces the old operator's fragments and names by the new one's."""
    pairs = [(o, n) for o, n in zip(fragments(old), fragments(new), strict=True) if o.text.strip()]
    # The longest first, for some are part of others.
    pairs.sort(key=lambda pair: -len(pair[0].text))
    expression = re.compile("|".join(f"({pattern(o)})" for o, _ in pairs))
    found: list[str] = []

    def keep(match: re.Match[str]) -> str:
        fragment = pairs[match.lastindex - 1][1]  # type: ignore[operator]
        start = match.start() if fragment.block else text.rfind("\n", 0, match.start()) + 1
        indent = re.match(r" *", text[start:])[0]  # type: ignore[index]
        lines = "".join(f"{indent}{line}\n" for line in fragment.text.splitlines())
        found.append(lines if fragment.block else lines.removeprefix(indent).removesuffix("\n"))
        return f"\0{len(found) - 1}\0"

    text = expression.sub(keep, text)
    # Names, outside of what was just written.
    names = {
        old.main.name: new.main.name,
        old.grad_main: new.grad_main,
        f"contiguous_{old.main.name}": f"contiguous_{new.main.name}",
    }
    text = rename(text, names)
    text = text.replace(old.name, new.name).replace(old.camel, new.camel)
    return re.sub(r"\0(\d+)\0", lambda match: found[int(match[1])], text)


def rename(text: str, names: dict[str, str]) -> str:
    """Replaces whole words that are neither members nor methods."""
    words = "|".join(map(re.escape, names))
    return re.sub(rf"(?<![\w.>:])({words})(?!\w)", lambda match: names[match[1]], text)


def parse_template(text: str) -> Schema:
    schema = parse(text.replace("my_op", "template_op", 1))
    return Schema(text, "my_op", schema.arguments, schema.outputs)


def backward_schema(kind: str, schema: Schema) -> str:
    return Places(schema, KINDS[kind]).backward_schema


def instantiate(kind: str, schema: Schema, options: Options) -> dict[str, str]:
    """Returns the files of the new operator's folder, by name, formatted where the formatters are
    at hand.
    """
    check_fits(kind, schema)
    stand_ins, names = with_stand_ins(schema)
    old = Places(parse_template(KINDS[kind].schema), KINDS[kind])
    new = Places(stand_ins, KINDS[kind])
    files = {}
    for path in sorted((TEMPLATES / kind).iterdir()):
        left_out = (path.name == "my_op_cpu.cpp" and not options.cpu) or (
            path.name == "my_op_cuda.cu" and not options.cuda
        )
        if path.suffix not in (".h", ".cpp", ".cu", ".py") or left_out:
            continue
        text = adapt(path.name, path.read_text(), KINDS[kind], options)
        text = replace(text, old, new)
        files[path.name.replace("my_op", schema.name)] = complete(path.name, text, new)
    files = {name: format_text(name, text) for name, text in spell(files, names).items()}
    if options.cuda_source and options.cuda:
        name = f"{schema.name}_cuda.cu"
        files[name] = take_in(*options.cuda_source, files[name])
    return files


def take_in(file: str, source: str, generated: str) -> str:
    """Puts an existing CUDA source into the generated one: whole, and its launch is left to edit.

    One that registers the operator itself takes its place.
    """
    for header in re.findall(r"#\s*include\s*[<\"](torch/extension\.h|pybind11/[^>\"]*)", source):
        raise Refusal(
            f"{file} includes {header}, which asks for ATen and Python: leave out all that is "
            f"about "
            "PyTorch (host functions of at::Tensor, PYBIND11_MODULE), and keep the kernels"
        )
    names = re.findall(r'm\.impl\(\s*"(\w+)"', generated)
    if "TORCH_LIBRARY_IMPL" in source:
        missing = [name for name in names if not re.search(rf'm\.impl\(\s*"{name}"', source)]
        if missing:
            raise Refusal(
                f"{file} registers operators, but not {' and '.join(missing)}. Add it, or take its "
                "TORCH_LIBRARY_IMPL out to have one generated; --no-grad and --backward torch need "
                "no backward operator"
            )
        return source
    bounds = r"(?:__launch_bounds__\([^)]*\)\s*)?"
    kernels = re.findall(rf"__global__\s+[^;{{(]*?{bounds}(\w+)\s*\(", source)
    if not kernels:
        raise Refusal(f"{file} has no kernel: no __global__ function, and no TORCH_LIBRARY_IMPL")
    if re.search(r"\bint\s+main\s*\(", source):
        raise Refusal(f"{file} has a main(): leave it out, the operator's host function is instead")
    own = source if source.endswith("\n") else source + "\n"
    own = f"// clang-format off: {file}, as it was.\n{own}// clang-format on\n\n"
    text = insert_before(generated, "namespace extension_cpp {", own)
    launches = ", ".join(f"{kernel}<<<...>>>" for kernel in kernels)
    comment = f"// EDIT: launch {launches} here, from {file}, in place of the template's kernel.\n"
    return format_text("kernel.cu", insert_before(text, "  dispatch_floating(", f"  {comment}"))


def check_fits(kind: str, schema: Schema) -> None:
    if KINDS[kind].accepts(schema):
        return
    fitting = [name for name, other in KINDS.items() if other.accepts(schema)]
    raise Refusal(
        f"the template '{kind}' is for {KINDS[kind].fits}, which {schema.name} is not; "
        f"for its schema there {'is' if len(fitting) == 1 else 'are'}: {', '.join(fitting)}"
    )


def adapt(file: str, text: str, kind: Kind, options: Options) -> str:
    """Takes out of a template's file what the options leave out."""
    own_backward = options.grad and options.backward == "operator"
    if file.endswith((".h", ".cpp", ".cu")):
        if not own_backward:
            text = drop_paragraphs(text, r"(?i)my_?op_?backward", keep=r"TORCH_LIBRARY_IMPL")
            text = re.sub(r'.*m\.impl\("my_op_backward".*\n', "", text)
        return text
    if not options.cpu or not options.cuda:
        device = "cpu" if options.cpu else "cuda"
        text = text.replace("on CPU or CUDA", f"on {device.upper()}")
        text = text.replace(
            "    traffic=traffic,\n", f'    traffic=traffic,\n    devices=("{device}",),\n'
        )
    if not own_backward:
        text = drop_paragraphs(
            text, r'"extension_cpp::my_op_backward"|_(context|backward|vmap)_backward\('
        )
        places = Places(parse_template(kind.schema), kind)
        call = r"torch\.ops\.extension_cpp\.my_op_backward\([^)]*\)"
        text = re.sub(call, kind.torch_backward.format(factor=places.python_factor("ctx.")), text)
    if not options.grad:
        text = drop_paragraphs(text, r"^def (_setup_context|_backward)\(")
        text = re.sub(
            r'^register_autograd\("extension_cpp::my_op".*\)$',
            'register_no_autograd("extension_cpp::my_op")',
            text,
            flags=re.M,
        )
        text = text.replace("import register_autograd", "import register_no_autograd")
        text = re.sub(
            r"Differentiable to any order[^.]*\.",
            "Not differentiable: asking for a gradient is an error.",
            text,
        )
        text = re.sub(r"backward=\d \* size( \+ result)?", "backward=0", text)
        text = text.replace(
            "    traffic=traffic,\n", "    traffic=traffic,\n    differentiable=False,\n"
        )
    return text


def drop_paragraphs(text: str, unwanted: str, keep: str = r"(?!)") -> str:
    """Drops the definitions in which a pattern is found: what starts in the first column after a
    blank line.
    """
    pieces = re.split(r"(\n\n+)(?=\S)", text)
    kept = ""
    for piece, gap in zip(pieces[::2], [*pieces[1::2], ""], strict=True):
        if not re.search(unwanted, piece, re.M) or re.search(keep, piece):
            kept += piece + gap
    return kept if kept.endswith("\n") else kept.rstrip("\n") + "\n"


def complete(file: str, text: str, places: Places) -> str:
    """Adds the helpers that some types need, and takes out imports that are not needed any more."""
    if file == "my_op.h" and places.folded:
        text = insert_before(text, "}  // namespace extension_cpp", settings_function(places))
    if file.endswith((".cpp", ".cu")):
        text = re.sub(
            r" +using A = acc_t<T>;\n(?=((?:(?!\n  \}\);)[\s\S])*)\n  \}\);)", drop_unused, text
        )
    if re.search(r"\bdata_of<|\bPointers<|\bkMaxPointers|<Tensor> contiguous_", text):
        text = add_include(text, "arguments.h")
    if places.also_written:
        text = write_others(file, text, places)
    if file == "ops.py" and "Sequence[" in text:
        imported = "from collections.abc import Sequence\n\nimport torch\n"
        text = text.replace("import torch\n", imported, 1)
    return prune_imports(text) if file.endswith(".py") else text


def drop_unused(match: re.Match[str]) -> str:
    """Drops the type A from a lambda that names it no more, for want of numbers."""
    return match[0] if re.search(r"\bA\b", match[1]) else ""


def write_others(file: str, text: str, places: Places) -> str:
    """Makes an operator that writes to several tensors write to each."""
    if file == "my_op.h":
        functor = """// EDIT: the formula for what is written to the other tensors.
template <class A>
struct %sOther {
  A factor;

  HOST_DEVICE A operator()(A entry) const { return entry * factor; }
};

"""
        return insert_before(text, "// EDIT: dtypes", functor % places.camel)
    for k, a in enumerate(places.also_written):
        if file == "spec.py":
            text = re.sub(r"(\n\n\n# EDIT: calls whose)", rf"\n    {a.name}.mul_({k + 2})\1", text)
        else:
            call = f"elementwise<T>({places.camel}Other<A>{{A({k + 2})}}, {a.name}, {a.name});"
            text = re.sub(
                r"(\n +)(cpu|cuda)(::elementwise.*;)(?=\n  \}\);)", rf"\1\2\3\1\2::{call}", text
            )
    return text


def settings_function(places: Places) -> str:
    parameters = ", ".join(a.cpp_parameter for a in places.folded)
    terms = [weighted(k, a.info.cpp_number.format(a.name)) for k, a in enumerate(places.folded)]
    helper = ""
    if any("weighted_sum" in term for term in terms):
        helper = """const auto weighted_sum = [](const auto& values) {
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    sum += static_cast<double>(i + 1) * static_cast<double>(values[i]);
  }
  return sum;
};
"""
    comment = (
        "// EDIT: every argument that is neither a tensor nor a number, folded into one number."
    )
    body = f"{helper} return ({' + '.join(terms)}) / 10;"
    return f"{comment}\ninline double {places.name}_settings({parameters}) {{ {body} }}\n\n"


def insert_before(text: str, marker: str, inserted: str) -> str:
    assert marker in text, marker
    return text.replace(marker, inserted + marker, 1)


def add_include(text: str, header: str) -> str:
    """Adds an include where its name belongs, after the file's own header."""
    lines = text.splitlines(keepends=True)
    includes = [k for k, line in enumerate(lines) if line.startswith('#include "')]
    if len(includes) > 1:
        includes = includes[1:]
    new = f'#include "{header}"\n'
    position = next((k for k in includes if lines[k] > new), includes[-1] + 1)
    return "".join([*lines[:position], new, *lines[position:]])


def prune_imports(text: str) -> str:
    """Drops what `from ... import a, b` lines import and nothing uses."""

    def prune(match: re.Match[str]) -> str:
        names = re.findall(r"\w+", match[2])
        used = [name for name in names if len(re.findall(rf"\b{name}\b", text)) > 1]
        if len(used) == len(names):
            return match[0]
        return f"from {match[1]} import {', '.join(used)}\n" if used else ""

    imports = r"^from (extension_cpp[\w.]*) import (\([^)]*\)|.*)\n"
    return re.sub(imports, prune, text, flags=re.MULTILINE)


def find_tool(name: str) -> str | None:
    """A formatter: beside the interpreter, as in the repository's .venv, or on PATH."""
    beside = Path(sys.executable).parent / name
    venv = TEMPLATES.parent / ".venv" / "bin" / name
    for path in (beside, venv):
        if path.exists():
            return str(path)
    return shutil.which(name)


def format_text(name: str, text: str) -> str:
    """Formats one file as `make format` would."""
    place = TEMPLATES.parent / "extension_cpp" / name
    if name.endswith(".py"):
        stdin = ["--stdin-filename", str(place), "-"]
        commands = [
            ["ruff", "check", "--quiet", "--fix-only", "--select", "I", *stdin],
            ["ruff", "format", *stdin],
        ]
    else:
        commands = [["clang-format", f"--assume-filename={place}"]]
    for tool, *arguments in commands:
        found = find_tool(tool)
        if found is None:
            continue
        command = [found, *arguments]
        result = subprocess.run(
            command, input=text, capture_output=True, encoding="utf-8", check=False
        )
        if result.returncode:
            raise RuntimeError(f"{found} refuses the generated {name}: {result.stderr}\n{text}")
        text = result.stdout
    return text

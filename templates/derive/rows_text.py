"""Functors for rowwise(), in C++.

A reduction has a level, one more than those that it is made of: sums of one level are one pass over
the row. What there is one of for a row is computed between the passes; the rest in their lambdas.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .cpp_text import Cpp, divisors
from .elements_text import type_of
from .graph import (
    COLUMN,
    FLOAT8,
    GRADIENT,
    OF_EACH_ROW,
    ROW,
    WIDE,
    Node,
    col,
    in_order,
    inputs_of,
)
from .of_numbers import Formula
from .operations import OPERATIONS
from .printing import Printer, Text
from .rows_operations import PASSES, passes_before

# That are instructions, or nearly.
CHEAP = ("std::fabs", "std::sqrt", "std::is", "std::signbit", "std::numeric_limits")
# That one call of row.sum takes.
MOST_SUMS = 4


def levels(results: Sequence[Node]) -> dict[Node, int]:
    """The level of each node; sums that nothing waits for join later passes that read the same."""
    nodes = list(in_order(results))
    level: dict[Node, int] = {}
    for node in nodes:
        below = max((level[arg] for arg in node.args), default=0)
        level[node] = below + (node.op in PASSES)
    sums = [node for node in nodes if node.op == "row_sum"]
    for node in reversed(sums):
        waiting = [
            level[other]
            for other in nodes
            if other.op in PASSES and other is not node and node in set(in_order([other]))
        ]
        latest = min(waiting, default=max(level.values()) + 1) - 1
        others = [level[other] for other in sums if other is not node]
        # Not one that would take another call of row.sum for it.
        later = [k for k in others if level[node] < k <= latest and others.count(k) % MOST_SUMS]
        # It stays where other sums of its pass read all that it reads.
        reads = inputs_of([node])
        beside = [other for other in sums if other is not node and level[other] == level[node]]
        if later and not reads <= inputs_of(beside):
            level[node] = min(later)
    # What is made of such a sum waits for it.
    for node in nodes:
        if node.op not in PASSES:
            level[node] = max((level[arg] for arg in node.args), default=0)
    return level


def is_costly(node: Node) -> bool:
    """Whether it is a call of a function that takes some ten instructions or more."""
    form = OPERATIONS[node.op].cpp if node.args else None
    return form is not None and "::" in form.text and not form.text.startswith(CHEAP)


def in_memory(dtype: str) -> str:
    """The type of the elements of a tensor that has a dtype of its own."""
    return "A" if dtype == WIDE else type_of(dtype)


def of_element(dtype: str) -> str:
    """That of such an element in a lambda."""
    return "A" if dtype in FLOAT8 else in_memory(dtype)


@dataclass(frozen=True)
class Tensors:
    """What a functor is given.

    Attributes:
        all: in the order of the operator.
        elements: those with a value for each element.
        rows: those with a value for each row.
        columns: those with a value for each column.
        dtypes: of those that have one of their own.
        single: those of the rows that have one value for all.
    """

    all: Sequence[str]
    elements: Sequence[str]
    rows: Sequence[str]
    columns: Sequence[str]
    dtypes: Mapping[str, str]
    single: Collection[str]


class RowFunctor:
    """A functor that is called with a row.

    Args:
        struct: its name.
        results: what it computes, by the names of its members: for each element or row. Of a sum
            for each column the name is not used.
        of_row: those of the results that have a value for each row.
        tensors: what it is given.
        wide: those of the results and of the rows that are not rounded to the tensors' type.
        formula: what there is to say of these besides.
    """

    def __init__(
        self,
        struct: str,
        results: Mapping[str, Node],
        of_row: Sequence[str],
        tensors: Tensors,
        wide: Container[str],
        formula: Formula,
    ) -> None:
        self.struct = struct
        self.results = {n: node for n, node in results.items() if node.op != "col_sum"}
        self.of_row = of_row
        self.terms = [node.args[0] for node in results.values() if node.op == "col_sum"]
        self.tensors = tensors
        self.elements = tensors.elements
        self.columns = [name for name in tensors.columns if name not in tensors.dtypes]
        own = {*tensors.all} - tensors.dtypes.keys()
        self.others = [name for name in tensors.all if name not in {*own, *tensors.rows}]
        self.formula, self.names, self.spelling = formula, formula.names, formula.spelling
        self.wide = wide
        self.computed = [*self.results.values(), *self.terms]
        self.divisors = divisors(self.computed)
        self.inputs = inputs_of(self.computed)
        self.read = [name for name in tensors.rows if name in self.inputs]
        self.outer = self.printer()
        # By element: the results of row.keep, and what lambdas call one.
        self.kept: dict[Node, tuple[str, str]] = {}
        self.lines: list[str] = []

    def printer(self) -> Printer:
        own = ("row", "known", "values", "T", "Row", "RowValues", "write_per_row", *self.results)
        return Printer(Cpp(self.spelling), self.names, own)

    # ----- the text

    def text(self) -> str:
        body = self.one_call() if not self.terms else self.two_calls()
        lines = [
            "template <class T>",
            f"struct {self.struct} {{",
            "  using A = acc_t<T>;",
            *([f"  {self.kept_type}"] if self.terms else []),
            "",
            *(f"  {line}" for line in self.members()),
            "",
            *(f"  {line}" for line in body),
            "};",
        ]
        return "\n".join(lines) + "\n"

    def members(self) -> list[str]:
        lines = []
        for name, node in self.results.items():
            shape = "[rows]" if name in self.of_row else "[rows, cols]"
            kind = type_of(node.dtype) if node.dtype else self.type_of(name)
            lines.append(f"{kind}* {name};  // {shape}")
        for name in self.tensors.all:
            spelled = self.spelling[name]
            if name in self.tensors.rows:
                count = "1" if name in self.tensors.single else "rows"
                kind = self.type_in_memory(name)
                lines.append(f"const {kind}* {spelled};  // [{count}]")
            elif name in self.columns:
                lines.append(f"backend::Parameter<T> {spelled};  // [cols]")
            elif name in self.others:
                kind = in_memory(self.tensors.dtypes[name])
                shape = "[cols]" if name in self.tensors.columns else "[rows, cols]"
                lines.append(f"PerElement<{kind}> {spelled};  // {shape}")
        return lines + self.formula.number_members(self.computed)

    def type_of(self, tensor: str) -> str:
        return "A" if tensor in self.wide else "T"

    def type_in_memory(self, tensor: str) -> str:
        dtype = self.tensors.dtypes.get(tensor)
        return type_of(dtype) if dtype else self.type_of(tensor)

    @property
    def are_of_one_type(self) -> bool:
        """Whether all that is read of the tensors for rows is of the type of the arithmetic."""
        return not any(name in self.tensors.dtypes for name in self.read)

    @property
    def known_type(self) -> str:
        """What is read of the tensors for rows."""
        return f"Values<A, {len(self.read)}>" if self.are_of_one_type else "Known"

    def row_values(self) -> list[str]:
        """What is read of the tensors for rows, ahead of the row."""
        if not self.read:
            return []
        dtypes = self.tensors.dtypes
        types = [type_of(dtypes.get(name, "")) for name in self.read]
        pairs = zip(types, (self.spelling[name] for name in self.read), strict=True)
        members = " ".join(f"{kind} {name};" for kind, name in pairs)
        known = [] if self.are_of_one_type else [f"struct Known {{ {members} }};", ""]
        places = [
            f"*{name}" if each in self.tensors.single else f"{name}[row]"
            for each, name in ((each, self.spelling[each]) for each in self.read)
        ]
        values = [
            place if self.type_in_memory(each) != "T" else f"static_cast<A>({place})"
            for each, place in zip(self.read, places, strict=True)
        ]
        row = "row" if any("[row]" in place for place in places) else "/*row*/"
        return [
            *known,
            f"HOST_DEVICE {self.known_type} row_values(int64_t {row}) const "
            f"{{ return {{{', '.join(values)}}}; }}",
            "",
        ]

    def row_columns(self) -> list[str]:
        """The parameters, of which CUDA keeps what a thread needs."""
        if not self.columns:
            return []
        members = ", ".join(f"&{self.spelling[name]}" for name in self.columns)
        kind = f"RowColumns<backend::Parameter<T>, {len(self.columns)}>"
        return [
            f"HOST_DEVICE {kind} row_columns() const {{ return {{{{{members}}}}}; }}",
            "",
        ]

    def row_elements(self) -> list[str]:
        """The tensors of other dtypes that CUDA reads a row ahead."""
        others = [name for name in self.others if name in self.inputs]
        if not others:
            return []
        types = ", ".join(in_memory(self.tensors.dtypes[name]) for name in others)
        members = ", ".join(f"&{self.spelling[name]}" for name in others)
        return [
            f"HOST_DEVICE RowElements<{types}> row_elements() const {{ return {{{members}}}; }}",
            "",
        ]

    @property
    def of_a_row(self) -> str:
        """The parameters of what is called with a row."""
        known = f", const {self.known_type}& known" if self.read else ""
        return f"(Row& row{known}) const"

    def kind(self, node: Node) -> str:
        if node.dtype:
            return type_of(node.dtype)
        return "Divisor<A>" if node in self.divisors else "A"

    def one_call(self) -> list[str]:
        self.find([*self.results.values()], [self.results[name] for name in self.written])
        self.write_per_row()
        self.write(self.outer)
        return [
            *self.row_values(),
            "template <class Row>",
            f"HOST_DEVICE void operator(){self.of_a_row} {{",
            *self.body(),
        ]

    def two_calls(self) -> list[str]:
        self.find(self.computed, [])
        self.write_per_row()
        # Integers that there is one of for all rows are made again.
        bound = self.outer.bound.items()
        self.outer.bound = {n: name for n, name in bound if not n.integer or n.extent == ROW}
        written = [node for name, node in self.results.items() if name not in self.of_row]
        written += self.terms
        kept = [n for n in in_order(written, self.outer.bound) if n in self.outer.bound]
        has_integers = any(node.integer for node in kept)
        namer = self.printer()
        names = [namer.fresh(self.plain_name(node, namer)) for node in kept]
        if has_integers:
            pairs = zip((type_of(node.dtype) for node in kept), names, strict=True)
            self.kept_type = f"struct RowValues {{ {' '.join(f'{k} {n};' for k, n in pairs)} }};"
        else:
            self.kept_type = f"using RowValues = Values<A, {len(kept) or 1}>;"
        values = [
            f"A({self.outer.bound[node]})"
            if node.is_bool and not has_integers
            else self.outer.bound[node]
            for node in kept
        ] or ["A(0)"]
        self.lines.append(f"return {{{', '.join(values)}}};")
        found = self.body()
        self.lines = []
        inner = self.printer()
        for k, node in enumerate(kept):
            name = inner.fresh(self.plain_name(node, inner))
            inner.bound[node] = name
            is_it = " != A(0)" if node.is_bool else ""
            value = f"values.{names[k]}" if has_integers else f"values[{k}]{is_it}"
            self.lines.append(f"const {self.kind(node)} {name} = {value};")
        self.write(inner)
        unused = "values" if kept else "/*values*/"
        return [
            *self.row_columns(),
            *self.row_elements(),
            *self.row_values(),
            "// What the results of a row are made of besides its elements.",
            "template <class Row>",
            f"HOST_DEVICE RowValues of_row{self.of_a_row} {{",
            *found,
            "",
            "template <class Row>",
            f"HOST_DEVICE void write(Row& row, const RowValues& {unused}) const {{",
            *self.body(),
        ]

    def body(self) -> list[str]:
        return [*(f"  {line}" for line in self.lines), "}"]

    def plain_name(self, node: Node, printer: Printer) -> str:
        bound = self.outer.bound[node]
        return bound if bound.isidentifier() else printer.word(node)

    # ----- passes that find something out

    def find(self, results: Sequence[Node], written: Sequence[Node]) -> None:
        """The passes that the results need.

        Args:
            results: of the functor.
            written: what is computed in the pass that follows. None where that has a function of
                its own, which has nothing of what this one keeps.
        """
        self.bind_leaves(results)
        level = levels(results)
        passes = [*self.passes(results, level), *([written] if written else [])]
        for k in range(1, max(level.values(), default=0) + 1):
            now = [n for n in in_order(results) if n.op in PASSES and level[n] == k]
            self.hoist([n.args[0] for n in now])
            self.keep(passes, {node for node in level if level[node] < k})
            for node in now:
                if node.op == "row_max":
                    self.max(node)
            sums = [node for node in now if node.op == "row_sum"]
            for first in range(0, len(sums), MOST_SUMS):
                self.sum(sums[first : first + MOST_SUMS])
        if written:
            self.hoist(results)
            self.keep(passes, level)
        else:
            self.kept = {}
            self.hoist(results)

    def passes(self, results: Sequence[Node], level: Mapping[Node, int]) -> list[list[Node]]:
        """What each call of row.sum and row.max computes."""
        nodes = [node for node in in_order(results) if node.op in PASSES]
        sums: dict[int, list[Node]] = {}
        for node in nodes:
            if node.op == "row_sum":
                sums.setdefault(level[node], []).append(node.args[0])
        return [[n.args[0]] for n in nodes if n.op == "row_max"] + [*sums.values()]

    def keep(self, passes: Sequence[Sequence[Node]], known: Container[Node]) -> None:
        """Computes once what is costly and several passes want, of what is known so far."""
        given = self.given(self.outer)
        within = [self.within(each) for each in passes]
        nodes = self.within([node for each in passes for node in each])
        for node in reversed(nodes):
            # What a row keeps is made of its elements, and nothing else: of what it has kept where
            # that saves reading tensors of other dtypes again.
            is_of_kept = not self.others and self.kept_in([node], self.outer)
            of_elements = not (is_of_kept or self.columns_of([node], self.outer))
            if not (of_elements and node.extent & COLUMN) or node.dtype:
                continue
            if node in given or node not in known:
                continue
            if not is_costly(node) and not self.saves_reading(node, passes):
                continue
            if sum(node in each for each in within) > 1:
                self.hoist([node])
                kept = self.call("row.keep", [node], self.outer)
                element = self.outer.fresh(self.outer.word(node))
                results = self.outer.fresh(f"{element}s")
                self.lines.append(f"const auto {results} = {kept};")
                self.kept[node] = (results, element)
                given = self.given(self.outer)
                within = [self.within(each) for each in passes]

    def saves_reading(self, node: Node, passes: Sequence[Sequence[Node]]) -> bool:
        """Whether tensors of other dtypes are read less often if this is kept."""
        if not self.others:
            return False

        def count(computed: Iterable[Sequence[Node]], known: Iterable[Node] = ()) -> int:
            return sum(self.is_other(n) for each in computed for n in self.within(each, known))

        return count([[node]]) + count(passes, [node]) < count(passes)

    def within(self, computed: Sequence[Node], known: Iterable[Node] = ()) -> list[Node]:
        """What a pass that computes this has in its lambda: not what other passes do."""
        other = {node for node in in_order(computed) if node.op in PASSES}
        return list(in_order(computed, {*self.given(self.outer), *other, *known}))

    def given(self, printer: Printer) -> dict[Node, str]:
        """What lambdas need not compute, and its name there."""
        return {**printer.bound, **{node: name for node, (_, name) in self.kept.items()}}

    def bind_leaves(self, results: Sequence[Node]) -> None:
        for node in in_order(results):
            if node.op == "cols":
                self.bind(node, "static_cast<A>(row.cols())", "cols")
            elif node.op == "whole_cols":
                self.bind(node, "row.cols()", "count")
            elif node.op in ("row", *OF_EACH_ROW):
                name = str(node.value)
                own = name.removeprefix("row_") if name.startswith("row_") else f"row_{name}"
                own = "grad" if name == GRADIENT else own
                place = f"[{self.read.index(name)}]"
                place = place if self.are_of_one_type else f".{self.spelling[name]}"
                self.bind(node, f"known{place}", own)
            elif node.op == "row_shift":
                first = self.outer.fresh("first")
                self.lines.append(f"const A {first} = {self.first(node.args[0])};")
                self.bind(node, f"std::isfinite({first}) ? {first} : A(0)")
        # They are waited for while the row is reduced.
        picked = [node for node in in_order(results) if node.op == "at"]
        self.hoist([node for node in picked if not passes_before(node)])

    def first(self, node: Node) -> str:
        """An expression of the elements, of the first of them."""
        spelling = dict(self.spelling)
        for k, name in enumerate(self.elements):
            spelling[name] = f"row.first({k})" if k else "row.first()"
        spelling |= {name: f"row.first({self.spelling[name]})" for name in self.others}
        return Printer(Cpp(spelling), {}).expression(node)

    def bind(self, node: Node, text: str, name: str = "") -> None:
        self.outer.bound[node] = self.outer.fresh(name or self.outer.word(node))
        self.lines.append(f"const {self.kind(node)} {self.outer.bound[node]} = {text};")

    def max(self, node: Node) -> None:
        # Of the elements as they are, CUDA finds it with fewer instructions.
        as_they_are = node.args[0].op == "tensor" and len(self.elements) == 1
        text = "row.max()" if as_they_are else self.call("row.max", [node.args[0]], self.outer)
        self.bind(node, text)

    def sum(self, nodes: Sequence[Node]) -> None:
        if len(nodes) == 1:
            self.bind(nodes[0], self.call("row.sum", [nodes[0].args[0]], self.outer))
            return
        sums = self.outer.fresh("sums")
        text = self.call("row.sum", [node.args[0] for node in nodes], self.outer)
        self.lines.append(f"const auto {sums} = {text};")
        for k, node in enumerate(nodes):
            if node in self.names or node in self.divisors:
                self.bind(node, f"{sums}[{k}]")
            else:
                self.outer.bound[node] = f"{sums}[{k}]"

    def hoist(self, results: Sequence[Node]) -> None:
        """Computes outside of lambdas what is one for the row, and not in what is kept."""
        found: list[Node] = []
        seen = {*self.given(self.outer)}
        waiting = [*reversed(results)]
        while waiting:
            node = waiting.pop()
            if node in seen or not node.args:
                continue
            seen.add(node)
            if node.extent & COLUMN or (node.integer and node.extent != ROW):
                waiting += reversed(node.args)
            elif not self.outer.is_plain(node):
                found.append(node)
        for node in in_order(found, self.outer.bound):
            if node.op == "at" and node not in self.outer.bound:
                self.pick(node)
        self.add(self.outer.text(found, bind_results=True))

    def add(self, text: Text) -> None:
        for node, name, expression in text.statements:
            self.lines.append(f"const {self.kind(node)} {name} = {expression};")

    def pick(self, node: Node) -> None:
        """The element of a tensor in the column of an index, which is in memory."""
        tensor, index = node.args
        text = self.outer.text([index], bind_results=True)
        self.add(text)
        name, of = str(tensor.value), ""
        if tensor.op == "column":
            of = f", {self.spelling[name]}"
        elif k := self.elements.index(name):
            of = f", {k}"
        self.bind(node, f"row.at({text.results[0]}{of})")

    # ----- the pass that writes

    @property
    def written(self) -> list[str]:
        return [name for name in self.results if name not in self.of_row]

    def write_per_row(self) -> None:
        for name in self.of_row:
            value = self.outer.expression(self.results[name])
            self.lines.append(f"write_per_row(row, {name}, {value});")

    def write(self, printer: Printer) -> None:
        written = [self.results[name] for name in self.written]
        if written:
            targets = ", ".join(self.written)
            target = targets if len(written) == 1 else f"Outputs{{{targets}}}"
            self.lines.append(f"{self.call('row.write', written, printer, target, self.terms)};")
        elif self.terms:
            self.lines.append(f"{self.call('row.add_to_columns', [], printer, terms=self.terms)};")

    def call(
        self,
        method: str,
        results: Sequence[Node],
        printer: Printer,
        target: str = "",
        terms: Sequence[Node] = (),
    ) -> str:
        function = self.function(results, printer, terms)
        operands = self.operands([*results, *terms], printer)
        arguments = [*([target] if target else []), function, *operands]
        return f"{method}({', '.join(arguments)})"

    def operands(self, results: Sequence[Node], printer: Printer) -> list[str]:
        """What a pass reads besides the inputs."""
        found = [self.spelling[name] for name in self.columns_of(results, printer)]
        found += ["row.columns()"] * (col() in self.leaves(results, printer))
        others = self.others_of(results, printer)
        found += [f"row.elements({self.spelling[name]})" for name in others]
        return found + [self.kept[node][0] for node in self.kept_in(results, printer)]

    def leaves(self, results: Sequence[Node], printer: Printer) -> list[Node]:
        """What a lambda reads."""
        given = self.given(printer)
        return [node for node in in_order(results, given) if node in given or not node.args]

    def columns_of(self, results: Sequence[Node], printer: Printer) -> list[str]:
        names = {node.value for node in self.leaves(results, printer) if node.op == "column"}
        return [name for name in self.columns if name in names]

    def others_of(self, results: Sequence[Node], printer: Printer) -> list[str]:
        """The tensors of other dtypes."""
        names = {node.value for node in self.leaves(results, printer) if self.is_other(node)}
        return [name for name in self.others if name in names]

    def is_other(self, node: Node) -> bool:
        return not node.args and node.value in self.others

    def kept_in(self, results: Sequence[Node], printer: Printer) -> list[Node]:
        leaves = self.leaves(results, printer)
        return [node for node in self.kept if node in leaves]

    def function(
        self, results: Sequence[Node], printer: Printer, terms: Sequence[Node] = ()
    ) -> str:
        """The lambda for an element; of terms for columns beside its results."""
        computed = [*results, *terms]
        inner = Printer(printer.language, self.names, printer.taken)
        inner.bound = self.given(printer)
        inner.taken |= {name for _, name in self.kept.values()}
        leaves = self.leaves(computed, printer)
        index = [inner.fresh("col")] if col() in leaves else []
        inner.bound |= dict.fromkeys([col()], *index) if index else {}
        text = inner.text(computed)
        used = {str(node.value) for node in leaves if not node.args and node not in printer.bound}
        captures = ["="] if any(node in printer.bound for node in leaves) else []
        captures += [
            f"{n} = {n}" for n in (self.spelling[n] for n in self.formula.members if n in used)
        ]
        names = [
            self.spelling[name] if name in used else f"/*{self.spelling[name]}*/"
            for name in (*self.elements, *self.columns_of(computed, printer))
        ]
        parameters = [f"A {name}" for name in names] + [f"int64_t {name}" for name in index]
        parameters += [
            f"{of_element(self.tensors.dtypes[name])} {self.spelling[name]}"
            for name in self.others_of(computed, printer)
        ]
        parameters += [f"A {self.kept[node][1]}" for node in self.kept_in(computed, printer)]
        taken = ", ".join(parameters)
        value = self.value(results, terms, text.results)
        statements = [
            f"const {type_of(node.dtype)} {name} = {expression};"
            for node, name, expression in text.statements
        ]
        lines = "\n".join(f"  {line}" for line in (*statements, f"return {value};"))
        if not statements:
            return f"[{', '.join(captures)}]({taken}) {{ return {value}; }}"
        return f"[{', '.join(captures)}]({taken}) {{\n{lines}\n}}"

    def value(
        self, results: Sequence[Node], terms: Sequence[Node], expressions: Sequence[str]
    ) -> str:
        """What the lambda returns."""
        count = len(results)
        parts = ", ".join(expressions[:count]), ", ".join(expressions[count:])
        types = [type_of(node.dtype) for node in results]
        if not terms:
            if count == 1:
                return parts[0]
            kind = f"Values<A, {count}>" if {*types} == {"A"} else f"Results<{', '.join(types)}>"
            return f"{kind}{{{parts[0]}}}"
        if not results:
            return f"Values<A, {len(terms)}>{{{parts[1]}}}"
        # Of gradients, which have the type of the arithmetic.
        assert {*types} == {"A"}
        return f"WithSums<A, {count}, {len(terms)}>{{{{{parts[0]}}}, {{{parts[1]}}}}}"

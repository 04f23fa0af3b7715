"""The functors and host functions of an operator that reduces over everything, in C++.

Sums are passes over all elements, in stages: what those of one are made of, those before it have
found. Then comes what there is one number of, which is made of sums alone, and what there is of
each element.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from naming import all_free, camel, free, is_macro
from schema import Argument

from .body import Body, Branch, Leaf, each
from .cpp_text import Cpp, lowered_names
from .elements_text import functor
from .graph import (
    COLUMN,
    ROW,
    WIDE,
    Node,
    const,
    in_order,
    inputs_of,
    make,
    replaced,
    rewritten,
    where,
)
from .of_numbers import Formula, prepared
from .plan import Backward, Plan, returned
from .refusal import NotDerived
from .rows_file import backward_body, forward_body
from .rows_operations import passes_before
from .saved import OUTPUT
from .statistics import names

# The number of elements, which is called as no argument can be.
COUNT = Argument("number of elements", "float", None, kwarg_only=False, mutated=False)


def functors_and_hosts(plan: Plan) -> tuple[list[str], list[str]]:
    first = plan.variants[0]
    given = {name: first.stored(name) for name in plan.tensors}
    wide = [*(result.is_wide for result in plan.results), *[True] * len(plan.statistics)]
    of_elements = [*(not result.of_row for result in plan.results), *[False] * len(plan.statistics)]
    writer = Writer(plan, plan.own.constant, given, [], wide, of_elements)
    parameters = ", ".join(f"{a.info.cpp} {plan.in_cpp[a.name]}" for a in plan.arguments)
    head = f"{returned('cpp', plan.returns)} {plan.host}({parameters})"
    hosts = [f"{head} {{\n{writer.host(plan.struct(first), forward_body(plan))}\n}}"]
    functors = writer.functors
    for backward in plan.backwards:
        writer = writer_of(plan, backward)
        hosts.append(backward.host_in_cpp(writer.host(backward.struct, backward_body(backward))))
        functors += writer.functors
    return functors, hosts


def writer_of(plan: Plan, backward: Backward) -> Writer:
    variant = backward.variant
    given = {name: variant.stored(name) for name in backward.tensors}
    given |= dict.fromkeys(variant.statistics.keys() & given.keys(), WIDE)
    wide = [name in variant.wide for name in backward.results]
    return Writer(plan, backward.constant, given, backward.rows, wide, [True] * len(wide))


def first_of(name: str) -> str:
    """What the first element of a tensor is called, as no argument can be."""
    return f"first of {name}"


def prepared_nodes(nodes: Sequence[Node]) -> Leaf:
    """Expressions that take the first elements of tensors for what a mean is taken about, and the
    number of all.
    """

    def rule(op: str, args: tuple[Node, ...]) -> Node | None:
        if op == "cols":
            return make("number", value=COUNT.name)
        if op != "row_shift":
            return None
        leaves = [node for node in in_order(args) if node.op == "tensor"]
        by = {leaf: make("row", value=first_of(str(leaf.value))) for leaf in leaves}
        (shift,) = replaced(args, dict(by))
        return where(make("isfinite", shift), shift, 0)

    return rewritten(nodes, rule)


@dataclass(frozen=True)
class Pass:
    """A functor, and where it is called.

    Attributes:
        struct: its name.
        nodes: what it computes.
        types: the dtypes of its results that are no A, "" of those that are.
        array: the host's variable for the tensors to which they go.
        to: these.
        sums: whether results are added up over all elements.
    """

    struct: str
    nodes: Leaf
    types: Sequence[str]
    array: str
    to: Sequence[str]
    sums: bool = False


class Writer:
    """Writes the host function of an operator, and the functors that it calls.

    Attributes:
        functors: those so far.

    Args:
        plan: of what.
        constant: of the operator, or of its backward.
        given: the tensors that are read, with the dtypes that they have of their own.
        single: those of them that are one number.
        wide: which of the results have the type of the arithmetic.
        of_elements: which of them have a value for each element.
    """

    def __init__(
        self,
        plan: Plan,
        constant: str,
        given: Mapping[str, str],
        single: Sequence[str],
        wide: Sequence[bool],
        of_elements: Sequence[bool],
    ) -> None:
        self.plan, self.constant, self.given, self.single = plan, constant, given, single
        self.wide, self.of_elements, self.functors = wide, of_elements, list[str]()
        self.whole = [name for name in given if name not in single]
        # Of the operator's dtype, where one is.
        self.like = min(self.whole, key=lambda name: given[name] != "")
        own = lowered_names(plan.variants[0].names)
        self.names = dict(zip(prepared_nodes([*own]), own.values(), strict=True))
        self.spelling = {name: plan.in_cpp[name] for name in given}
        self.spelling |= {a.name: plan.in_cpp[a.name] for a in plan.settings}
        self.spelling[COUNT.name] = "numel"
        others = [*self.spelling.values(), *plan.words]
        self.spelling |= all_free({first_of(name): f"{name}_first" for name in self.whole}, others)
        self.dtypes = {**given, **{first_of(name): given[name] for name in self.whole}}

    def host(self, struct: str, body: Body) -> str:
        """What the host function does."""
        count = len(self.wide)
        tensors = ", ".join(self.spelling[name] for name in self.given)
        made = [f"inputs.new_output({k})" for k in range(count)]
        made = [f"std::array<Tensor, {count}> {OUTPUT}{{{', '.join(made)}}};"]
        last = f"return std::tuple_cat({OUTPUT});"
        if count == 1:
            made, last = [f"Tensor {OUTPUT} = inputs.new_output();"], f"return {OUTPUT};"
        lines = self.chosen(struct, each(prepared_nodes, body))
        if any(self.spelling[COUNT.name] in line for line in lines):
            made.append(f"const double numel = double({self.spelling[self.like]}.numel());")
        for name in self.whole:
            own = self.spelling[first_of(name)]
            if any(re.search(rf"\b{own}\b", line) for line in lines):
                made.append(f"const Tensor {own} = first_element({self.spelling[name]});")
        first = f"const CheckedInputs inputs = {self.constant}.check({tensors});"
        return "\n".join([first, *made, *lines, last])

    def chosen(self, struct: str, body: Body, suffix: str = "") -> list[str]:
        """The calls of the functors that the switches choose."""
        if not isinstance(body, Branch):
            return Calls(self, struct + suffix, body).lines
        yes = self.chosen(struct, body.yes, f"{suffix}With{camel(body.switch)}")
        no = self.chosen(struct, body.no, suffix)
        return [f"if ({self.spelling[body.switch]}) {{", *yes, "} else {", *no, "}"]

    def free(self, name: str) -> str:
        """A name for a variable of the host function."""
        return free(name, self.spelling.values())

    def formula(self, nodes: Leaf, others: Iterable[str]) -> Formula:
        spelling = {name: name for name in others} | self.spelling
        settings = [*self.plan.settings, COUNT]
        return prepared(nodes, self.names, {}, settings, spelling, taken=self.plan.words)


class Calls:
    """The calls that compute the results of a formula.

    Attributes:
        lines: of the host function.

    Args:
        writer: for which operator.
        struct: what functors are called, or begin with.
        leaf: the results.
    """

    def __init__(self, writer: Writer, struct: str, leaf: Leaf) -> None:
        self.writer, self.struct, self.leaf = writer, struct, leaf
        self.lines: list[str] = []
        self.found = 0  # how often numbers were
        # What there is one number of: its name, where it is, and the dtype that it has of its own.
        self.single: dict[Node, tuple[str, str, str]] = {}
        self.done: set[int] = set()  # of the results
        self.targets = [f"{OUTPUT}[{k}]" for k in range(len(leaf))] if len(leaf) > 1 else [OUTPUT]
        for node in in_order(leaf):
            if node.op == "row":
                name = str(node.value)
                self.single[node] = (name, writer.spelling[name], writer.dtypes[name])
        self.compute()

    def compute(self) -> None:
        sums = [node for node in in_order(self.leaf) if node.op == "row_sum"]
        for k in range(max(map(passes_before, sums), default=-1) + 1):
            stage = [node for node in sums if passes_before(node) == k]
            terms = tuple(node.args[0] for node in stage)
            self.find(scalars_of(terms))
            to, types = [], []
            for node in stage:
                is_used = any(node in other.args for other in in_order(self.leaf))
                is_used = is_used or self.leaf.count(node) > 1
                target, is_wide = self.target_of(node, must_be_wide=is_used)
                to.append(target)
                types.append(WIDE if is_wide else "")
            end = f"{k + 1}" if k else ""
            array = self.writer.free(f"sums{end}")
            self.of_elements(Pass(f"{self.struct}Sums{end}", terms, types, array, to, True))
            self.keep(stage, [f"{array}[{m}]" for m in range(len(stage))])
        of_elements = [m for m, is_one in enumerate(self.writer.of_elements) if is_one]
        elements = [m for m in of_elements if self.leaf[m].extent != ROW]
        nodes = tuple(self.leaf[m] for m in elements)
        self.find(scalars_of(nodes), [m for m in range(len(self.leaf)) if m not in of_elements])
        if filled := [m for m in of_elements if m not in elements]:
            end = "Filled" if elements else ""
            fill = tuple(self.leaf[m] for m in filled)
            to = [self.targets[m] for m in filled]
            array = self.writer.free("filled")
            self.of_numbers(Pass(self.struct + end, fill, self.types(filled), array, to))
        if elements:
            to = [self.targets[m] for m in elements]
            array = self.writer.free("elements")
            self.of_elements(Pass(self.struct, nodes, self.types(elements), array, to))

    def types(self, results: Iterable[int]) -> list[str]:
        return [WIDE if self.writer.wide[m] else self.leaf[m].dtype for m in results]

    def target_of(self, node: Node, must_be_wide: bool) -> tuple[str, bool]:
        """Where a number goes, and whether in the type of the arithmetic: to a result that it is,
        or where more is made of it to one that is not rounded, else to a new tensor.
        """
        for m, result in enumerate(self.leaf):
            is_wide = self.writer.wide[m]
            is_it = result is node and not self.writer.of_elements[m] and m not in self.done
            if is_it and (is_wide or not must_be_wide):
                self.done.add(m)
                return self.targets[m], is_wide
        return f"new_sum({self.writer.spelling[self.writer.like]})", True

    def keep(self, nodes: Sequence[Node], places: Sequence[str]) -> None:
        """Remembers what was found, in the type of the arithmetic, and where it is."""
        writer = self.writer
        taken = [*writer.spelling, *writer.spelling.values(), *Cpp.reserved, *writer.plan.words]
        taken += [name for name, _, _ in self.single.values()]
        own = {node: name for node, name in writer.names.items() if not is_macro(name)}
        for node, place in zip(nodes, places, strict=True):
            if node.op == "row":  # in the operator's dtype so far
                name = free(f"{node.value}_value", taken)
            else:
                (name,) = names("total", own, [node], taken)
            taken.append(name)
            self.single[node] = (name, place, WIDE)

    def find(self, scalars: Sequence[Node], results: Sequence[int] = ()) -> None:
        """Computes what elements meet that is not in memory yet, and results of no elements."""
        missing = [s for s in scalars if s not in self.single or self.single[s][2] != WIDE]
        if any(node.integer for node in missing):
            raise NotDerived(
                f"{self.writer.plan.definition.place}: elements meet an integer that is made of "
                "sums over everything; leave it a number of the arithmetic"
            )
        to = [self.target_of(node, must_be_wide=True)[0] for node in missing]
        results = [m for m in results if m not in self.done]
        to = [*(self.targets[m] for m in results), *to]
        nodes = (*(self.leaf[m] for m in results), *map(as_number, missing))
        if not nodes:
            return
        self.found += 1
        end = f"{self.found}" if self.found > 1 else ""
        array = self.writer.free(f"numbers{end}")
        is_last = bool(results) and not any(self.writer.of_elements)
        struct = self.struct if is_last else f"{self.struct}Numbers{end}"
        types = [*self.types(results), *[WIDE] * len(missing)]
        self.of_numbers(Pass(struct, nodes, types, array, to))
        places = [
            target if target in self.targets else f"{array}[{m}]" for m, target in enumerate(to)
        ]
        self.keep(missing, places[len(results) :])

    def of_numbers(self, own: Pass) -> None:
        """Calls a functor that takes numbers as tensors."""
        by = {n: make("tensor", value=name) for n, (name, _, _) in self.single.items()}
        own = dataclasses.replace(own, nodes=replaced(own.nodes, by))
        used = inputs_of(own.nodes)
        given = [single for single in self.single.values() if single[0] in used]
        dtypes = {name: dtype for name, _, dtype in given}
        self.call(own, dtypes, [place for _, place, _ in given], {})

    def of_elements(self, own: Pass) -> None:
        """Calls a functor that takes numbers where they are in memory."""
        met = scalars_of(own.nodes)
        by: dict[Node, Node] = {}
        places: dict[str, str] = {}
        bound: dict[Node, str] = {}
        for scalar in met:
            name, place, _ = self.single[scalar]
            leaf, divisor = (make("row", value=n) for n in (name, f"{name} as a divisor"))
            by[scalar] = make("ne", leaf, const(0)) if scalar.is_bool else leaf
            places[name] = place
            spelled = self.writer.spelling.get(name, name)
            bound |= {leaf: f"A({spelled})", divisor: f"Divisor<A>({spelled})"}

        def rule(op: str, args: tuple[Node, ...]) -> Node | None:
            if op != "div" or args[1].op != "row" or not args[0].extent & COLUMN:
                return None
            return make("div", args[0], make("row", value=f"{args[1].value} as a divisor"))

        nodes = rewritten(replaced(own.nodes, by), rule)
        used = inputs_of(nodes)
        writer = self.writer
        read = [name for name in writer.whole if name in used] or [writer.like]
        dtypes = {name: writer.given[name] for name in read}
        own = dataclasses.replace(own, nodes=nodes)
        self.call(own, dtypes, [writer.spelling[name] for name in read], places, bound)

    def call(
        self,
        own: Pass,
        dtypes: Mapping[str, str],
        tensors: Sequence[str],
        in_memory: Mapping[str, str],
        bound: Mapping[Node, str] = MappingProxyType({}),
    ) -> None:
        """Writes a functor and its call.

        Args:
            own: which.
            dtypes: those of the tensors that it takes.
            tensors: these, of the host function.
            in_memory: the numbers in memory that it takes, and the tensors that hold them.
            bound: how they are written.
        """
        writer, wide = self.writer, [dtype == WIDE for dtype in own.types]
        # Where nothing has the operator's dtype, A is that of the arithmetic.
        if own.sums:
            wide = [False] * len(wide)
        elif "" not in (*dtypes.values(), *own.types):
            dtypes = {name: "" if dtype == WIDE else dtype for name, dtype in dtypes.items()}
            wide = [False] * len(wide)
        of = writer.formula(own.nodes, [*dtypes, *in_memory])
        members = {**of.members, **dict.fromkeys(in_memory, "InMemory<A>")}
        of = dataclasses.replace(of, members=members, arguments=[*of.arguments, *in_memory])
        writer.functors.append(functor(own.struct, dtypes, of, wide, bound))
        numbers = of.arguments[: len(of.arguments) - len(in_memory)]
        numbers += [f"in_memory({place})" for place in in_memory.values()]
        target = self.without_array(own)
        if target is None:
            target = own.array
            self.lines.append(f"std::array<Tensor, {len(own.to)}> {target}{{{', '.join(own.to)}}};")
        function = "totals_into" if own.sums else "elementwise_into"
        call = f"{function}<{own.struct}>({', '.join([target, *tensors, *numbers])});"
        if of.statements:
            call = " ".join(["{", *of.statements, call, "}"])
        self.lines.append(call)

    def without_array(self, own: Pass) -> str | None:
        """What elementwise_into() writes to where that has a name already: a result, or all."""
        if own.sums or not {*own.to} <= {*self.targets}:
            return None
        if len(own.to) == 1:
            return own.to[0]
        return OUTPUT if len(own.to) == len(self.leaf) else None


def scalars_of(nodes: Sequence[Node]) -> list[Node]:
    """What there is one of and elements are computed with."""
    others = {node for node in in_order(nodes) if not node.extent & COLUMN}
    elements = [node for node in in_order(nodes, others) if node not in others]
    return [*dict.fromkeys(arg for node in elements for arg in node.args if arg.extent == ROW)]


def as_number(node: Node) -> Node:
    return make("to_real", node) if node.is_bool else node

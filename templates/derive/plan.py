"""Which operators there are, and how their arguments are called in either language."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

from instantiate import PACKAGE
from naming import EXPANDED, camel, declared, in_context, is_macro
from places import own_sizes
from schema import CPP_KEYWORDS, TYPES, Argument, words

from . import cpp_text
from .body import Body, Branch, Leaf, leaves, nodes_of
from .definition import Definition, summary
from .graph import WIDE, in_order, inputs_of, rounds
from .refusal import NotDerived
from .saved import OUTPUT
from .variant import Variant, of_dtype
from .verify import Verified

# What functors and host functions call so, and those for rows besides.
IN_CPP = words(
    "CheckedInputs Tensor elementwise elementwise_into elementwise_with_sums inputs int64_t unread"
)
IN_TOTALS = words("first_element in_memory new_sum numel totals_into")
IN_ROWS = words(
    """
    Known PerElement Row RowColumns RowElements RowValues T acc_t backend known of_row one_number
    per_column per_element per_row row row_columns row_elements row_values rowwise
    rowwise_with_column_sums says_dtype values write write_per_row
    """
)


Of = TypeVar("Of")


def suffix(variant: Variant) -> str:
    return "".join(f"_without_{name}" for name in variant.absent)


# Of a statistic, in the dtype in which rows are summed.
STATISTIC = "*rows:sum"


def shape_in_rows(variant: Variant, name: str) -> str:
    if variant.of_all:
        shape = "()" if name in variant.statistics else "*all"
        return of_dtype(shape, WIDE if name in variant.statistics else variant.stored(name))
    if name in variant.statistics:
        return STATISTIC
    shape = "n" if name in variant.columns else variant.rows.get(name, "*rows n")
    return of_dtype(shape, variant.stored(name))


class Declared:
    """An operator of the library.

    Attributes:
        name: in torch.ops.
        schema: as torch reads it.
        line: of shapes.
    """

    def __init__(self, name: str, schema: str, line: str) -> None:
        self.name, self.schema, self.line = name, schema, own_sizes(schema, line)
        self.constant = f"k{camel(name)}"


def functor_name(name: str, taken: Collection[str]) -> str:
    """The name of an operator's functor, beside those of the headers."""
    # What is NAN or EOF is a macro.
    is_taken = camel(name) in taken or re.fullmatch("[A-Z]{3,}", camel(name))
    return f"Op{camel(name)}" if is_taken else camel(name)


def cases(body: Body) -> Iterator[tuple[str, Leaf]]:
    """The formulas, and what follows the name of a functor for rows for each."""
    if not isinstance(body, Branch):
        yield "", body
        return
    for suffix, leaf in cases(body.yes):
        yield f"With{camel(body.switch)}{suffix}", leaf
    yield from cases(body.no)


def check_unique(names: Sequence[str], place: str) -> None:
    """Refuses functors and constants of which two have one name."""
    for name in names:
        if names.count(name) > 1:
            raise NotDerived(
                f"{place}: of the arguments that may be None, or are switches, two would give the "
                f"name {name}: choose another name for one"
            )


def returned(language: str, count: int) -> str:
    """The type of so many tensors, in a schema or in C++."""
    tensors = ", ".join(["Tensor"] * count)
    if count == 1:
        return tensors
    return f"std::tuple<{tensors}>" if language == "cpp" else f"({tensors})"


class Backward(Declared):
    """The operator that computes gradients of a variant.

    Attributes:
        struct: its functor.
        sums: whether it sums gradients to the shapes of their tensors, which broadcast.
        results: the tensors whose gradients it returns: where it sums, also, and last, those that
            are not read and whose gradient is that of the output, or of another tensor, otherwise.
        body: their formulas.
        gradients: those of the results that it is made of.
        tensors: its arguments that are tensors and are read, the gradients first.
        unread: those that it takes for their shape.
        given: both, in this order.
        numbers: the others.
    """

    def __init__(self, plan: Plan, variant: Variant) -> None:
        name = f"{plan.name}{suffix(variant)}_backward"
        self.plan, self.variant = plan, variant
        saved = variant.saved
        self.struct = functor_name(name, plan.taken)
        self.sums = plan.broadcasts and len(variant.tensors) > 1
        others = [*variant.passed_on, *variant.shared] if self.sums else []
        self.results = [*variant.computed, *(name for name in others if name not in saved)]
        self.body = variant.gradients_of(self.results)
        self.differentiated = variant.results_for(self.body)
        used = variant.uses(self.body)
        self.gradients = [str(result.gradient) for result in self.differentiated]
        self.tensors = [*self.gradients, *saved]
        self.unread = [n for n in self.results if self.sums and n not in saved]
        self.given = [*self.tensors, *self.unread]
        self.numbers = [a for a in plan.settings if a.name in used]
        arguments = [f"{self.type_of(name)} {name}" for name in self.given]
        arguments += [f"{a.type} {a.name}" for a in self.numbers]
        schema = f"{name}({', '.join(arguments)}) -> {returned('schema', len(self.results))}"
        super().__init__(name, schema, self.rows_line if variant.is_of_rows else self.elements_line)

    def type_of(self, tensor: str) -> str:
        is_optional = self.may_lack(tensor) or tensor in self.variant.otherwise
        return "Tensor?" if is_optional else "Tensor"

    def may_lack(self, tensor: str) -> bool:
        """Whether it is None where its gradient is another."""
        return tensor in self.unread and tensor not in self.variant.computed

    @property
    def elements_line(self) -> str:
        # An output has the shape of its gradient; the inputs broadcast to it.
        shape = "..." if self.sums else "*shape"
        stored = self.variant.stored
        given = ", ".join(of_dtype(shape, stored(name)) for name in self.given)
        results = [
            of_dtype(f"={name}" if self.sums else shape, stored(name)) for name in self.results
        ]
        return f"{given} -> {', '.join(results)}"

    @property
    def rows_line(self) -> str:
        variant = self.variant
        given = [of_dtype(result.shape, result.stored) for result in variant.differentiated]
        given += [shape_in_rows(variant, n) for n in variant.saved]
        results = [
            STATISTIC if n in variant.single else shape_in_rows(variant, n)
            for n in variant.computed
        ]
        return f"{', '.join(given)} -> {', '.join(results)}"

    @property
    def elements(self) -> list[str]:
        """The tensors that have the rows' shape and dtype, or are all wider."""
        others = {*self.rows, *self.variant.columns, self.variant.says_dtype}
        dtype = WIDE if self.variant.says_dtype else ""
        stored = self.variant.stored
        return [name for name in self.tensors if name not in others and stored(name) == dtype]

    @property
    def rows(self) -> list[str]:
        """Those with a value for each row."""
        of_row = [str(r.gradient) for r in self.variant.differentiated if r.of_row]
        others = {*self.variant.statistics, *self.variant.rows}
        return of_row + [n for n in self.variant.saved if n in others]

    @property
    def like(self) -> str:
        """A tensor of the shape of the elements."""
        return self.elements[0]

    @property
    def of_own_dtype(self) -> str:
        """The first that has the operator's dtype."""
        others = {*self.variant.statistics}
        stored = self.variant.stored
        return next(name for name in self.tensors if name not in others and not stored(name))

    @property
    def arguments(self) -> list[str]:
        return [*self.given, *(a.name for a in self.numbers)]

    def host_in_cpp(self, body: str) -> str:
        """The C++ function that is its kernel."""
        parameters = [
            f"{TYPES[self.type_of(name)].cpp} {self.plan.in_cpp[name]}" for name in self.given
        ]
        for a in self.numbers:
            name = self.plan.in_cpp[a.name]
            is_read = re.search(rf"\b{name}\b", body)
            parameters.append(f"{a.info.cpp} {name if is_read else f'/*{name}*/'}")
        result = returned("cpp", len(self.results))
        return f"{result} {self.name}({', '.join(parameters)}) {{\n  {body}\n}}"

    @property
    def in_torch(self) -> str:
        """The function in ops.py that computes the same in PyTorch."""
        return f"_backward{suffix(self.variant)}_in_torch"


class Plan:
    """What the files of a derived operator have in common. Of parts of tensors: packed_plan.py.

    Attributes:
        variants: the one with all tensors first; of a row-wise definition, that one alone.
        tensors: all of them.
        dtypes: of those that have one of their own.
        main: the first of the others.
        has_wide: whether tensors or results are float32 beside half types.
        differentiable: which of the results may have gradients.
        written: the tensors that the results are written to, where they are.
        results: what there is to say of them besides their formulas.
        statistics: the names of those that are returned besides.
        kept: those of several results that the backward is given, by what they are called there.
        returns: how many tensors the operator returns.
        settings: the arguments that are no tensors.
        broadcasts: whether the tensors may have different shapes.
        is_of_rows: whether it is row-wise, or reduces over everything.
        of_all: whether it reduces over everything.
        backwards: one for each variant that has gradients to compute.
        own: the operator itself.
        taken: what the headers declare.
        words: what functors and host functions call something.
        in_cpp: the arguments' names in C++.
        in_context: those of the numbers in the context of autograd.
        host: the C++ function that is the operator's kernel.
        summary: what it computes, a sentence or more.
        described: what the author says of the arguments.
    """

    # What host functions call something besides, and the parts of tensors.
    in_hosts: Collection[str] = ()
    part_names: Sequence[str] = ()

    def __init__(
        self, definition: Definition, variants: Sequence[Variant], verified: Verified
    ) -> None:
        self.definition, self.verified = definition, verified
        self.variants = variants[:1] if variants[0].is_of_rows else variants
        self.name = definition.name
        self.arguments = definition.schema.arguments
        self.settings = definition.schema.settings
        self.optional = definition.named("Tensor?")
        self.tensors, self.results = variants[0].tensors, variants[0].results
        self.dtypes, self.main = variants[0].dtypes, variants[0].main
        self.has_wide = bool(variants[0].wide) or any(r.is_wide for r in self.results)
        self.differentiable = [result for result in self.results if result.is_differentiable]
        self.written = definition.written
        self.statistics = [*variants[0].statistics]
        self.kept = {n: k for v in variants for n, k in v.kept.items() if len(self.results) > 1}
        self.returns = len(self.results) + len(self.statistics)
        self.broadcasts = len(self.tensors) > 1 and verified.broadcasts
        headers = [path.read_text() for path in (PACKAGE / "csrc").rglob("*.*h")]
        # Besides, m is the library in the blocks that register, and functors are of a type.
        self.taken = {"m", "A", "T"}.union(*map(declared, headers))
        self.is_of_rows, self.of_all = variants[0].is_of_rows, variants[0].of_all
        self.backwards = [self.new_backward(v) for v in self.variants if v.computed]
        result = "()" if self.written else returned("schema", self.returns)
        self.own = Declared(self.name, f"{definition.head} -> {result}", self.line)
        names = [a.name for a in self.arguments]
        own = [OUTPUT, *self.members, *(str(result.gradient) for result in self.results)]
        own += self.statistic_members
        declared_in_cpp = [*self.functors, *(op.constant for op in self.declared)]
        check_unique(declared_in_cpp, definition.place)
        self.words = {*IN_CPP, *self.in_hosts, *declared_in_cpp}
        if self.of_all:
            self.words |= {*IN_TOTALS}
        elif self.is_of_rows:
            self.words |= {*IN_ROWS, *(f"grad_{name}" for name in self.tensors)}
        others = [*self.statistics, *self.part_names, *self.kept]
        spelled = cpp_text.spelled([*names, *others], taken=[*own, *self.words])
        self.in_cpp = {name: name for name in own} | spelled
        self.in_context = in_context(
            [a.name for a in self.settings],
            ["shapes", "dtype", "dtypes", *(f"has_{name}" for name in self.optional)],
        )
        is_taken = self.name in self.taken | IN_CPP | CPP_KEYWORDS | EXPANDED or is_macro(self.name)
        self.host = f"op_{self.name}" if is_taken else self.name
        text, self.described = summary(definition)
        self.summary = text or f"Computes {self.formula}."

    def names_in(self, body: Body) -> dict[str, str]:
        """What C++ calls the arguments of a formula, and what else there may be.

        What the forward found, and the backward is given, has its name where it is given.
        """
        given = inputs_of(nodes_of(body)) | {*self.in_cpp} - {*self.statistics, *self.kept}
        return {name: spelled for name, spelled in self.in_cpp.items() if name in given}

    def new_backward(self, variant: Variant) -> Backward:
        return Backward(self, variant)

    @property
    def line(self) -> str:
        """Of shapes."""
        shape = "..." if self.broadcasts else "*shape"
        first = self.variants[0]
        given = [of_dtype(shape, first.stored(name)) for name in self.tensors]
        results = [of_dtype(shape, result.stored) for result in self.results]
        if self.is_of_rows:
            given = [shape_in_rows(first, name) for name in self.tensors]
            results = [of_dtype(result.shape, result.stored) for result in self.results]
            results += [shape_in_rows(first, name) for name in self.statistics]
        if self.written:
            return f"{', '.join(given)} ->"
        return f"{', '.join(given)} -> {', '.join(results)}"

    def has_columns(self, name: str) -> bool:
        """Whether an operator has parameters, or sums, for columns, or that are one number."""
        columns = {*self.variants[0].columns, *self.variants[0].single}
        if name == self.name:
            return bool(columns)
        (called,) = [b for b in self.backwards if b.name == name]
        return bool(columns & {*called.tensors, *called.variant.computed})

    @property
    def stops_gradients(self) -> bool:
        """Whether a part of the definition is a constant for its derivatives."""
        nodes = in_order([node for variant in self.variants for node in nodes_of(variant.forward)])
        return any(node.op == "detach" for node in nodes)

    @property
    def autocast(self) -> str:
        """The policy: of several floating tensors, which a model has in two dtypes then."""
        # Beside those that are float32 all would promote, always.
        first = self.variants[0]
        return "promote" if len(first.own) > 1 and not (first.wide or self.written) else ""

    def of_result(self, values: Sequence[Of], k: int) -> Sequence[Of]:
        """Of what there is for each result of a formula that of one of the operator's."""
        return values[k : k + 1]

    @property
    def converted(self) -> list[int]:
        """The results that become integers of values, which may be beyond these."""
        return [
            k
            for k, result in enumerate(self.results)
            if result.dtype
            and any(
                rounds(node)
                for variant in self.variants
                for leaf in leaves(variant.forward)
                for node in in_order(self.of_result(leaf, k))
            )
        ]

    @property
    def declared(self) -> list[Declared]:
        return [self.own, *self.backwards]

    @property
    def formula(self) -> str:
        """The definition in a few words: its expression, where it is one."""
        function = self.definition.function
        last = inspect.getsource(function).strip().rpartition("\n")[2]
        returned = re.fullmatch(r"return (.{1,60})", last.strip())
        has_locals = function.__code__.co_nlocals > len(self.arguments)
        if returned is None or has_locals:
            of = "each element" if not self.is_of_rows else "each row"
            return f"{self.name} of {'all elements' if self.of_all else of}"
        return f"`{re.sub(r'(torch.nn.functional|torch|F|math)[.]', '', returned[1])}`"

    @property
    def members(self) -> list[str]:
        """What functors for rows call the results."""
        names = [result.name for result in self.results]
        return [n if n.startswith(OUTPUT) else f"{n}_{OUTPUT}" for n in names]

    @property
    def statistic_members(self) -> list[str]:
        """The same of the statistics."""
        return [f"{name}_{OUTPUT}" for name in self.statistics]

    def struct(self, variant: Variant) -> str:
        """The functor of a variant."""
        return functor_name(f"{self.name}{suffix(variant)}", self.taken)

    @property
    def functors(self) -> list[str]:
        bodies = [(self.struct(v), v.forward) for v in self.variants]
        bodies += [(b.struct, b.variant.backward) for b in self.backwards]
        if not self.is_of_rows:
            return [struct for struct, _ in bodies]
        own = [struct + suffix for struct, body in bodies for suffix, _ in cases(body)]
        ends = ("", "Numbers", "Sums") if self.of_all else ("",)
        return [struct + end for struct in own for end in ends]

    def backward_of(self, variant: Variant) -> Backward | None:
        return next((b for b in self.backwards if b.variant is variant), None)

    @property
    def saved(self) -> list[str]:
        """What the context of autograd keeps, of all variants."""
        found = {n for b in self.backwards for n in b.variant.saved if n != b.variant.says_dtype}
        found |= {self.like_results} if self.makes_zeros else set()
        names = [*self.variants[0].tensors_and_statistics, *(self.kept or [OUTPUT])]
        return [name for name in names if name in found]

    @property
    def makes_zeros(self) -> bool:
        """Whether the backward makes the gradients of results that are not used.

        Autograd would make those of statistics, too.
        """
        return bool(self.statistics) and len(self.differentiable) > 1

    @property
    def like_results(self) -> str:
        """What the results are like: of what is kept for each element one of their dtype, one that
        is wider, or else the first tensor.
        """
        first = self.variants[0]
        others = {*first.columns, *first.rows, *first.statistics, first.says_dtype}
        kept = [n for n in first.saved if n not in others and first.stored(n) in ("", WIDE)]
        kept.sort(key=lambda name: first.stored(name) == WIDE)
        return kept[0] if kept else self.main

    @property
    def keeps_dtype(self) -> bool:
        """Whether the backward needs the operator's dtype, which nothing has that it is given."""
        is_wide = self.variants[0].stored(self.like_results) == WIDE
        return (self.makes_zeros and is_wide) or any(b.variant.says_dtype for b in self.backwards)

    @property
    def keyword_only(self) -> list[Argument]:
        return [a for a in self.arguments if a.kwarg_only]

    @property
    def passed(self) -> str:
        """The arguments as Python passes them on."""
        return ", ".join(f"{a.name}={a.name}" if a.kwarg_only else a.name for a in self.arguments)

    @property
    def differentiated_numbers(self) -> list[str]:
        """The arguments that take a number, which a tensor might be given for."""
        return [a.name for a in self.settings if a.type in ("float", "int")]

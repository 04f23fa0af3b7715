"""What is derived of a definition: its formulas, and those of its gradients."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from .body import Body, Branch, Leaf, branched, each, leaves, nodes_of, switches_of
from .definition import Definition
from .differentiate import gradients, gradients_by
from .graph import (
    ELEMENT,
    GRADIENT,
    OF_ROWS,
    ROW,
    Node,
    add,
    const,
    in_order,
    inputs_of,
    is_const,
    make,
    plus,
)
from .refusal import NotDerived
from .saved import on_output, saved_tensors
from .trace import Traced, trace

# Of definitions with more optional tensors and switches than this, the source would be long.
MOST_VARIANTS = 8

# Values that stand for any other: what differs between two traces was made a constant on the way.
HINTS = ((torch.float64, 0.71, 0.13, 3), (torch.float32, 1.37, 0.29, 5))


@dataclass
class Variant:
    """The formulas where some of the optional tensors are given.

    Attributes:
        tensors: those that are given.
        absent: the others.
        forward: of one result.
        gradients: one for each tensor.
        names: that the definition has for parts of them.
        saved: what the backward keeps, of the tensors or the output.
        columns: the tensors with a value for each column, of a row-wise definition.
        is_squeezed: whether there is a result for each row, and no dimension for the columns.
    """

    tensors: list[str]
    absent: list[str]
    forward: Body
    gradients: Body
    names: dict[Node, str] = field(default_factory=dict)
    saved: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    is_squeezed: bool = False

    @property
    def passed_on(self) -> list[str]:
        """The tensors whose gradient is that of the output, as it is."""
        return self.whose_gradient_is(make("tensor", value=GRADIENT))

    @property
    def computed(self) -> list[str]:
        """The tensors whose gradients the backward operator computes: the rest have none.

        Sums of columns last.
        """
        others = {*self.passed_on, *self.whose_gradient_is(const(0))}
        found = [name for name in self.tensors if name not in others]
        return sorted(found, key=lambda name: name in self.columns)

    def whose_gradient_is(self, node: Node) -> list[str]:
        return [
            name
            for k, name in enumerate(self.tensors)
            if all(leaf[k] is node for leaf in leaves(self.gradients))
        ]

    @property
    def backward(self) -> Body:
        kept = [self.tensors.index(name) for name in self.computed]
        return each(lambda leaf: tuple(leaf[k] for k in kept), self.gradients)

    @property
    def is_of_rows(self) -> bool:
        """Whether it looks at whole rows."""
        return any(node.op in OF_ROWS for node in in_order(nodes_of(self.forward)))

    @property
    def gives_rows(self) -> bool:
        """Whether there is a result for each row."""
        return nodes_of(self.forward)[0].extent == ROW

    @property
    def result_shape(self) -> str:
        """Of a row-wise definition, as csrc/notation.h has it."""
        if not self.gives_rows:
            return "*rows n"
        return "*rows" if self.is_squeezed else "*rows 1"

    def uses(self, body: Body) -> set[str]:
        return inputs_of(nodes_of(body)) | switches_of(body)


def derive(definition: Definition, factored: bool = True) -> list[Variant]:
    """The variants of a definition: the one with all tensors first.

    Args:
        definition: of what.
        factored: whether sums of gradients have what is common to their terms outside. That is
            shorter; but of a sum in which an infinity meets a zero it may be right where PyTorch
            has NaN.

    Raises:
        NotDerived: it cannot be derived.
    """
    optional = definition.named("Tensor?")
    switches = definition.named("bool")
    if 2 ** (len(optional) + len(switches)) > MOST_VARIANTS:
        raise NotDerived(
            f"{definition.place}: {len(optional)} optional tensors and {len(switches)} switches "
            f"make more than {MOST_VARIANTS} formulas; split the function"
        )
    given = [
        [name for name, is_given in zip(optional, flags, strict=True) if is_given]
        for flags in itertools.product((True, False), repeat=len(optional))
    ]
    if is_of_rows(definition, switches):
        variants = [derive_rows(definition, factored)]
    else:
        if definition.shapes is not None:
            raise NotDerived(
                f"{definition.place}: --shapes is for row-wise functions; leave it out"
            )
        variants = [derive_variant(definition, names, switches, factored) for names in given]
    used = set().union(*(v.uses(v.forward) for v in variants))
    for argument in definition.schema.arguments:
        if argument.name not in used:
            raise NotDerived(
                f"{definition.place}: the result does not depend on the argument "
                f"'{argument.name}'; leave it out"
            )
    return variants


def derive_variant(
    definition: Definition, given: list[str], switches: list[str], factored: bool
) -> Variant:
    optional = definition.named("Tensor?")
    tensors = [n for n in definition.named("Tensor", "Tensor?") if n in given or n not in optional]
    absent = [name for name in optional if name not in given]
    names: dict[Node, str] = {}

    def leaf(values: Mapping[str, bool]) -> Leaf:
        constants = {**values, **dict.fromkeys(absent)}
        result, found = traced_twice(definition, tensors, constants)
        names.update({n: name for n, name in found.items() if n not in names})
        return (result.node,)

    forward = branched(switches, leaf)
    added = add if factored else plus
    backward = each(lambda results: tuple(gradients(results[0], tensors, added)), forward)
    variant = Variant(tensors, absent, forward, backward, names)
    if not isinstance(forward, Branch) and not isinstance(backward, Branch):
        of_output = on_output(forward[0], backward)
        if of_output is not None:
            variant.gradients = tuple(of_output)
    variant.saved = saved_tensors(nodes_of(variant.backward), tensors)
    return variant


def is_of_rows(definition: Definition, switches: list[str]) -> bool:
    """Whether the definition looks at whole rows, with one value of its switches at least."""
    tensors = definition.named("Tensor", "Tensor?")
    for values in itertools.product((True, False), repeat=len(switches)):
        constants = dict(zip(switches, values, strict=True))
        result, _ = traced(definition, tensors, constants, HINTS[0])
        if any(node.op in OF_ROWS for node in in_order([result.node])):
            return True
    return False


def derive_rows(definition: Definition, factored: bool) -> Variant:
    """The one variant of a row-wise definition."""
    for kind, arguments in (
        ("optional tensors", definition.named("Tensor?")),
        ("switches", definition.named("bool")),
    ):
        if arguments:
            raise NotDerived(
                f"{definition.place}: row-wise functions with {kind} ({', '.join(arguments)}) are "
                "not derived; write a function for each case"
            )
    tensors = definition.named("Tensor")
    columns = definition.columns
    if "columns" in definition.named("Tensor", "float", "int"):
        raise NotDerived(
            "the argument's name 'columns' is used by the generated code: choose another name"
        )
    result, names = traced_twice(definition, tensors, {}, columns)
    node = result.node
    if node.extent not in (ROW, ELEMENT):
        raise NotDerived(f"{definition.place}: the result has no rows; return what depends on them")
    leaves = [make("column" if name in columns else "tensor", value=name) for name in tensors]
    gradient = make("row" if node.extent == ROW else "tensor", value=GRADIENT)
    of_leaves = gradients_by(node, leaves, gradient, add if factored else plus)
    found = tuple(
        make("col_sum", terms) if leaf.op == "column" and not is_const(terms, 0) else terms
        for leaf, terms in zip(leaves, of_leaves, strict=True)
    )
    variant = Variant(tensors, [], (node,), found, names)
    variant.columns, variant.is_squeezed = columns, result.is_squeezed
    said = (definition.shapes or "").partition("->")[2].strip()
    if said and said != variant.result_shape:
        raise NotDerived(
            f"{definition.place}: --shapes says {said}, and the result has the shape "
            f"{variant.result_shape}"
        )
    variant.saved = saved_tensors(nodes_of(variant.backward), tensors)
    # Of results for each row the backward needs to know how long rows are.
    if variant.gives_rows and not set(variant.saved) - set(columns):
        (first, *_) = tensors
        variant.saved = [first, *variant.saved]
    if variant.computed and set(variant.computed) <= set(columns):
        raise NotDerived(
            f"{definition.place}: of a function whose gradients are sums of columns alone there is "
            "no row-wise backward; start from --template kernel"
        )
    return variant


def traced_twice(
    definition: Definition,
    tensors: list[str],
    constants: Mapping[str, object],
    columns: Sequence[str] = (),
) -> tuple[Traced, dict[Node, str]]:
    results = [traced(definition, tensors, constants, hint, columns) for hint in HINTS]
    (result, found), (other, _) = results
    if result.node is not other.node:
        raise NotDerived(
            f"{definition.place}: {difference(result.node, other.node)}; a number argument, a "
            "dtype or what the function keeps outside of itself was made a constant on the way"
        )
    return result, found


def difference(a: Node, b: Node) -> str:
    while a.op == b.op and len(a.args) == len(b.args) and a.args:
        a, b = next((x, y) for x, y in zip(a.args, b.args, strict=True) if x is not y)
    return f"called twice, it computes {a!r} here and {b!r} there"


def traced(
    definition: Definition,
    tensors: list[str],
    constants: Mapping[str, object],
    hint: tuple[torch.dtype, float, float, int],
    columns: Sequence[str] = (),
) -> tuple[Traced, dict[Node, str]]:
    dtype, first, step, integer = hint
    numbers: dict[str, float] = {}
    for k, argument in enumerate(definition.schema.settings):
        if argument.type == "float":
            numbers[argument.name] = first + k * step
        elif argument.type == "int":
            numbers[argument.name] = integer + k
    file = definition.function.__code__.co_filename
    try:
        return trace(definition.function, tensors, numbers, constants, dtype, file, columns)
    except NotDerived:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise NotDerived(
            f"{definition.place}: the definition does not run: {type(error).__name__}: {reason}"
        ) from None

"""What is derived of a definition: its formulas, and those of its gradients."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from .body import Body, Branch, Leaf, branched, each, leaves, nodes_of, switches_of
from .definition import Definition
from .differentiate import gradients
from .graph import GRADIENT, Node, add, const, inputs_of, make, plus
from .refusal import NotDerived
from .saved import on_output, saved_tensors
from .trace import trace

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
    """

    tensors: list[str]
    absent: list[str]
    forward: Body
    gradients: Body
    names: dict[Node, str] = field(default_factory=dict)
    saved: list[str] = field(default_factory=list)

    @property
    def passed_on(self) -> list[str]:
        """The tensors whose gradient is that of the output, as it is."""
        return self.whose_gradient_is(make("tensor", value=GRADIENT))

    @property
    def computed(self) -> list[str]:
        """The tensors whose gradients the backward operator computes: the rest have none."""
        others = {*self.passed_on, *self.whose_gradient_is(const(0))}
        return [name for name in self.tensors if name not in others]

    def whose_gradient_is(self, node: Node) -> list[str]:
        return [
            name
            for k, name in enumerate(self.tensors)
            if all(leaf[k] is node for leaf in leaves(self.gradients))
        ]

    @property
    def backward(self) -> Body:
        kept = [k for k, name in enumerate(self.tensors) if name in self.computed]
        return each(lambda leaf: tuple(leaf[k] for k in kept), self.gradients)

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
        results = [traced(definition, tensors, constants, *hint) for hint in HINTS]
        (node, found), (other, _) = results
        if node is not other:
            raise NotDerived(
                f"{definition.place}: {difference(node, other)}; a number argument, a dtype or "
                "what the function keeps outside of itself was made a constant on the way"
            )
        names.update({n: name for n, name in found.items() if n not in names})
        return (node,)

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


def difference(a: Node, b: Node) -> str:
    while a.op == b.op and len(a.args) == len(b.args) and a.args:
        a, b = next((x, y) for x, y in zip(a.args, b.args, strict=True) if x is not y)
    return f"called twice, it computes {a!r} here and {b!r} there"


def traced(
    definition: Definition,
    tensors: list[str],
    constants: Mapping[str, object],
    dtype: torch.dtype,
    first: float,
    step: float,
    integer: int,
) -> tuple[Node, dict[Node, str]]:
    numbers: dict[str, float] = {}
    for k, argument in enumerate(definition.schema.settings):
        if argument.type == "float":
            numbers[argument.name] = first + k * step
        elif argument.type == "int":
            numbers[argument.name] = integer + k
    file = definition.function.__code__.co_filename
    try:
        return trace(definition.function, tensors, numbers, constants, dtype, file)
    except NotDerived:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise NotDerived(
            f"{definition.place}: the definition does not run: {type(error).__name__}: {reason}"
        ) from None

"""How calls are divided among devices, as DTensor asks for it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, overload

from torch._ops import OpOverload

from extension_cpp.registration.dispatch import lookup, lookup_each
from extension_cpp.registration.signature import Signature
from extension_cpp.shapes import Operator, operator, operators
from extension_cpp.sharding import SUM, Placement, Rule, placements_passed, sharding_rule

_rules: dict[str, Rule] = {}


@overload
def register_sharding(op: str | OpOverload, func: Rule, /) -> None: ...


@overload
def register_sharding(
    op: str | OpOverload, /, *more: str | OpOverload, along: Sequence[str]
) -> None: ...


def register_sharding(op: str | OpOverload, /, *rest: Any, along: Sequence[str] = ()) -> None:
    """Registers how calls of an operator may be divided among devices.

    An operator with a line of shapes needs none for what follows from that: see
    :func:`extension_cpp.sharding.sharding_rule`.

    Args:
        op: The operator, ``"namespace::name"``.
        *rest: A function, which is called with all arguments of a call, those left at their
            defaults included and keyword-only ones as keywords, where things that have ``shape``
            and ``ndim`` stand for the tensors. For each way to divide the call it yields
            ``(outputs, inputs)``: the placements of the results, and those of the arguments that
            are tensors. A placement is the dimension that is divided, None for what every device
            has whole, or ``SUM``. Or further operators, as for the first.
        along: Without a function: sizes of the lines of shapes along which calls may be divided,
            too.

    Raises:
        ValueError: If a line has no such size, or there is no line.
    """
    ops, func = lookup_each(op, *rest)
    for each in ops:
        _rules[each.name()] = func or sharding_rule(operator(each.name()), along)


def rule_of(name: str, lines: Mapping[str, Operator]) -> Rule | None:
    """The rule of an operator: that which is registered, or else that of its line, if it has one.

    Args:
        name: ``"namespace::name"``.
        lines: Operators with a line of shapes, by name.
    """
    if name not in _rules and name not in lines:
        return None
    return _rules.get(name) or sharding_rule(lines[name])


def apply_rules() -> None:
    """Hands all rules over to DTensor."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo

    propagator = DTensor._op_dispatcher.sharding_propagator
    for name in {**operators(), **_rules}:
        op, rule = lookup(name), rule_of(name, operators())
        assert rule is not None
        arguments, returns = op._schema.arguments, op._schema.returns
        # Of what is written to by keyword DTensor takes it that it is returned.
        if any(a.is_out for a in arguments) or any(str(r.type) != "Tensor" for r in returns):
            continue
        # Decisions are remembered by these arguments, too: they may say the shapes of results.
        static = [not _is_tensor(a) and str(a.type) != "float" for a in arguments]
        info = RuntimeSchemaInfo(
            static_argnum=[*static, True].index(True),
            static_kwargkey=[
                a.name for a, it_is in zip(arguments, static, strict=True) if it_is and a.kwarg_only
            ],
            needs_pytree=any(_is_tensor(a) and "List" in str(a.type) for a in arguments),
        )
        propagator.register_op_strategy(op, functools.partial(_strategy, rule, Signature(op)), info)


def _is_tensor(argument: Any) -> bool:
    return "Tensor" in str(argument.type)


def _strategy(rule: Rule, signature: Signature, call: Any) -> Any:
    """What DTensor chooses from for a call, an `OpSchema`: every combination over the mesh."""
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor._op_schema import OpStrategy
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

    def placement(said: Placement) -> Any:
        if said is None:
            return Replicate()
        return Partial() if said == SUM else Shard(said)

    schema = call.op._schema
    args, kwargs = signature.fill_defaults(
        [_tensors(value) for value in call.args_schema],
        {name: _tensors(value) for name, value in call.kwargs_schema.items()},
    )
    values = zip(schema.arguments, (*args, *kwargs.values()), strict=True)
    tensors = [value for argument, value in values if _is_tensor(argument)]
    flat = [each for value in tensors if value is not None for each in _as_list(value)]

    divisions: list[list[Any]] = [[Replicate()] * (len(schema.returns) + len(flat))]
    for outputs, inputs in rule(*args, **kwargs):
        passed = placements_passed(inputs, tensors)
        divisions.append([placement(each) for each in (*outputs, *passed)])
    found = expand_to_full_mesh_op_strategy(
        call.get_mesh_from_args(), call, divisions, input_index=len(schema.returns)
    )
    # What is written to stays where it lies: elsewhere it would be a copy that is written to.
    written = [each for value in signature.written_values(args, kwargs) for each in _as_list(value)]
    stays = {
        i: each.strategies[0].output_spec.placements
        for i, each in enumerate(flat)
        if any(each is other for other in written)
    }
    strategies = [
        strategy
        for strategy in found.strategies
        if all(strategy.input_spec(i).placements == stays[i] for i in stays)
    ]
    if not strategies:
        raise RuntimeError(
            f"{signature.name}: what is written to stays where it lies, and no call on its pieces "
            f"would do with placements {', '.join(map(str, stays.values()))}: redistribute it first"
        )
    return OpStrategy(strategies)


def _tensors(value: Any) -> Any:
    """What stands for an argument: of a list of tensors, a list."""
    from torch.distributed.tensor._op_schema import TupleStrategy

    return list(value.children) if isinstance(value, TupleStrategy) else value


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]

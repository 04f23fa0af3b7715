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

# Functions, and sizes of lines along which calls may be divided, too.
_functions: dict[str, Rule] = {}
_along: dict[str, Sequence[str]] = {}


@overload
def register_sharding(op: str | OpOverload, func: Rule, /) -> None: ...


@overload
def register_sharding(
    op: str | OpOverload, /, *more: str | OpOverload, along: Sequence[str]
) -> None: ...


def register_sharding(op: str | OpOverload, /, *rest: Any, along: Sequence[str] = ()) -> None:
    """Registers how calls of an operator may be divided among devices.

    An operator with a line of shapes needs none for what follows from that: see
    :func:`extension_cpp.sharding.sharding_rule`. It takes effect with ``import
    extension_cpp.distributed``, or after that with its ``apply_rules()``.

    Args:
        op: The operator, ``"namespace::name"``.
        *rest: A function, which is called with all arguments of a call, those left at their
            defaults included and keyword-only ones as keywords, where things that have ``shape``
            and ``ndim`` stand for the tensors. For each way to divide the call it yields
            ``(outputs, inputs)``: the placements of the results, and those of the arguments that
            are tensors. A placement is the dimension that is divided, from 0 on, None for what
            every device has whole, or ``SUM``. Or further operators, as for the first.
        along: Without a function: sizes of the lines of shapes along which calls may be divided,
            too.

    Raises:
        ValueError: If a line has no such size, or this package has no line for the operator.
        NotImplementedError: If a keyword-only argument is a tensor, which DTensor does not
            redistribute; or if a result is something else than a tensor.
    """
    ops, func = lookup_each(op, *rest)
    for each in ops:
        if not _can_be_divided(each):
            raise NotImplementedError(
                f"{each.name()}: DTensor divides calls whose tensors are positional and whose "
                f"results are tensors, each one of its own. The schema is {each._schema}"
            )
        if func is None:
            sharding_rule(operator(each.name()), along)  # which refuses what is no size
            _along[each.name()] = along
        else:
            _functions[each.name()] = func


def _can_be_divided(op: OpOverload) -> bool:
    keyword_only = [a for a in op._schema.arguments if a.kwarg_only]
    are_tensors = all(str(result.type) == "Tensor" for result in op._schema.returns)
    return are_tensors and not any(map(_is_tensor, keyword_only))


def rule_of(name: str, lines: Mapping[str, Operator]) -> Rule | None:
    """The rule of an operator: a function that is registered, or else what its line says.

    Args:
        name: ``"namespace::name"``.
        lines: Operators with a line of shapes, by name.
    """
    if name in _functions:
        return _functions[name]
    return sharding_rule(lines[name], _along.get(name, ())) if name in lines else None


def apply_rules() -> None:
    """Hands all rules over to DTensor, which forgets what it decided by earlier ones."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    propagator = DTensor._op_dispatcher.sharding_propagator
    for name in {**operators(), **_functions}:
        op, rule = lookup(name), rule_of(name, operators())
        if rule is None or not _can_be_divided(op):
            continue
        # Decisions are remembered by these arguments, too. A line looks at no floats, which may be
        # others with every call.
        inert = ("float",) if name not in _functions else ()
        arguments = op._schema.arguments
        static = [not _is_tensor(a) and str(a.type) not in inert for a in arguments]
        info = RuntimeSchemaInfo(
            static_argnum=[*static, True].index(True),
            static_kwargkey=[
                a.name for a, it_is in zip(arguments, static, strict=True) if it_is and a.kwarg_only
            ],
            needs_pytree=any(_is_tensor(a) and "List" in str(a.type) for a in arguments),
        )
        propagator.register_op_strategy(op, functools.partial(_strategy, rule, Signature(op)), info)
    _clear_sharding_prop_cache()


def _is_tensor(argument: Any) -> bool:
    return "Tensor" in str(argument.type)


def _strategy(rule: Rule, signature: Signature, call: Any) -> Any:
    """What DTensor chooses from for a call, an `OpSchema`: every combination over the mesh."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor._op_schema import OpStrategy
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

    args, kwargs = signature.fill_defaults(
        [_tensors(value) for value in call.args_schema], call.kwargs_schema
    )
    values = signature.tensor_values(args, kwargs)
    given, results = call.args_strategy, signature.returns

    divisions: list[list[Any]] = [[Replicate()] * (results + len(given))]
    for outputs, inputs in rule(*args, **kwargs):
        passed = placements_passed(inputs, values)
        divisions.append([_placement(said) for said in (*outputs, *passed)])
    found = expand_to_full_mesh_op_strategy(
        call.get_mesh_from_args(), call, divisions, input_index=results
    )
    # Pieces that are uneven, or none, are left out there.
    strategies = [*_as_they_lie(given, divisions, results), *found.strategies]
    # What is written to stays where it lies: elsewhere it would be a copy that is written to.
    written = [each for k in signature.written_positions for each in _as_list(args[k])]
    stays = {
        i: _spec(each).placements
        for i, each in enumerate(given)
        if any(each is other for other in written)
    }
    strategies = [
        s for s in strategies if all(s.input_spec(i).placements == stays[i] for i in stays)
    ]
    if not strategies:
        raise RuntimeError(
            f"{signature.name}: what is written to stays where it lies, and no call on its pieces "
            f"would do with placements {', '.join(map(str, stays.values()))}: redistribute it first"
        )
    return OpStrategy(strategies)


def _as_they_lie(given: Sequence[Any], divisions: Sequence[list[Any]], results: int) -> list[Any]:
    """The strategy that sends nothing, where the tensors lie as one of the divisions says.

    Along each dimension of the mesh; a division has the placements of the results before those of
    the tensors.
    """
    from torch.distributed.tensor._dtensor_spec import DTensorSpec
    from torch.distributed.tensor._op_schema import OpSpec

    specs = [_spec(each) for each in given]
    along = []
    for placements in zip(*(spec.placements for spec in specs), strict=True):
        fitting = [each[:results] for each in divisions if each[results:] == list(placements)]
        if not fitting:
            return []
        along.append(fitting[0])
    outputs = [DTensorSpec(specs[0].mesh, placements) for placements in zip(*along, strict=True)]
    return [
        OpSpec(
            output_specs=outputs[0] if results == 1 else tuple(outputs) or None,
            input_specs=specs,
            redistribute_cost=[[0.0]] * len(specs),
        )
    ]


def _placement(said: Placement) -> Any:
    from torch.distributed.tensor import Partial, Replicate, Shard

    if said is None:
        return Replicate()
    return Partial() if said == SUM else Shard(said)


def _tensors(value: Any) -> Any:
    """What stands for an argument: of a list of tensors, a list."""
    from torch.distributed.tensor._op_schema import TupleStrategy

    return list(value.children) if isinstance(value, TupleStrategy) else value


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _spec(tensor: Any) -> Any:
    return tensor.strategies[0].output_spec

"""What has to be known of an operator's schema, and values by it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

# Where lists of tensors were before they were spread: the length of each, None for other values.
# None as a whole if there were none.
Lengths = Sequence[int | None] | None

# The types whose values the dispatcher hands over as they are.
_KINDS = {"float": float, "int": int, "bool": bool, "str": str, "List[int]": list}


def _described(value: Any) -> str:
    """Without the elements of tensors."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_described, value))}]"
    return "a tensor" if isinstance(value, Tensor) else repr(value)


class Signature:
    """What has to be known of an operator's schema.

    The dispatcher strips trailing arguments that equal their defaults, and autograd functions see
    only tensors that are arguments or results themselves. Hence arguments are filled up for users,
    and a ``Tensor[]`` is spread for autograd functions; values are called flat then.
    """

    def __init__(self, op: OpOverload) -> None:
        schema = op._schema
        arguments, returns = schema.arguments, schema.returns
        positional = [argument for argument in arguments if not argument.kwarg_only]
        keyword_only = [argument for argument in arguments if argument.kwarg_only]
        self.name = op.name()
        self.positional = len(positional)
        self._are_tensors = ["Tensor" in str(a.type) for a in (*positional, *keyword_only)]
        self.returns = len(returns)
        self._schema = str(schema)
        self._aliases = any(value.alias_info is not None for value in (*arguments, *returns))
        self._has_keyword_only_tensors = any("Tensor" in str(a.type) for a in keyword_only)
        self._written = [
            argument.name if argument.kwarg_only else position
            for position, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self.written_positions = [k for k in self._written if isinstance(k, int)]
        self._defaults = tuple(argument.default_value for argument in positional)
        self._keyword_only_defaults = {a.name: a.default_value for a in keyword_only}
        self._input_lists = [_is_tensor_list(argument) for argument in positional]
        self._output_lists = [_is_tensor_list(value) for value in returns]
        # All arguments are positional, and all results tensors.
        self.is_simple = not keyword_only and not any(self._output_lists)
        self._required = sum(not argument.has_default_value() for argument in positional)
        self._kinds = [
            (position, _KINDS.get(_without_optional(argument)))
            for position, argument in enumerate(positional)
            if _without_optional(argument) != "Tensor"
        ]

    def require_functional(self) -> None:
        if self._aliases or not self.returns:
            raise RuntimeError(
                f"{self.name}: autograd is for operators that return new tensors and leave their "
                "arguments alone; for one that writes to its arguments and returns nothing there "
                f"is register_mutation. The schema is {self._schema}"
            )
        if self._has_keyword_only_tensors:
            raise NotImplementedError(
                f"{self.name}: keyword-only tensors get no gradients; make them positional. The "
                f"schema is {self._schema}"
            )

    def require_mutation(self) -> None:
        if not self._written or self.returns:
            raise RuntimeError(
                f"{self.name}: register_mutation is for operators that write to an argument, "
                f"Tensor(a!), and return nothing, -> (). The schema is {self._schema}"
            )

    def as_dispatched(self, args: Sequence[Any]) -> Sequence[Any] | None:
        """All positional arguments of a call, as a kernel in Python gets them.

        None where that might be other values than these, or an error.
        """
        if not self._required <= len(args) <= self.positional:
            return None
        if not self._kinds and len(args) == self.positional:
            return args
        inputs = [*args, *self._defaults[len(args) :]]
        for position, kind in self._kinds:
            value = inputs[position]
            if kind is list and type(value) in (list, tuple) and set(map(type, value)) <= {int}:
                inputs[position] = list(value)
            elif value is not None and (type(value) is not kind or kind is list):
                return None
        return inputs

    def fill_defaults(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        inputs = (*args, *self._defaults[len(args) :])
        return inputs, {**self._keyword_only_defaults, **kwargs}

    def tensor_values(self, inputs: Sequence[Any], keyword_only: dict[str, Any]) -> list[Any]:
        """What a call with all its arguments passes for those that are tensors, or lists."""
        values = (*inputs, *keyword_only.values())
        return [v for v, is_tensor in zip(values, self._are_tensors, strict=True) if is_tensor]

    def pad(self, values: Sequence[Any], value: Any) -> tuple[Any, ...]:
        """Extends what there is for each argument that was given to the stripped ones."""
        return (*values, *[value] * (len(self._defaults) - len(values)))

    def written(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Tensor]:
        """Yields the tensors that a call writes to."""
        inputs, keyword_only = self.fill_defaults(args, kwargs)
        yield from tensors_in(self.written_values(inputs, keyword_only))

    def written_values(self, inputs: Sequence[Any], keyword_only: dict[str, Any]) -> list[Any]:
        """What a call with all its arguments passes for those that it writes to."""
        return [inputs[k] if isinstance(k, int) else keyword_only[k] for k in self._written]

    def flatten_inputs(self, args: Sequence[Any]) -> tuple[tuple[Any, ...], Lengths]:
        return flatten(args, self._input_lists)

    def flatten_output(self, output: Any) -> tuple[tuple[Any, ...], Lengths]:
        return flatten(output if self.returns > 1 else (output,), self._output_lists)

    def flatten_reference(self, output: Any, lengths: Lengths) -> tuple[Any, ...]:
        """Fits what a reference returned to the operator's output, flat with these lengths."""
        outputs = output if self.returns > 1 else (output,)
        if isinstance(outputs, (list, tuple)) and len(outputs) == self.returns:
            flat, found = self.flatten_output(output)
            if found == lengths and all(t is None or isinstance(t, Tensor) for t in flat):
                return flat
        raise RuntimeError(
            f"{self.name}: the reference must return as many tensors as the operator, but it "
            f"returned {_described(output)}. The schema is {self._schema}"
        )

    def flatten_grads(self, grads: Any, flat_inputs: int, lengths: Lengths) -> tuple[Any, ...]:
        """Fits what a backward formula returned to the flat arguments that were given."""
        grads = grads if isinstance(grads, tuple) else (grads,)
        given = flat_inputs if lengths is None else len(lengths)
        if lengths is None and len(grads) == given:
            return grads
        if len(grads) < given or any(grad is not None for grad in grads[given:]):
            raise RuntimeError(
                f"{self.name}: backward must return one gradient, or None, for each of the "
                f"{len(self._defaults)} positional arguments, but it returned {len(grads)}"
            )
        if lengths is None:
            return grads[:given]
        flat: list[Any] = []
        for position, length in enumerate(lengths):
            grad = grads[position]
            if length is None:
                flat.append(grad)
            elif grad is None:
                flat.extend([None] * length)
            elif isinstance(grad, (list, tuple)) and len(grad) == length:
                flat.extend(grad)
            else:
                raise RuntimeError(
                    f"{self.name}: backward must return a list of {length} gradients, or None, "
                    f"for argument {position}"
                )
        return tuple(flat)


def _without_optional(argument: torch.Argument) -> str:
    kind = str(argument.type)
    return kind[len("Optional[") : -1] if kind.startswith("Optional[") else kind


def _is_tensor_list(value: torch.Argument) -> bool:
    kind = str(value.type)
    return "List[" in kind and "Tensor" in kind


def flatten(values: Sequence[Any], are_lists: Sequence[bool]) -> tuple[tuple[Any, ...], Lengths]:
    if not any(are_lists):
        return tuple(values), None
    flat: list[Any] = []
    lengths: list[int | None] = []
    for value, is_list in zip(values, are_lists, strict=False):
        if is_list and value is not None:
            flat.extend(value)
            lengths.append(len(value))
        else:
            flat.append(value)
            lengths.append(None)
    return tuple(flat), lengths


def nest(flat: Sequence[Any], lengths: Lengths) -> tuple[Any, ...]:
    """Undoes :func:`flatten`."""
    if lengths is None:
        return tuple(flat)
    values = iter(flat)
    return tuple(
        next(values) if length is None else list(itertools.islice(values, length))
        for length in lengths
    )


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def is_float8(tensor: Tensor) -> bool:
    """Whether it holds codes of float8, which PyTorch converts and cannot add up."""
    return tensor.is_floating_point() and tensor.element_size() == 1


def is_differentiable(tensor: Tensor) -> bool:
    """Whether it may have a gradient: not codes of float8."""
    return (tensor.is_floating_point() or tensor.is_complex()) and not is_float8(tensor)

"""What follows from the line that says an operator's shapes: for fake tensors, vmap and tests.

`csrc/notation.h` explains the line. It stands in C++, beside the schema, and is read from the
library here, so that kernels and fake kernels check by the same: in the same order and words.

    torch.library.register_fake("extension_cpp::fused_op", fake_kernel("extension_cpp::fused_op"))
    register_vmap("extension_cpp::fused_op", batching_rule("extension_cpp::fused_op"))
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from extension_cpp import _loader, checks
from extension_cpp.layout import new_elementwise, same_shape
from extension_cpp.notation import NO_BATCH, Dim, DtypeRule, Notation, Shape, parse_notation

Sizes = tuple[int, ...]
# A call: positional and keyword arguments.
Call = tuple[tuple[Any, ...], dict[str, Any]]


def fake_kernel(op: str) -> Callable[..., Any]:
    """The fake kernel of an operator: checks its inputs, and makes outputs as the kernels do.

    Args:
        op: ``"namespace::name"``.

    Raises:
        ValueError: The operator is declared without a line of shapes.
    """
    return operator(op).fake_kernel()


# Where no batching rule follows from the shapes.
WANTED = (
    "register_vmap wants a function, as by_example of batching.py makes, which calls the operator "
    "for each example, or with_columns for columns"
)


def batching_rule(op: str) -> Callable[..., tuple[Any, Any]]:
    """The batching rule of an operator, for ``register_vmap``.

    The batch becomes one more of the dimensions that a ``*name`` or ``...`` stands for. That is
    sound where every result has the same of these and every batched input has it too. The examples
    are checked first: joined to others, dimensions can pass for valid that are not.

    Args:
        op: ``"namespace::name"``.

    Raises:
        ValueError: The operator is declared without a line of shapes.
        NotImplementedError: There is a result without ``*name`` or ``...``. (The rule itself raises
            it where an input without is batched.)
    """
    return operator(op).batching_rule()


def operator(op: str) -> Operator:
    """The operator of a name, ``"namespace::name"``.

    Raises:
        ValueError: It is declared without a line of shapes.
    """
    try:
        return operators()[op]
    except KeyError:
        raise ValueError(
            f"{op} is declared without a line of shapes (see csrc/notation.h): its fake kernel and "
            "its batching rule have to be functions"
        ) from None


@functools.cache
def operators() -> Mapping[str, Operator]:
    """The operators of this package that have a line of shapes, by name."""
    return read_operators(_loader.FOLDER / "_C.so", _loader.NAMESPACE)


def read_operators(library: Path, namespace: str) -> Mapping[str, Operator]:
    """The operators with a line of shapes that a loaded library declares in its namespace."""
    found = [
        Operator(namespace, schema, line)
        for schema, line, _ in _loader.declared_operators(library, namespace)
    ]
    return {f"{namespace}::{op.name}": op for op in found}


@dataclasses.dataclass(frozen=True)
class Example:
    """What the checks ask of a tensor, where there is none."""

    shape: Sizes
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout

    def dim(self) -> int:
        """As of a tensor."""
        return len(self.shape)


@dataclasses.dataclass
class Inputs:
    """The inputs of a call, which are as the line says."""

    tensors: Sequence[Sequence[Any]]  # of each argument: one, none where it is None, a list's
    first: Any  # gives the device
    leader: Any  # gives the dtype
    sizes: dict[str, Sizes]  # what the names stand for


class Operator:
    """A schema and its line of shapes, and what follows from them."""

    def __init__(self, namespace: str, schema: str, line: str) -> None:
        self.namespace = namespace
        self.schema = torch._C.parse_schema(schema)
        self.line = line
        self.notation: Notation = parse_notation(self.schema, line)
        self.name = self.notation.name
        arguments = self.schema.arguments
        # Where the tensors are among the arguments.
        self.tensor_positions = [k for k, a in enumerate(arguments) if "Tensor" in str(a.type)]
        # And the numbers that are sizes.
        names = [argument.name for argument in arguments]
        self.number_positions = [names.index(name) for name in self.notation.numbers]
        self.written = [
            k
            for k, position in enumerate(self.tensor_positions)
            if (alias := arguments[position].alias_info) is not None and alias.is_write
        ]

    @property
    def overload(self) -> Any:
        """``torch.ops.namespace.name.default``."""
        name, _, overload = self.name.partition(".")
        return getattr(getattr(getattr(torch.ops, self.namespace), name), overload or "default")

    # ----- calls

    def values(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """One value for each argument of the schema."""
        return [
            args[k] if k < len(args) else kwargs.get(argument.name, argument.default_value)
            for k, argument in enumerate(self.schema.arguments)
        ]

    def tensors(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[list[Any]]:
        """The tensors of each tensor argument: one, none where it is None, those of a list."""
        values = self.values(args, kwargs)
        tensors = []
        for position, argument in zip(self.tensor_positions, self.notation.arguments, strict=True):
            value = values[position]
            if argument.is_list:
                tensors.append(list(value))
            else:
                tensors.append([] if value is None and argument.optional else [value])
        return tensors

    def numbers(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The numbers that are sizes."""
        values = self.values(args, kwargs)
        return [values[position] for position in self.number_positions]

    def label(self, k: int, i: int) -> str:
        """The name, in messages, of tensor i of tensor argument k."""
        argument = self.notation.arguments[k]
        return f"{argument.name}[{i}]" if argument.is_list else argument.name

    # ----- checks

    def check(self, /, *args: Any, **kwargs: Any) -> Inputs:
        """Checks the inputs of a call as the kernels do.

        Raises:
            RuntimeError: what is wrong: first with dtypes and devices, then with shapes, then with
                the layout of what is written to.
        """
        inputs = self.check_tensors(self.tensors(args, kwargs), self.numbers(args, kwargs))
        for k in self.written:
            for i, tensor in enumerate(inputs.tensors[k]):
                checks.check_non_overlapping(self.name, self.label(k, i), tensor)
        return inputs

    def check_tensors(
        self, tensors: Sequence[Sequence[Any]], numbers: Sequence[Any] = ()
    ) -> Inputs:
        """As :meth:`check`, but for layouts.

        Args:
            tensors: those of each tensor argument.
            numbers: those that are sizes.
        """
        inputs = Inputs(tensors, None, None, {})
        first_label = ""
        for k, shape in enumerate(self.notation.inputs):
            if k == self.notation.leader:
                torch._check(
                    bool(tensors[k]), functools.partial(self._text, k, None, "must not be empty")
                )
            if (most := shape.most) is not None:
                text = f"must hold at most {most} tensors, got {len(tensors[k])}"
                torch._check(len(tensors[k]) <= most, functools.partial(self._text, k, None, text))
            for i, tensor in enumerate(tensors[k]):
                label = self.label(k, i)
                self._check_dtype(inputs, shape, k, i)
                if inputs.first is None:
                    inputs.first, first_label = tensor, label
                else:
                    checks.check_same_device(self.name, label, tensor, first_label, inputs.first)
        torch._check(
            inputs.first is not None, lambda: f"{self.name}: at least one tensor must be given"
        )
        for name, number in zip(self.notation.numbers, numbers, strict=True):
            self._check_number(name, number)
            inputs.sizes[name] = (number,)
        for k, shape in enumerate(self.notation.inputs):
            for i in range(len(tensors[k])):
                self._check_shape(inputs, shape, k, i)
        for shape in self.notation.outputs:
            for dim in shape.dims:
                if dim.terms and not is_absent(inputs.tensors, shape):
                    self._check_result(dim, dim.value(inputs.sizes))
        return inputs

    def _check_number(self, name: str, number: Any) -> None:
        what = f"{self.name}: {name} must not be negative"
        torch._check(number >= 0, lambda: f"{what}, got {number}")

    def _check_result(self, dim: Dim, value: Any) -> None:
        what = f"{self.name}: the size {dim.symbol} of a result"
        if isinstance(value, int):  # as far as C++ goes
            torch._check(value < 2**63, lambda: f"{what} is too large")
        torch._check(value >= 0, lambda: f"{what} must not be negative, got {value}")

    def _text(self, k: int, i: int | None, what: str) -> str:
        label = self.notation.arguments[k].name if i is None else self.label(k, i)
        return f"{self.name}: {label} {what}"

    def _check_dtype(self, inputs: Inputs, shape: Shape, k: int, i: int) -> None:
        op, label, tensor = self.name, self.label(k, i), inputs.tensors[k][i]
        leader = self.notation.leader
        leader_label = "" if leader is None else self.label(leader, 0)
        if shape.rule is DtypeRule.LEADER and (k, i) == (leader, 0):
            checks.check_floating(op, label, tensor)
            inputs.leader = tensor
        elif shape.rule is DtypeRule.LEADER:
            checks.check_same_dtype(op, label, tensor, leader_label, inputs.leader)
        elif shape.rule is DtypeRule.SUM:
            if inputs.leader is None:  # it comes later
                checks.check_defined(op, label, tensor)
                assert leader is not None
                inputs.leader = inputs.tensors[leader][0]
                checks.check_defined(op, leader_label, inputs.leader)
            checks.check_dtype(op, label, tensor, sum_dtype(inputs.leader.dtype))
        elif shape.rule is DtypeRule.WIDE:
            checks.check_parameter_dtype(op, label, tensor, leader_label, inputs.leader)
        elif shape.rule is DtypeRule.EXACT:
            assert shape.dtype is not None
            checks.check_dtype(op, label, tensor, shape.dtype)
        elif shape.rule is DtypeRule.ARGUMENT:
            source = self.label(shape.source, 0)
            like = inputs.tensors[shape.source][0]
            checks.check_defined(op, source, like)
            checks.check_same_dtype(op, label, tensor, source, like)
        else:
            checks.check_defined(op, label, tensor)

    def _check_shape(self, inputs: Inputs, shape: Shape, k: int, i: int) -> None:
        tensor = inputs.tensors[k][i]
        known = dict(inputs.sizes)  # before this tensor

        def message() -> str:
            return self._shape_message(known, shape, k, i, tensor)

        dim, star = tensor.dim(), shape.star
        torch._check(dim == shape.single if star is None else dim >= shape.single, message)
        sizes = tuple(tensor.shape)
        at = 0
        to_broadcast: Sizes | None = None
        for d, expected in enumerate(shape.dims):
            part = sizes[at : at + (dim - shape.single if d == star else 1)]
            at += len(part)
            if expected.is_anything:
                continue
            if expected.size is not None:
                torch._check(part[0] == expected.size, message)
            elif expected.terms:
                rest = part[0] - expected.value(inputs.sizes)
                times, name = expected.open(inputs.sizes) or (1, "")
                torch._check(rest % times == 0 if name else rest == 0, message)
                if name:
                    inputs.sizes[name] = (rest // times,)
                    torch._check(rest // times >= 0, message)
            elif expected.symbol not in inputs.sizes:
                inputs.sizes[expected.symbol] = part
            elif expected.symbol == "...":
                to_broadcast = part
            else:
                wanted = inputs.sizes[expected.symbol]
                torch._check(len(part) == len(wanted), message)
                for size, wanted_size in zip(part, wanted, strict=True):
                    torch._check(size == wanted_size, message)
        if to_broadcast is None:
            return
        own, like = to_broadcast, inputs.sizes["..."]

        def broadcast_message() -> str:
            others = self._broadcast_before(inputs, k, i)
            must = f"must broadcast {'to' if self.notation.to_first else 'with'} {others}"
            if len(shape.dims) == 1:
                return self._text(k, i, f"{must} of shape {like}, got {sizes}")
            what = f"in its dimensions ..., {like}, got {own} in shape {sizes}"
            return self._text(k, i, f"{must} {what}")

        broadcast = checks.broadcast_sizes(own, like, broadcast_message)
        if self.notation.to_first:
            torch._check(len(broadcast) == len(like), broadcast_message)
            for size, wanted_size in zip(broadcast, like, strict=True):
                torch._check(size == wanted_size, broadcast_message)
        else:
            inputs.sizes["..."] = broadcast

    def _shape_message(
        self, known: Mapping[str, Sizes], shape: Shape, k: int, i: int, tensor: Any
    ) -> str:
        parts: list[str] = []
        something_known = not shape.dims
        for dim in shape.dims:
            if dim.size is not None:
                parts.append(dim.symbol)
                something_known = True
            elif dim.terms:
                parts.append(dim.symbol if dim.open(known) else str(dim.value(known)))
                something_known = True
            elif dim.symbol in known and dim.symbol != "...":
                parts += map(str, known[dim.symbol])
                something_known = True
            else:
                parts.append(dim.symbol)
        spelled = f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
        got = f"got shape {tuple(tensor.shape)}"
        single = shape.single
        dimensions = f"{single} dimension{'' if single == 1 else 's'}"
        if not something_known and shape.star is not None and tensor.dim() < single:
            return self._text(k, i, f"must have at least {dimensions}, {got}")
        if not something_known and shape.star is None and tensor.dim() != single:
            return self._text(k, i, f"must have {dimensions} {spelled}, {got}")
        return self._text(k, i, f"must have shape {spelled}, got {tuple(tensor.shape)}")

    def _broadcast_before(self, inputs: Inputs, k: int, i: int) -> str:
        """The tensors with which tensor i of argument k broadcasts, or that to which it does."""
        names = []
        for j in range(k + 1):
            count = len(inputs.tensors[j]) if j < k else i
            if count and self.notation.inputs[j].star_symbol == "...":
                last = f" to {self.label(j, count - 1)}" if count > 1 else ""
                if self.notation.to_first:
                    return self.label(j, 0)
                names.append(self.label(j, 0) + last)
        return " and ".join(names)

    # ----- outputs

    def output_shapes(self, inputs: Inputs) -> list[tuple[Sizes, torch.dtype]]:
        """Sizes and dtype of each output."""
        found = []
        for shape in self.notation.outputs:
            like = inputs.first if inputs.leader is None else inputs.leader
            dtype = like.dtype
            sizes: Sizes = ()
            if shape.rule is DtypeRule.SUM:
                dtype = sum_dtype(dtype)
            elif shape.rule is DtypeRule.EXACT:
                assert shape.dtype is not None
                dtype = shape.dtype
            elif shape.rule is DtypeRule.ARGUMENT and inputs.tensors[shape.source]:
                dtype = inputs.tensors[shape.source][0].dtype
            if is_absent(inputs.tensors, shape):
                sizes = (0,)
            elif shape.like is not None:
                sizes = tuple(inputs.tensors[shape.like][0].shape)
            else:
                for dim in shape.dims:
                    sizes += _sizes_of(dim, inputs.sizes)
            found.append((sizes, dtype))
        return found

    def fake_kernel(self) -> Callable[..., Any]:
        """:meth:`fake` as a function that has the schema's own parameters, defaults included."""
        parameters, arguments = [], []
        for k, argument in enumerate(self.schema.arguments):
            if argument.kwarg_only and "*" not in parameters:
                parameters.append("*")
            default = f"=_defaults[{k}]" if argument.has_default_value() else ""
            parameters.append(argument.name + default)
            name = argument.name
            arguments.append(f"{name}={name}" if argument.kwarg_only else name)
        name = f"{self.name.replace('.', '_')}_fake"
        scope: dict[str, Any] = {
            "__name__": __name__,
            "_defaults": [argument.default_value for argument in self.schema.arguments],
            "_fake": self.fake,
        }
        source = f"def {name}({', '.join(parameters)}): return _fake({', '.join(arguments)})"
        exec(compile(source, f"<fake kernel of {self.name}>", "exec"), scope)
        return scope[name]

    def fake(self, /, *args: Any, **kwargs: Any) -> Any:
        """Checks the inputs of a call, and makes outputs as the kernels do."""
        inputs = self.check(*args, **kwargs)
        operands = [tensor for tensors in inputs.tensors for tensor in tensors]
        outputs = []
        shapes = self.output_shapes(inputs)
        first = self.notation.inputs[0]
        for shape, (sizes, dtype) in zip(self.notation.outputs, shapes, strict=True):
            broadcasts = shape.like is not None and not same_shape(
                sizes, inputs.sizes.get(first.star_symbol or "", ())
            )
            if not self.notation.elementwise or broadcasts or is_absent(inputs.tensors, shape):
                outputs.append(inputs.first.new_empty(sizes, dtype=dtype))
                continue
            output = new_elementwise(sizes, *operands)
            if output.dtype != dtype:
                output = output.new_empty_strided(sizes, output.stride(), dtype=dtype)
            outputs.append(output)
        return _as_returned(outputs)

    # ----- vmap

    def batching_rule(self) -> Callable[..., tuple[Any, Any]]:
        """The batching rule; see the function of this name."""
        reason, star = self._batched_star()
        if star is None:
            raise NotImplementedError(
                f"{self.name}: no batching rule follows from its shapes, {self.line}: {reason}. "
                + WANTED
            )
        return functools.partial(self._vmap, star)

    def _batched_star(self) -> tuple[str, str | None]:
        """The symbol whose dimensions a batch joins, or why there is none."""
        shapes = self.notation.results or [self.notation.inputs[k] for k in self.written]
        what = "a result" if self.notation.outputs else "what is written"
        stars = {shape.star_symbol for shape in shapes}
        if stars & {None, *NO_BATCH}:
            return f"{what} has no *name or ... to which a batch could be joined", None
        if len(stars) != 1:
            return f"the results have different ones: {', '.join(sorted(map(str, stars)))}", None
        return "", stars.pop()

    def _vmap(
        self, star: str, info: Any, in_dims: Sequence[Any], *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        values = self.values(args, kwargs)
        tensors = self.tensors(args, kwargs)
        dims = self._dims(in_dims, tensors)
        checked = self._check_examples(tensors, dims, self.numbers(args, kwargs))
        offset = self._join(star, info.batch_size, tensors, dims)
        outputs = self._call(values, tensors)
        if not self.notation.outputs:
            return None, None
        if self.notation.to_first:
            outputs = self._without_padding(checked, info.batch_size, outputs)
        out_dims = tuple(
            None if is_absent(checked.tensors, shape) else (shape.star or 0) + offset
            for shape in self.notation.outputs
        )
        return outputs, out_dims[0] if len(out_dims) == 1 else out_dims

    def call_each(
        self, info: Any, in_dims: Sequence[Any], /, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        """A batching rule that calls the operator once for each example."""
        values = self.values(args, kwargs)
        tensors = self.tensors(args, kwargs)
        dims = self._dims(in_dims, tensors)
        checked = self._check_examples(tensors, dims, self.numbers(args, kwargs))
        for k in self.written:
            if None in dims[k]:
                raise self._not_batched(k, dims[k].index(None))
        results = []
        for n in range(info.batch_size):
            example = [
                [t if dim is None else t.select(dim, n) for t, dim in zip(*pair, strict=True)]
                for pair in zip(tensors, dims, strict=True)
            ]
            outputs = self._call(values, example)
            results.append((outputs,) if isinstance(outputs, Tensor) else outputs)
        if not self.notation.outputs:
            return None, None
        first = next(tensor for each in tensors for tensor in each)
        stacked = [
            torch.stack([each[m] for each in results])
            if results
            else first.new_empty((0, *sizes), dtype=dtype)
            for m, (sizes, dtype) in enumerate(self.output_shapes(checked))
        ]
        return _as_returned(stacked), 0 if len(stacked) == 1 else (0,) * len(stacked)

    def _call(self, values: Sequence[Any], tensors: Sequence[Sequence[Any]]) -> Any:
        """Calls the operator with a value for each of its arguments, and these for its tensors."""
        values = list(values)
        for k, position in enumerate(self.tensor_positions):
            if values[position] is not None:
                is_list = self.notation.arguments[k].is_list
                values[position] = tensors[k] if is_list else tensors[k][0]
        arguments = self.schema.arguments
        keywords = {
            argument.name: value
            for argument, value in zip(arguments, values, strict=True)
            if argument.kwarg_only
        }
        return self.overload(*values[: len(values) - len(keywords)], **keywords)

    def _not_batched(self, k: int, i: int) -> RuntimeError:
        return RuntimeError(
            f"{self.name}: {self.label(k, i)} must be batched under vmap where another input is: "
            "what is written for every example does not fit into it"
        )

    def _without_padding(self, checked: Inputs, batch_size: int, outputs: Any) -> Any:
        """The outputs, without the dimensions of size 1 that :meth:`_join` gave their arguments."""
        shapes = self.notation.outputs
        given = (outputs,) if isinstance(outputs, Tensor) else outputs
        results = []
        for shape, output in zip(shapes, given, strict=True):
            if shape.like is not None and not is_absent(checked.tensors, shape):
                (example,) = checked.tensors[shape.like]
                padding = output.dim() - 1 - example.dim()
                output = output.squeeze(tuple(range(1, 1 + padding)))
            results.append(output)
        return _as_returned(results)

    def check_examples(self, in_dims: Sequence[Any], /, *args: Any, **kwargs: Any) -> Inputs:
        """Checks the examples of a batch, for batching rules that are written by hand.

        By their shapes alone: a batch of no examples is refused where every example would be.

        Args:
            in_dims: one for each positional argument, as ``register_vmap`` passes them.
            args: the arguments, batched.
            kwargs: those that are keyword-only.

        Returns:
            The inputs of one example, for :meth:`output_shapes`.

        Raises:
            RuntimeError: what :meth:`check` says of every example.
        """
        tensors = self.tensors(args, kwargs)
        dims = self._dims(in_dims, tensors)
        return self._check_examples(tensors, dims, self.numbers(args, kwargs))

    def _check_examples(
        self,
        tensors: Sequence[Sequence[Any]],
        dims: Sequence[Sequence[int | None]],
        numbers: Sequence[Any],
    ) -> Inputs:
        examples = [
            [_example(tensor, dim) for tensor, dim in zip(*pair, strict=True)]
            for pair in zip(tensors, dims, strict=True)
        ]
        return self.check_tensors(examples, numbers)

    def _dims(
        self, in_dims: Sequence[Any], tensors: Sequence[Sequence[Any]]
    ) -> list[list[int | None]]:
        """Where the batch is in each of the tensors; keyword-only ones are never batched."""
        dims: list[list[int | None]] = []
        for k, position in enumerate(self.tensor_positions):
            dim = in_dims[position] if position < len(in_dims) else None
            dims.append(list(dim) if isinstance(dim, (list, tuple)) else [dim] * len(tensors[k]))
        return dims

    def _join(
        self,
        star: str,
        batch_size: int,
        tensors: list[list[Any]],
        dims: Sequence[Sequence[int | None]],
    ) -> int:
        """Makes the batch a dimension of the star in all tensors; returns which of them."""
        # What has the batch in any case: to which others broadcast, to which results are summed.
        whole = {shape.like for shape in self.notation.outputs if shape.like is not None}
        whole |= {0} if self.notation.to_first else set()
        joined = []  # k, i, where the star begins, how many dimensions it has, the batch's
        for k, shape in enumerate(self.notation.inputs):
            for i, dim in enumerate(dims[k]):
                if shape.star_symbol == star:
                    assert shape.star is not None
                    rank = tensors[k][i].dim() - (dim is not None)
                    joined.append((k, i, shape.star, rank - shape.single, dim))
                elif dim is not None:
                    raise NotImplementedError(
                        f"{self.name}: {self.label(k, i)} is batched, and no batching rule for "
                        f"that follows from the shapes, {self.line}: there is no {star} in its "
                        f"shape. {WANTED}"
                    )
                if k in self.written and dim is None:
                    raise self._not_batched(k, i)
        # Where all have the batch at the same place among these dimensions, it stays there: the
        # kernels find the inputs as they lie in memory.
        offsets = {None if dim is None else dim - begin for _, _, begin, _, dim in joined}
        ranks = {rank for _, _, _, rank, _ in joined}
        if len(offsets) == len(ranks) == 1:
            offset = offsets.pop()
            if offset is not None and 0 <= offset <= min(ranks):
                return offset
        for k, i, begin, rank, dim in joined:
            tensor = tensors[k][i]
            if dim is not None:
                tensor = tensor.movedim(dim, begin)
            elif star != "..." or k in whole:
                shape = tensor.shape
                tensor = tensor.unsqueeze(begin)
                tensor = tensor.expand(*shape[:begin], batch_size, *shape[begin:])
            else:
                continue
            for _ in range(max(ranks) - rank):
                tensor = tensor.unsqueeze(begin + 1)
            tensors[k][i] = tensor
        return 0

    # ----- for tests and benchmarks

    def samples(self, make: Callable[..., Tensor], shape: Sequence[int]) -> Iterator[Call]:
        """Calls whose first tensor has a shape; none where it cannot have it.

        One leaves out what has defaults, others give other numbers, by keyword, leave out optional
        tensors, broadcast, and have float32 for a ``:wide`` half.

        Args:
            make: makes a tensor of a shape and ``dtype=`` (see ``Make`` of the battery).
            shape: of the first tensor, of the first in the list where it is one.

        Raises:
            NotImplementedError: An argument that is no tensor, number or flag has no default.
        """
        return filter(None, self._samples(make, tuple(shape)))

    def _samples(self, make: Callable[..., Tensor], shape: Sizes) -> Iterator[Call | None]:
        sizes = self._bind(shape)
        if sizes is None:
            return
        optional = [k for k, argument in enumerate(self.notation.arguments) if argument.optional]
        broadcasts = sum(s.star_symbol == "..." for s in self.notation.inputs) > 1
        yield self._sample(make, sizes)
        if len(self.schema.arguments) > len(self.tensor_positions):
            yield self._sample(make, sizes, numbers=True)
        if optional:
            yield self._sample(make, sizes, without=optional)
        if len(optional) > 1:
            for k in optional:
                yield self._sample(make, sizes, without=[k])
        if broadcasts and sizes.get("..."):
            full = sizes["..."]
            # A row, every other size, a column among them, and more dimensions than the first has.
            every_other = (n if d % 2 else 1 for d, n in enumerate(reversed(full)))
            shapes = [full[1:], tuple(every_other)[::-1]]
            if not self.notation.to_first:
                shapes.append((2, *full))
            for others in shapes:
                yield self._sample(make, sizes, others=others)
        if any(s.rule is DtypeRule.WIDE for s in self.notation.inputs):
            yield self._sample(make, sizes, wide=torch.float32)

    def bad_inputs(
        self,
        make: Callable[..., Tensor],
        samples: Callable[[Callable[..., Tensor], Any], Iterator[Call]] | None = None,
    ) -> Iterator[tuple[str, Call, str]]:
        """Calls that must fail: each tensor of another dtype, None, of another size or rank.

        What is written to overlaps itself, too, and a list has one more than it may.

        Args:
            make: as for :meth:`samples`.
            samples: in place of that method where none follow.

        Yields:
            A name, the call, and the message that the checks in Python give.
        """
        good = None
        for least in (3, 9):  # of which others may be left where numbers are taken away
            main = self._first_sizes(least)
            try:
                good = next(self.samples(make, main), good)
            except NotImplementedError:
                if samples is None:
                    raise
                good = next(samples(make, main), good)
            if good is not None:
                break
        else:
            return
        values = self.values(*good)
        for k, position in enumerate(self.tensor_positions):
            argument = self.notation.arguments[k]
            given = values[position]
            if given is None or given == []:
                continue
            i = len(given) - 1 if argument.is_list else 0
            tensor = given[i] if argument.is_list else given
            others = [*other_tensors(tensor, make)]
            if k in self.written and tensor.dim():
                column = make((*tensor.shape[:-1], 1), dtype=tensor.dtype).detach()
                others.append(("that overlaps itself", column.expand(tensor.shape)))
            # Where no tensor is left, torch finds no kernel to ask.
            alone = not argument.always_given or len(self.tensor_positions) == 1
            wrong = [
                (what, [*given[:-1], bad] if argument.is_list else bad)
                for what, bad in others
                if bad is not None or not alone
            ]
            if (most := self.notation.inputs[k].most) is not None:
                wrong.append(("too many", [tensor] * (most + 1)))
            for what, replaced in wrong:
                yield from self._refused(good, position, replaced, f"{self.label(k, i)} {what}")
        for name, position in zip(self.notation.numbers, self.number_positions, strict=True):
            for value in (-1, values[position] + 1):
                yield from self._refused(good, position, value, f"{name} as {value}")

    def _first_sizes(self, least: int) -> Sizes:
        """Of the first tensor, with names that are so much and more, and numbers as usual."""
        first = self.notation.inputs[0]
        bound = {name: self._number_size(name) for name in self.notation.numbers}
        sizes: Sizes = ()
        for dim in first.dims:
            rank = max(0, 2 - first.single) if dim.is_star else 1
            own = tuple(least + len(sizes) + d for d in range(rank))
            for name in dim.names:
                bound.setdefault(name, own)
            sizes += own if dim.is_anything else _sizes_of(dim, bound)
        return sizes

    def _refused(
        self, good: Call, position: int, value: Any, what: str
    ) -> Iterator[tuple[str, Call, str]]:
        """The call with another value, if it is refused."""
        call = self._with_value(good, position, value)
        try:
            self.check(*call[0], **call[1])
        except RuntimeError as error:
            yield what, call, str(error)

    def _with_value(self, call: Call, position: int, value: Any) -> Call:
        args, kwargs = call
        if position < len(args):
            return (*args[:position], value, *args[position + 1 :]), kwargs
        return args, {**kwargs, self.schema.arguments[position].name: value}

    def _number_size(self, name: str, *, other: bool = False) -> Sizes:
        """A number that is a size and follows from no tensor."""
        position = self.number_positions[self.notation.numbers.index(name)]
        return (self._number(self.schema.arguments[position], other=other),)

    def _bind(self, sizes: Sizes, *, other: bool = False) -> dict[str, Sizes] | None:
        """What the names stand for where the first tensor has these sizes; None if it cannot."""
        shape = self.notation.inputs[0]
        star = len(sizes) - shape.single
        if star < 0 or (shape.star is None and star > 0):
            return None
        parts: list[tuple[Dim, Sizes]] = []
        for dim in shape.dims:
            at = sum(len(part) for _, part in parts)
            parts.append((dim, sizes[at : at + (star if dim.is_star else 1)]))
        bound: dict[str, Sizes] = {}
        for dim, part in parts:
            if dim.is_name:
                bound.setdefault(dim.symbol, part)
        # Of each sum one name follows. Beside others, numbers are as usual.
        sums = [(dim, part[0]) for dim, part in parts if dim.terms]
        while sums:
            dim, size = next((s for s in sums if len({*s[0].names} - {*bound}) < 2), sums[0])
            unknown = [name for name in dim.names if name not in bound]
            if len(unknown) > 1:
                number = next(name for name in unknown if name in self.notation.numbers)
                bound[number] = self._number_size(number, other=other)
                continue
            sums.remove((dim, size))
            if found := dim.open(bound):
                times, name = found
                bound[name] = ((size - dim.value(bound)) // times,)
                if bound[name][0] < 0:
                    return None
        for name in self.notation.numbers:
            bound.setdefault(name, self._number_size(name, other=other))
        if any(not dim.is_anything and part != _sizes_of(dim, bound) for dim, part in parts):
            return None
        return {**bound, "": sizes}  # of the first tensor

    def _sample(
        self,
        make: Callable[..., Tensor],
        sizes: dict[str, Sizes],
        *,
        numbers: bool = False,
        without: Sequence[int] = (),
        others: Sizes | None = None,
        wide: torch.dtype | None = None,
    ) -> Call | None:
        """None where a size would be negative."""
        again = self._bind(sizes[""], other=True) if numbers else sizes
        if again is None:
            return None
        bound = dict(again)
        leader_dtype: torch.dtype | None = None

        def sizes_of(shape: Shape) -> Sizes:
            result: Sizes = ()
            for dim in shape.dims:
                if dim.symbol == "..." and dim.symbol in bound and others is not None:
                    result += others
                    continue
                for name in dim.names:
                    bound.setdefault(name, (2, 3) if dim.is_star else (3 + len(bound) % 5,))
                result += _sizes_of(dim, {"_": (3,), "*_": (2, 3), **bound})
            return result

        shapes = [bound[""], *map(sizes_of, self.notation.inputs[1:])]
        if any(
            size < 0 for sizes in (*shapes, *map(sizes_of, self.notation.outputs)) for size in sizes
        ):
            return None

        def tensors(k: int) -> Any:
            nonlocal leader_dtype
            shape = self.notation.inputs[k]
            like = self.notation.dtype_source(shape)
            dtype = leader_dtype
            if like.rule is DtypeRule.EXACT:
                dtype = like.dtype
            elif like.rule is DtypeRule.SUM:
                # The leader may come later.
                dtype = sum_dtype(make(()).dtype if dtype is None else dtype)
            elif like.rule is DtypeRule.WIDE and wide is not None and dtype != torch.float64:
                dtype = wide
            count = 3 if self.notation.arguments[k].is_list else 1
            count = count if shape.most is None else min(count, shape.most)
            own = shapes[k]
            made = [make(own) if dtype is None else make(own, dtype=dtype) for _ in range(count)]
            if k == self.notation.leader:
                leader_dtype = made[0].dtype
            return made if self.notation.arguments[k].is_list else made[0]

        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        positional = True  # nothing was left out yet
        for position, argument in enumerate(self.schema.arguments):
            if position in self.tensor_positions:
                k = self.tensor_positions.index(position)
                value = tensors(k)
                value = None if k in without else value
            else:
                size = bound[argument.name] if position in self.number_positions else None
                has_default = argument.has_default_value()
                if has_default and size in (None, (argument.default_value,)) and not numbers:
                    positional = False
                    continue
                value = self._number(argument, other=numbers) if size is None else size[0]
                positional = positional and not numbers
            if positional and not argument.kwarg_only:
                args.append(value)
            else:
                kwargs[argument.name] = value
        return tuple(args), kwargs

    def _number(self, argument: Any, *, other: bool) -> Any:
        """A value for an argument that is no tensor: the default, or another where there is one."""
        kind = str(argument.type)
        has_default, default = argument.has_default_value(), argument.default_value
        if kind == "bool":
            return bool(default) != other
        if kind == "int":
            return (default if has_default else 1) + other
        if kind == "float":
            # With the sign of the default, which may have to be positive.
            usual, unusual = (default, default * 1.75 or 1.75) if has_default else (1.75, -0.375)
            return unusual if other else usual
        if has_default:
            return default
        raise NotImplementedError(
            f"{self.name}: no samples follow from its schema: '{argument.name}' has no default"
        )


def is_absent(tensors: Sequence[Sequence[Any]], shape: Shape) -> bool:
    """Whether an output goes with an optional tensor, of those of each argument, that is None."""
    sources = [shape.source] if shape.rule is DtypeRule.ARGUMENT else []
    sources += [] if shape.like is None else [shape.like]
    return any(not tensors[k] for k in sources)


def _sizes_of(dim: Dim, sizes: Mapping[str, Sizes]) -> Sizes:
    """What stands for it in a shape, where this is what the names stand for."""
    if dim.size is not None:
        return (dim.size,)
    return (dim.value(sizes),) if dim.terms else sizes[dim.symbol]


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of the arithmetic on elements of a dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def other_tensors(
    tensor: Tensor, make: Callable[..., Tensor]
) -> Iterator[tuple[str, Tensor | None]]:
    """What could be passed for a tensor by mistake, not always a wrong one.

    Args:
        tensor: the right one.
        make: makes a tensor of a shape and ``dtype=``, on the device of the right one.

    Yields:
        A description, and the value: None, on another device, of another dtype, of another shape.
    """
    shape = tuple(tensor.shape)
    yield "absent", None
    if tensor.is_cuda:
        yield "in the host's memory", tensor.detach().cpu()
    for dtype in (
        *(torch.bool, torch.int32, torch.int64, torch.complex64),
        *(torch.float64, torch.float32, torch.bfloat16),
    ):
        if dtype != tensor.dtype:
            yield f"as {dtype}", make(shape, dtype=dtype)
    shapes = [
        (*shape[:d], other, *shape[d + 1 :])
        for d, size in enumerate(shape)
        for other in (size + 1, size - 1, 1, 0)
        if other >= 0
    ]
    shapes += [shape[1:], shape[:-1], (), (1, *shape), (2, *shape)]
    for other_shape in dict.fromkeys(shapes):
        if other_shape != shape:
            yield f"of shape {other_shape}", make(other_shape, dtype=tensor.dtype)


def _example(tensor: Any, dim: int | None) -> Any:
    if tensor is None or dim is None:
        return tensor
    shape = tuple(tensor.shape)
    return Example(shape[:dim] + shape[dim + 1 :], tensor.dtype, tensor.device, tensor.layout)


def _as_returned(outputs: list[Any]) -> Any:
    return outputs[0] if len(outputs) == 1 else tuple(outputs) or None

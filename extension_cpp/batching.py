"""Moves the batch dimensions of `torch.vmap` to where operators take them. Nothing is copied."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from extension_cpp.registration.signature import is_differentiable
from extension_cpp.shapes import batching_rule, operator, sum_dtype


def to_front(
    batch_size: int, in_dims: Sequence[int | None], *tensors: Tensor
) -> tuple[Tensor, ...]:
    """For operators whose arguments have equal shapes: every tensor becomes `(batch, *shape)`."""
    return tuple(
        tensor.expand(batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for dim, tensor in zip(in_dims, tensors, strict=True)
    )


def first_example(in_dims: Sequence[int | None], *args: Any) -> tuple[Any, ...]:
    """The arguments for the first example of a batch, for their checks.

    A batch whose dimensions are joined to others can pass for valid where its examples are not, and
    an error should speak of the shapes that the caller's function sees. Of an empty batch it is
    what an example would be.
    """

    def example(dim: int, tensor: Tensor) -> Tensor:
        if tensor.shape[dim] > 0:
            return tensor.select(dim, 0)
        sizes, strides = list(tensor.shape), list(tensor.stride())
        del sizes[dim], strides[dim]
        return tensor.new_empty_strided(sizes, strides)

    return tuple(
        arg if dim is None else example(dim, arg) for dim, arg in zip(in_dims, args, strict=True)
    )


def by_example(op: str) -> Callable[..., tuple[Any, Any]]:
    """The batching rule of any operator that has a line of shapes, for `register_vmap`.

    It is what follows from the line where that is possible. Else the operator is called once for
    each example: where a tensor is batched that has no dimensions for it in the line, where no
    tensor has, as those that are summed over everything (`*all`), or where results have different
    ones. What is written to has to be batched.

    Args:
        op: `"namespace::name"`.
    """

    def rule(info: Any, in_dims: Sequence[Any], *args: Any, **keyword_only: Any) -> tuple[Any, Any]:
        try:
            return batching_rule(op)(info, in_dims, *args, **keyword_only)
        except NotImplementedError:
            pass
        return operator(op).call_each(info, in_dims, *args, **keyword_only)

    return rule


def with_columns(op: str, in_torch: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """The batching rule of an operator with parameters, or sums, for columns, for `register_vmap`.

    It is what follows from the line of shapes where that is possible. Else, where the parameters
    are batched or every example has sums of its own, it is plain PyTorch, in the type of the sums;
    tensors of bool and integers stay what they are.

    Args:
        op: `"namespace::name"`, whose tensors have the shapes `*rows n`, `*rows`, `*rows 1`, `n`,
            `1` and `()`; those that may be None are parameters for columns.
        in_torch: computes the same, also of parameters with more dimensions than `n`. Where the
            operator has sums, it takes the shape to which it shall sum as `columns=`. None for the
            gradient of a parameter that is None.
    """

    def rule(info: Any, in_dims: Sequence[Any], *args: Any, **numbers: Any) -> tuple[Any, Any]:
        try:
            return batching_rule(op)(info, in_dims, *args, **numbers)
        except NotImplementedError:
            pass
        called = operator(op)
        example = called.check_examples(in_dims, *args, **numbers)
        positions = zip(called.tensor_positions, called.notation.inputs, strict=True)
        shapes = {k: shape for k, shape in positions if args[k] is not None}
        like = args[called.tensor_positions[called.notation.leader or 0]]
        values, columns = list(args), ()
        for k, shape in shapes.items():
            if is_differentiable(values[k]):
                values[k] = values[k].to(sum_dtype(like.dtype))
            if shape.star is not None:
                (values[k],) = to_front(info.batch_size, [in_dims[k]], values[k])
            if shape.star is not None and shape.single and shape.dims[-1].is_name:
                rows = values[k].shape[1:-1]
                columns = (info.batch_size, *[1] * len(rows), values[k].shape[-1])
        for k, shape in shapes.items():
            if shape.star is None and in_dims[k] is not None:
                each = values[k].movedim(in_dims[k], 0)
                last = each.shape[1:] or (1,)
                values[k] = each.reshape(*columns[:-1], *last)
        has_sums = any(shape.star is None for shape in called.notation.outputs)
        results = in_torch(*values, **numbers, **({"columns": columns} if has_sums else {}))
        if isinstance(results, Tensor):
            results = (results,)
        outputs = []
        for result, shape, (_, output_dtype) in zip(
            results, called.notation.outputs, called.output_shapes(example), strict=True
        ):
            if result is None:
                result = like.new_empty((info.batch_size, 0))
            outputs.append((result.flatten(1) if shape.star is None else result).to(output_dtype))
        return (outputs[0], 0) if len(outputs) == 1 else (tuple(outputs), (0,) * len(outputs))

    return rule

"""How inductor, the default backend of torch.compile, lowers operators."""

from __future__ import annotations

import functools
import itertools
import sys
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from extension_cpp.layout import depends_on_data
from extension_cpp.registration.signature import Signature


class _Lowering:
    """How inductor lowers an operator, of which it is told when that is traced."""

    def __init__(self, op: OpOverload) -> None:
        self._op = op
        self._installed = False

    def install(self) -> None:
        """Tells inductor, if it is there: it is loaded before torch.compile traces anything."""
        inductor = sys.modules.get("torch._inductor.lowering")
        if not self._installed and inductor is not None:
            self._installed = True
            self._install(inductor)

    def _install(self, inductor: Any) -> None:
        raise NotImplementedError


class StableStrides(_Lowering):
    """How inductor lowers an operator where sizes depend on data, as that of ``x[mask]`` does.

    Its code is for the strides that the fake kernel names, which are those at almost any size. But
    a size that turns out to be 1 may change them: layouts that differ in where this dimension is
    are one then, and an elementwise kernel keeps the layout on which its inputs agree. Where that
    might be, the kernel is given contiguous inputs, of which it makes contiguous outputs.
    """

    def _install(self, inductor: Any) -> None:
        if self._op in inductor.lowerings:
            return
        from torch._inductor.virtualized import V

        # As inductor does by itself when it first meets an operator.
        tag = inductor.get_layout_constraint_tag(self._op, with_default=True)
        constraint = inductor.tag_to_layout_constraint(tag)
        inductor.make_fallback(self._op, constraint, warn=False, override_decomp=True)
        fallback = inductor.lowerings[self._op]

        @functools.wraps(fallback)
        def lower(*args: Any, **kwargs: Any) -> Any:
            node = V.graph.current_node
            if node.target is self._op and _strides_may_depend_on_data(node):
                args, kwargs = inductor.require_contiguous_strides(node, *args, **kwargs)
            return fallback(*args, **kwargs)

        inductor.lowerings[self._op] = lower


def _strides_may_depend_on_data(node: Node) -> bool:
    """Whether sizes depend on data, and outputs might have other strides where one of them is 1.

    Not where the dimensions of each input lie one within the other, as those of contiguous tensors
    and of parts of such, or are expanded: outputs are contiguous then. Nor where all are dense in
    one layout. An input of fewer dimensions than others has no say.
    """
    values = map_arg((node.args, node.kwargs), lambda argument: argument.meta.get("val"))
    tensors = [value for value in pytree.tree_leaves(values) if isinstance(value, Tensor)]
    if not any(map(depends_on_data, tensors)):
        return False
    most = max(tensor.dim() for tensor in tensors)
    tensors = [tensor for tensor in tensors if tensor.dim() == most]
    if all(map(_lies_in_order, tensors)):
        return False
    return not (_is_dense(tensors[0]) and all(_lies_as(tensors[0], t) for t in tensors))


def _lies_in_order(tensor: Tensor) -> bool:
    strides = [stride for stride in tensor.stride() if not _is_true(stride == 0)]
    return all(_is_true(outer >= inner) for outer, inner in itertools.pairwise(strides))


def _lies_as(tensor: Tensor, other: Tensor) -> bool:
    pairs = zip((*tensor.shape, *tensor.stride()), (*other.shape, *other.stride()), strict=True)
    return all(_is_true(a == b) for a, b in pairs)


def _is_dense(tensor: Tensor) -> bool:
    left = list(range(tensor.dim()))
    expected: Any = 1
    while inner := [dim for dim in left if _is_true(tensor.stride(dim) == expected)]:
        left.remove(inner[0])
        expected = expected * torch.sym_max(1, tensor.shape[inner[0]])  # as in strides
    return not left


def _is_true(condition: Any) -> bool:
    """Whether a comparison of sizes holds whatever they are: no guard may come of it any more."""
    # Imported where it is needed: it brings sympy, and half a second.
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)


class LoweringOfWrites(_Lowering):
    """How inductor, the default backend of torch.compile, lowers an operator that mutates.

    By itself it gets three things wrong, with operators of ``torch.library.custom_op`` too. It
    computes values that were read from a tensor before the write when they are used, which may be
    after it. It takes a copy that was made before the write for superfluous
    (pytorch/pytorch#198031). And where what was written is saved for backward, it takes that for a
    tensor of its own, although it is an argument of the compiled function by then, and lets the
    backward put other values there.
    """

    def __init__(self, op: OpOverload, signature: Signature) -> None:
        super().__init__(op)
        self._signature = signature

    def _install(self, inductor: Any) -> None:
        from torch._inductor.virtualized import V

        fallback = inductor.fallback_handler(self._op, add_to_fallback_set=False)

        def lower(*args: Any, **kwargs: Any) -> Any:
            inputs, keyword_only = self._signature.fill_defaults(args, kwargs)
            values = pytree.tree_leaves(self._signature.written_values(inputs, keyword_only))
            written = {id(value): value for value in values if value is not None}
            for tensor in written.values():
                tensor.realize()
            buffers = {tensor.get_name() for tensor in written.values()}

            def read(value: Any) -> Any:
                if isinstance(value, (list, tuple)):
                    return [read(element) for element in value]
                if id(value) in written or not isinstance(value, inductor.TensorBox):
                    return value
                value.realize()
                if value.get_name() not in buffers:
                    return value
                copy = inductor.clone(value)
                copy.realize()
                return copy

            inputs = tuple(map(read, inputs))
            keyword_only = {name: read(value) for name, value in keyword_only.items()}
            for buffer in buffers:
                V.graph.mark_buffer_mutated(buffer)  # computes what reads it, before the write
            return fallback(*inputs, **keyword_only)

        inductor.add_needs_realized_inputs(self._op)
        inductor.register_lowering(self._op, type_promotion_kind=None)(lower)
        _keep_saved_tensors(self._op)


def _keep_saved_tensors(op: OpOverload) -> None:
    """Lets a backward reuse the memory of no saved tensor where its forward writes to an input.

    Said where AOTAutograd divides the graph in two, for every forward that it traces: inductor
    lowers none that it finds in its cache.
    """
    from torch._functorch._aot_autograd import graph_compile

    collect = graph_compile.collect_bw_donated_buffer_idxs

    def collect_unless_written(
        fw_module: GraphModule, bw_module: GraphModule, fw_metadata: Any
    ) -> list[int]:
        if _writes_to_input(op, fw_module):
            return []
        return collect(fw_module, bw_module, fw_metadata)

    graph_compile.collect_bw_donated_buffer_idxs = collect_unless_written


def _writes_to_input(op: OpOverload, graph: GraphModule) -> bool:
    """Whether an operator, which has been functionalised, writes to an input, or a view of one.

    Or may do so: of older means of functionalising nothing says what a tensor is a view of.
    """
    return any(
        "_all_bases" not in node.kwargs
        or any(base.op == "placeholder" for base in node.kwargs["_all_bases"])
        for node in graph.graph.nodes
        if op in node.args
    )

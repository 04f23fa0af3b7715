"""How inductor lowers operators that write to their arguments."""

from __future__ import annotations

import sys
from typing import Any

from torch._ops import OpOverload
from torch.fx import GraphModule

from extension_cpp.registration.signature import Signature


class Lowering:
    """How inductor, the default backend of torch.compile, lowers an operator that mutates.

    By itself it gets three things wrong, with operators of ``torch.library.custom_op`` too. It
    computes values that were read from a tensor before the write when they are used, which may be
    after it. It takes a copy that was made before the write for superfluous
    (pytorch/pytorch#198031). And where what was written is saved for backward, it takes that for a
    tensor of its own, although it is an argument of the compiled function by then, and lets the
    backward put other values there.
    """

    def __init__(self, op: OpOverload, signature: Signature) -> None:
        self._op = op
        self._signature = signature
        self._installed = False

    def install(self) -> None:
        """Tells inductor, if it is there: it is loaded before torch.compile traces anything."""
        inductor = sys.modules.get("torch._inductor.lowering")
        if self._installed or inductor is None:
            return
        self._installed = True
        from torch._inductor.virtualized import V

        fallback = inductor.fallback_handler(self._op, add_to_fallback_set=False)

        def lower(*args: Any, **kwargs: Any) -> Any:
            inputs, keyword_only = self._signature.fill_defaults(args, kwargs)
            written = {
                id(tensor): tensor
                for tensor in self._signature.written_values(inputs, keyword_only)
            }
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

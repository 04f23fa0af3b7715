"""Operators on DTensor: importing this module is all there is to do.

    import extension_cpp.distributed

    x = distribute_tensor(x, mesh, [Shard(0)])
    y = fused_op(x, bias)  # each device its rows, with nothing to send

DTensor divides a call of an operator among devices where it knows how, and of these operators it
knows it from here: from their lines of shapes, and from what `register_sharding` says besides in
their `ops.py`. What is divided otherwise is redistributed first, as for PyTorch's own operators;
what is written to is not, and such a call raises. Without the import every call of an operator on a
DTensor raises; with it, those of operators with keyword-only tensors still do. Operators that are
imported later need `apply_rules()` once more.
"""

from extension_cpp.registration.sharding import apply_rules as apply_rules

apply_rules()

"""The public operators, one import line each."""

from extension_cpp.operators.fused_op.ops import fused_op as fused_op

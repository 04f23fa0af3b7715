"""The public modules, one import line each."""

from extension_cpp.operators.add_layer_norm.module import AddLayerNorm as AddLayerNorm
from extension_cpp.operators.add_rms_norm.module import AddRMSNorm as AddRMSNorm
from extension_cpp.operators.bn_relu.module import ConvBnRelu as ConvBnRelu
from extension_cpp.operators.fused_layer_norm.module import FusedLayerNorm as FusedLayerNorm
from extension_cpp.operators.fused_op.module import FusedOp as FusedOp
from extension_cpp.operators.softmax_cross_entropy.module import (
    SoftmaxCrossEntropyLoss as SoftmaxCrossEntropyLoss,
)
from extension_cpp.operators.swiglu.module import SwiGLU as SwiGLU

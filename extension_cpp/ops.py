"""The public operators, one import line each."""

from extension_cpp.operators.add_layer_norm.ops import add_layer_norm as add_layer_norm
from extension_cpp.operators.add_rms_norm.ops import add_rms_norm as add_rms_norm
from extension_cpp.operators.affine.ops import affine as affine
from extension_cpp.operators.bn_relu.ops import bn_relu as bn_relu
from extension_cpp.operators.fused_layer_norm.ops import fused_layer_norm as fused_layer_norm
from extension_cpp.operators.fused_op.ops import fused_op as fused_op
from extension_cpp.operators.linear_scan.ops import linear_scan as linear_scan
from extension_cpp.operators.myadd_out.ops import myadd_out as myadd_out
from extension_cpp.operators.mymul.ops import mymul as mymul
from extension_cpp.operators.mymuladd.ops import mymuladd as mymuladd
from extension_cpp.operators.reduce_sum.ops import reduce_sum as reduce_sum
from extension_cpp.operators.relu.ops import relu as relu
from extension_cpp.operators.softmax_cross_entropy.ops import (
    softmax_cross_entropy as softmax_cross_entropy,
)
from extension_cpp.operators.square.ops import square as square
from extension_cpp.operators.swiglu.ops import swiglu as swiglu
from extension_cpp.operators.vector_add.ops import vector_add as vector_add

"""The public interface, as one expectation: a change of it shows in review.

After a change that is meant: EXPECTTEST_ACCEPT=1 make test TESTS=tests/test_schemas.py
"""

import torch
from expecttest import assert_expected_inline

import extension_cpp.ops  # noqa: F401  (loads the operators)

NAMESPACE = "extension_cpp"


def test_schemas():
    schemas = sorted(
        str(schema).removeprefix(f"{NAMESPACE}::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith(f"{NAMESPACE}::")
    )
    assert_expected_inline(
        "\n".join(schemas) + "\n",
        """\
add_layer_norm(Tensor input, Tensor residual, Tensor? weight=None, Tensor? bias=None, float eps=1.0000000000000001e-05) -> (Tensor, Tensor, Tensor, Tensor)
add_layer_norm_backward(Tensor grad_output, Tensor grad_sum, Tensor sum, Tensor mean, Tensor rstd, Tensor? weight=None, Tensor? bias=None) -> (Tensor, Tensor, Tensor)
add_layer_norm_input_backward(Tensor grad_output, Tensor grad_sum, Tensor sum, Tensor mean, Tensor rstd, Tensor? weight=None) -> Tensor
add_rms_norm(Tensor input, Tensor residual, Tensor? weight=None, float eps=9.9999999999999995e-07) -> (Tensor, Tensor, Tensor)
add_rms_norm_backward(Tensor grad_output, Tensor? grad_sum, Tensor sum, Tensor rstd, Tensor? weight=None) -> (Tensor, Tensor)
add_rms_norm_input_backward(Tensor grad_output, Tensor? grad_sum, Tensor sum, Tensor rstd, Tensor? weight=None) -> Tensor
affine(Tensor a, Tensor x, Tensor b) -> Tensor
affine_backward(Tensor grad_output, Tensor a, Tensor x, Tensor? b=None) -> (Tensor, Tensor, Tensor)
bn_relu(Tensor input, Tensor weight, Tensor bias, Tensor running_mean, Tensor running_var, float eps=1.0000000000000001e-05) -> Tensor
bn_relu_backward(Tensor grad_output, Tensor input, Tensor weight, Tensor bias, Tensor running_mean, Tensor running_var, float eps=1.0000000000000001e-05) -> (Tensor, Tensor, Tensor)
bn_relu_input_backward(Tensor grad_output, Tensor input, Tensor weight, Tensor bias, Tensor running_mean, Tensor running_var, float eps=1.0000000000000001e-05) -> Tensor
fused_layer_norm(Tensor input, Tensor? weight=None, Tensor? bias=None, float eps=1.0000000000000001e-05) -> (Tensor, Tensor, Tensor)
fused_layer_norm_backward(Tensor grad_output, Tensor input, Tensor mean, Tensor rstd, Tensor? weight=None, Tensor? bias=None) -> (Tensor, Tensor, Tensor)
fused_layer_norm_input_backward(Tensor grad_output, Tensor input, Tensor mean, Tensor rstd, Tensor? weight=None) -> Tensor
fused_op(Tensor input, Tensor bias, float scale=1.) -> Tensor
fused_op_backward(Tensor grad_output, Tensor output, float scale=1.) -> (Tensor, Tensor)
linear_scan(Tensor decay, Tensor input, Tensor? initial=None, int dim=-1) -> Tensor
linear_scan_backward(Tensor grad_output, Tensor decay, Tensor output, Tensor? initial=None, int dim=-1) -> (Tensor, Tensor, Tensor)
myadd_out(Tensor a, Tensor b, Tensor(a!) out) -> ()
mymul(Tensor a, Tensor b) -> Tensor
mymul_backward(Tensor grad_output, Tensor a, Tensor b) -> (Tensor, Tensor)
mymul_factor_backward(Tensor grad_output, Tensor other, Tensor factor) -> Tensor
mymuladd(Tensor a, Tensor b, float c) -> Tensor
reduce_sum(Tensor input, int[]? dim=None, bool keepdim=False) -> Tensor
relu(Tensor input) -> Tensor
relu_backward(Tensor grad_output, Tensor output) -> Tensor
softmax_cross_entropy(Tensor logits, Tensor target, int ignore_index=-100) -> (Tensor, Tensor)
softmax_cross_entropy_backward(Tensor grad_loss, Tensor logits, Tensor target, Tensor logsumexp, int ignore_index=-100) -> Tensor
square(Tensor input) -> Tensor
square_backward(Tensor grad_output, Tensor input) -> Tensor
swiglu(Tensor gate, Tensor up) -> Tensor
swiglu_backward(Tensor grad_output, Tensor gate, Tensor up) -> (Tensor, Tensor)
vector_add(Tensor a, Tensor b) -> Tensor
""",
    )

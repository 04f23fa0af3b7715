"""templates/derive: gradients that are made of a result, or are those of several tensors."""

import pytest
import torch
from definitions import written
from derive.assemble import planned, texts
from derive.definition import read

HEAD = """
import torch
import torch.nn.functional as F
from torch import Tensor


def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
"""


@pytest.fixture
def backward(tmp_path):
    """What the backward operator of a definition is given, its line of shapes, what is saved."""

    def of(*lines, total="h"):
        path = tmp_path / "definition.py"
        lines = (f"{total} = x + y", *lines)
        path.write_text(HEAD + "".join(f"    {line}\n" for line in lines))
        plan = planned(read(f"{path}:f"))
        (operator,) = plan.backwards
        return operator.given, operator.line, plan.saved

    return of


def test_a_sum_that_is_a_result_is_read_in_place_of_the_summands():
    files = written("residual_step")
    cpp = files["residual_step.cpp"]
    assert "residual_step_backward(Tensor grad_output0, Tensor grad_total, Tensor weight, " in cpp
    assert "*rows n, *rows n, n, *rows n -> *rows n, n" in cpp
    ops = files["ops.py"]
    assert "    _, _, weight = inputs\n    _, total = output\n" in ops
    assert "ctx.save_for_backward(weight, total)" in ops


def test_tensors_with_one_gradient_have_it_computed_once():
    ops = written("residual_step")["ops.py"]
    assert "return grad_x, grad_x, grad_weight\n" in ops
    cpp = written("layer_norm_of_sum")["layer_norm_of_sum.cpp"]
    assert "T* grad_x;" in cpp
    assert "grad_residual" not in cpp
    assert "grad_shift" not in cpp
    assert (
        "return grad_x, grad_x, grad_x, grad_weight, grad_bias"
        in (written("layer_norm_of_sum")["ops.py"])
    )


def test_where_tensors_broadcast_each_has_a_sum_of_its_own(backward):
    given, line, saved = backward("return torch.tanh(h) * h, h")
    assert given == ["grad_output0", "grad_h", "h", "x", "y"]
    assert line == "..., ..., ..., ..., ... -> =x, =y"
    assert saved == ["h"]
    ops = written("silu_of_sum")["ops.py"]
    assert "x = stand_in(grad_output0, ctx.shapes[0])" in ops
    # But those of one shape.
    assert "y = to_sum(grad_output0, ctx.shapes[1], unless=ctx.shapes[0])" in ops
    assert "return grad_x, grad_x if y is None else grad_y" in ops
    assert "sum_to_size(x.shape), None if y is None else " in ops
    cpp = written("silu_of_sum")["silu_of_sum.cpp"]
    assert "Tensor total, Tensor x, Tensor? y) -> (Tensor, " in cpp
    assert "elementwise_with_sums<SiluOfSumBackward, 1>(" in cpp


def test_what_is_read_has_a_gradient_of_its_own(backward):
    given, line, _ = backward("return torch.exp(h), h")
    assert given == ["grad_output0", "grad_h", "x", "y"]
    assert line == "..., ..., ..., ... -> =x, =y"


@pytest.mark.parametrize(
    "lines",
    [
        # What is left of a number less another is rounding, perhaps, and so is a sum of both signs;
        # an exponential of 100, or an extreme of what was rounded, is another.
        ["return (h - h.mean(-1, keepdim=True)).square() * 2, h"],
        ["return (h - 100).square(), h"],
        ["return 1 / (1 + h), h"],
        ["return torch.log1p(h), h"],
        ["return y / h.mean(-1, keepdim=True), h"],
        ["return torch.pow(2.0, h), h"],
        ["return 1 / (1 - torch.sigmoid(h)), h"],
        ["return F.layer_norm(h, h.shape[-1:]), h"],
        ["return torch.softmax(h, -1), h"],
        ["return torch.exp(h), h"],
        ["return torch.relu(h - 1), h"],
        ["return h / h.amax(-1, keepdim=True), h"],
    ],
)
def test_what_rounding_may_change_is_computed_of_the_summands(lines, backward):
    given, _, _ = backward(*lines)
    assert {"x", "y"} <= {*given}
    assert "h" not in given


@pytest.mark.parametrize(
    "line",
    [
        "return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 0.1), h",
        "return F.silu(h), h",
        "return torch.tanh(h), h",
        "return h * h * h, h",
    ],
)
def test_what_rounding_changes_by_its_own_size_is_read(line, backward):
    given, _, _ = backward(line)
    assert "h" in given


def test_each_has_its_own_condition():
    ops = written("norm_with_two_shifts")["ops.py"]
    assert "return grad_x, grad_a if ctx.has_a else None, grad_a if ctx.has_b else None" in ops
    ops = " ".join(written("shared_by_switch")["ops.py"].split())
    assert "(grad_x if y is None else grad_y) if ctx.flag else None" in ops


def test_zeros_are_like_what_is_kept():
    ops = written("norms_of_wide")["ops.py"]
    assert "grad_output0 = torch.zeros_like(state) if grad_output0 is None" in ops
    assert "ctx.save_for_backward(state, row_mean, row_rsqrt)\n    ctx.dtype = x.dtype" in ops


def test_nothing_is_kept_that_is_no_less_to_read(backward):
    # Both summands are wanted.
    given, _, _ = backward("return torch.tanh(h) * x * y, h")
    assert given == ["grad_output0", "grad_h", "x", "y"]


def test_a_result_whose_name_an_argument_may_not_have(backward):
    given, _, saved = backward(
        "return sum * torch.rsqrt(sum.square().mean(-1, keepdim=True) + 0.1), sum", total="sum"
    )
    assert given == ["grad_output0", "grad_sum", "output1"]
    assert saved == ["output1"]


def test_a_result_that_is_called_as_a_gradient(backward):
    given, _, _ = backward("h = torch.tanh(grad_h)", "return h, grad_h", total="grad_h")
    assert given[:3] == ["grad_h", "grad_grad_h", "output1"]


def test_of_equal_results_the_exact_one_is_read(tmp_path):
    path = tmp_path / "definition.py"
    path.write_text(
        "import torch\nfrom torch import Tensor\n\n\n"
        "def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:\n"
        "    h = x.float() + y.float()\n"
        "    return h.to(x.dtype), torch.tanh(h).to(x.dtype), h\n"
    )
    (operator,) = planned(read(f"{path}:f")).backwards
    assert "*shape:sum" in operator.line or "...:sum" in operator.line
    k = operator.given.index(next(n for n in operator.given if not n.startswith("grad_")))
    assert operator.line.split(", ")[k].endswith(":sum")


def test_results_in_float32_are_as_they_were_computed():
    files = written("norm_and_total")
    cpp, ops = files["norm_and_total.cpp"], files["ops.py"]
    assert "*rows n:sum, *rows n:sum, *rows n, *rows:sum, *rows:sum, *rows n:sum -> " in cpp
    assert "says_dtype(x)" in cpp
    assert "PerElement" not in cpp[cpp.index("struct NormAndTotalBackward") :]
    # The first of a row is that of both.
    assert "row.first() + row.first(residual)" in cpp
    assert "ctx.save_for_backward(mean, row_rsqrt, total)\n    ctx.dtype = x.dtype\n" in ops
    assert "grad_total = torch.zeros_like(total) if grad_total is None else grad_total" in ops
    assert "x = stand_in(grad_output0, grad_output0.shape, ctx.dtype)" in ops


def test_what_is_there_for_its_dtype_is_not_kept():
    ops = written("softmax_left_in_float32")["ops.py"]
    assert "ctx.save_for_backward(output)\n    ctx.dtype = x.dtype\n" in ops
    scope = {"torch": torch}
    source = ops[ops.index("def _backward_in_torch") : ops.index("registration.register_fake")]
    exec(source, scope)
    output = torch.softmax(torch.randn(3, 8), -1)
    x = torch.empty((), dtype=torch.bfloat16).expand(3, 8)
    assert scope["_backward_in_torch"](torch.randn(3, 8), x, output).dtype == torch.bfloat16


def test_the_gradient_of_a_result_that_is_not_used_has_its_dtype(tmp_path):
    path = tmp_path / "definition.py"
    path.write_text(
        "from typing import Annotated\n\nimport torch\nfrom torch import Tensor\n\n\n"
        "def f(x: Tensor, r: Annotated[Tensor, torch.float32]) -> tuple[Tensor, Tensor]:\n"
        "    h = x + r\n"
        "    centered = h - h.mean(-1, keepdim=True)\n"
        "    rstd = torch.rsqrt(centered.square().mean(-1, keepdim=True) + 0.1)\n"
        "    return (centered * rstd).to(x.dtype), h\n"
    )
    ops = texts(planned(read(f"{path}:f")))["ops.py"]
    assert "grad_output0 = torch.zeros_like(h, dtype=ctx.dtype) if grad_output0 is None" in ops
    assert "grad_h = torch.zeros_like(h) if grad_h is None" in ops
    assert "ctx.dtype = x.dtype" in ops
    assert "x, " not in ops[ops.index("save_for_backward") :].partition("\n")[0]

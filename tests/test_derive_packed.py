"""templates/derive: functions of tensors that hold several side by side.

test_derive.py derives and compares all of derived_packed_functions.py; test_derive_built.py builds
one.
"""

import itertools
import re
import sys

import derived_packed_functions
import pytest
from expecttest import assert_expected_inline
from scratch import ROOT

sys.path.insert(0, str(ROOT / "templates"))

import repository
from derive.assemble import assemble, planned, shapes_in_words, texts
from derive.definition import read
from derive.refusal import NotDerived
from formatting import format_text

HEAD = """
import torch
import torch.nn.functional as F
from torch import Tensor

"""
X = "def f(x: Tensor) -> Tensor:\n    "
XY = "def f(x: Tensor, y: Tensor) -> Tensor:\n    "


@pytest.fixture
def define(tmp_path):
    """Writes a definition's file, and returns what is read of it."""
    count = itertools.count()

    def write(source, shapes=None):
        path = tmp_path / f"definition_{next(count)}.py"
        path.write_text(HEAD + source)
        return read(f"{path}:f", shapes)

    return write


@pytest.fixture
def plan():
    """The plan of one of the list."""
    return lambda name: planned(read(f"{derived_packed_functions.__file__}:{name}"))


def lines(plan):
    return [op.line for op in plan.declared]


# ----- what takes tensors apart, and puts them together

OF_HALVES = [
    "a, b = x.chunk(2, -1)",
    "a, b = x.chunk(2, dim=-1)",
    "a, b = torch.chunk(x, 2, dim=-1)",
    "a, b = torch.chunk(input=x, chunks=2, dim=-1)",
    "a, b = x.tensor_split(2, dim=-1)",
    "a, b = x.split(x.shape[-1] // 2, dim=-1)",
    "a, b = torch.split(x, x.size(-1) // 2, -1)",
    "n = x.shape[-1] // 2\n    a, b = x.split([n, n], dim=-1)",
    "a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]",
    "n = x.size(-1)\n    a, b = x[..., : n // 2], x[..., n // 2 : n]",
    "n = x.shape[-1] // 2\n    a, b = x[..., :-n], x[..., -n:]",
]


@pytest.mark.parametrize("halves", OF_HALVES)
def test_halves_are_what_they_are_however_they_are_taken(halves, define):
    found, plain = (
        planned(define(f"{X}{how}\n    return torch.exp(a) * b"))
        for how in (halves, "a, b = x.chunk(2, -1)")
    )
    assert [v.forward for v in found.formulas] == [v.forward for v in plain.formulas]
    assert lines(found) == ["*rows 2n -> *rows n", "*rows n, *rows 2n -> *rows 2n"]


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("a, b, c = x.chunk(3, -1)\n    return a * b * c * y", "... 3n, ... n -> ... n"),
        ("a, b = x.chunk(2, -1)\n    return a * b * F.glu(y)", "... 2n, ... 2n -> ... n"),
        ("a, b = (x * y).chunk(2, -1)\n    return a * b", "... 2n, ... 2n -> ... n"),
        ("a, b = (x * y.exp()).chunk(2, -1)\n    return a - b", "... 2n, ... 2n -> ... n"),
        ("a, b = x.chunk(2, -1)\n    return torch.cat((b, a), -1) * y", "... 2n, ... 2n -> ... 2n"),
        (
            "a, b = x.chunk(2, -1)\n    return torch.cat((b * y, a - y), -1)",
            "... 2n, ... n -> ... 2n",
        ),
        ("return torch.cat((x * y, x - y, x + y), dim=-1)", "... n, ... n -> ... 3n"),
        ("a, b = torch.cat((x, y), -1).chunk(2, -1)\n    return a * b", "*shape, *shape -> *shape"),
        ("a, b, c, d = x.chunk(4, -1)\n    return a * d + y * b + c", "... 4n, ... n -> ... n"),
        # Of an argument's part, and of what has other parts already.
        (
            "a, b = x.chunk(2, -1)\n    c, d = a.chunk(2, -1)\n    return c * d * y",
            "... 4n, ... n -> ... n",
        ),
        (
            "a, b = x.chunk(2, -1)\n    c, d, e = x.chunk(3, -1)\n    return a * b * y",
            "... 6n, ... 3n -> ... 3n",
        ),
        ("a = x[..., x.shape[-1] // 4 :]\n    return a * y", "... 4n, ... 3n -> ... 3n"),
        # What is one number is no tensor.
        (
            "a, b = x.chunk(2, -1)\n    return a * torch.tensor(2.0) * b + y",
            "... 2n, ... n -> ... n",
        ),
    ],
)
def test_what_meets_parts_has_parts(body, line, define):
    assert lines(planned(define(f"{XY}{body}")))[0] == line


def test_a_size_that_is_called_as_an_argument(define):
    source = "def f(x: Tensor, n: int) -> Tensor:\n    a, b = x.chunk(2, -1)\n    return a * b * n"
    assert lines(planned(define(source)))[0] == "*rows 2n_ -> *rows n_"


def test_what_is_put_together_is_written_apart_from_what_it_is_made_of(define):
    source = (
        f"{XY}z = torch.cat((x.exp(), y), -1)\n    z += 1\n    return z * torch.cat((y, y), -1)"
    )
    formulas = planned(define(source)).formulas
    (_, second) = formulas[0].forward
    assert repr(second) == "mul(add(y, 1.0), y)"


def test_parts_have_the_names_that_their_author_gives_them(plan, define):
    assert plan("packed_swiglu").apart.parts == {"x": ["gate", "up"]}
    # Of two tensors a helper has one name.
    assert plan("rotary_of_both").apart.parts["q"] == ["q1", "q2"]
    source = "def f(x: Tensor, x1: Tensor) -> Tensor:\n    return F.glu(x) * x1"
    assert planned(define(source)).apart.parts == {"x": ["x_1", "x_2"]}
    for name in ("torch", "columns", "grad_y", "_a", "y"):
        taken = f"{name}_" if name == "torch" else name
        body = f"{name}, b = x.chunk(2, -1)\n    return {name} * b".replace("torch", taken)
        found = planned(define(f"def f(x: Tensor) -> Tensor:\n    {body}")).apart.parts["x"]
        assert found == ([taken, "b"] if name in ("torch", "y", "grad_y") else ["x1", "x2"])


@pytest.mark.parametrize("name", ["a1", "parts", "grad_output", "output_1", "results"])
def test_arguments_may_be_called_as_parts_are_or_are_refused(name, define):
    source = f"def f(x: Tensor, {name}: Tensor) -> Tensor:\n    a, b = x.chunk(2, -1)\n"
    source += f"    return torch.cat((a * {name}, b * {name}), -1)"
    if name in ("grad_output", "output_1"):
        with pytest.raises(NotDerived, match="is used by the generated code"):
            planned(define(source))
    else:
        assert lines(planned(define(source)))[0] == "... 2n, ... n -> ... 2n"


def test_the_guides_example(tmp_path):
    text = (ROOT / "templates" / "README.md").read_text()
    (source,) = re.findall(r"^```python\n(# rotary.py\n.*?)^```$", text, re.M | re.S)
    path = tmp_path / "rotary.py"
    path.write_text(source)
    plan = planned(read(f"{path}:rotary"))
    assert lines(plan)[0] == "... 2n, ... 2n, ... 2n -> ... 2n"
    (own,) = planned(read(f"{derived_packed_functions.__file__}:rotary_embedding")).formulas
    assert plan.formulas[0].forward == own.forward


# ----- what is refused

ROWS = "of which rows are copied, or start from --template kernel"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("a, b = x.chunk(2)\n    return a * b", "chunk along a dimension that is not the last"),
        ("return torch.cat((x, x))", "cat along a dimension that is not the last"),
        (
            "a, b = x.split(64, -1)\n    return a * b",
            "a part of so many columns is not derived; say",
        ),
        ("return x[..., : x.shape[-1]] * 2", "is of as many columns as another tensor has"),
        ("return x[..., x.shape[-1] :] * 2", "a part of this has no columns"),
        ("a, b = x[..., ::2], x[..., 1::2]\n    return a * b", "these elements lie between others"),
        ("return torch.stack((x, x), -1)", "stack puts elements between others; return the parts"),
        (
            "n = x.shape[-1]\n    a, b = x.split([n // 2, n // 4], -1)\n    return a",
            "not all of it",
        ),
        ("a, b = x.softmax(-1).chunk(2, -1)\n    return a * b", f"softmax looks at whole.*{ROWS}"),
        ("a, b = x.chunk(2, -1)\n    return a * b.softmax(-1)", f"it looks at whole rows.*{ROWS}"),
        ("a, b = x.chunk(2, -1)\n    return a * b / x.shape[-1]", "it looks at whole rows"),
        ("a, *_ = x.chunk(9, -1)\n    return a", "'x' would have 9 parts, and there are at most 8"),
        ("a, b = x.chunk(2, -1)\n    return x * a", "'x' would have 16 parts"),
        ("return torch.cat((x, x > 0), -1)", "cat of tensors of several dtypes"),
        ("return torch.cat((x, torch.tensor(1.0)), -1)", "a tensor that is no argument"),
        ("a, b = x.chunk(2, -1)\n    return (a * b).view(-1)", "view changes a shape"),
        ("return x.unflatten(-1, (2, -1)).unbind(-2)[0]", "unflatten changes a shape"),
        ("a, b = x.chunk(2, -1)\n    return x * torch.rand_like(x)", "draws random numbers"),
    ],
)
def test_what_is_refused_names_the_line(body, said, define):
    with pytest.raises(NotDerived, match=said) as refusal:
        planned(define(X + body))
    assert re.search(r"definition_0\.py:", str(refusal.value))


def test_parts_are_drawn_from_what_all_of_them_take(define):
    body = "a, b = x.chunk(2, -1)\n    return torch.acosh(a) * torch.{0}(b)"
    assert planned(define(X + body.format("log"))).verified.ranges == {"x": (1.1, 3.0)}
    with pytest.raises(NotDerived, match="no numbers are in the domain of all parts of 'x'; pass"):
        planned(define(X + body.format("atanh")))


def test_a_result_that_has_parts_by_a_switch_is_refused(define):
    source = "def f(x: Tensor, flag: bool) -> Tensor:\n    y = x.exp()\n"
    source += "    return torch.cat((y, x), -1) if flag else y"
    with pytest.raises(NotDerived, match="the shape or dtype of a result depends on a switch"):
        planned(define(source))


def test_shapes_are_said_by_the_definition(define):
    with pytest.raises(NotDerived, match="its definition says the shapes, and --shapes is for"):
        planned(define(f"{X}a, b = x.chunk(2, -1)\n    return a * b", "*rows n -> *rows n"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("packed_swiglu", "`x` has 2n columns, the result has n columns."),
        ("three_gates", "`x` has 3n columns, `c` and the results have n columns. Their other"),
        ("rotary_of_both", "`sin` and the results have 2n columns. Their other dimensions are the"),
        ("sum_and_difference", "`output1` have n columns, `output0` has 2n columns. Their other"),
    ],
)
def test_what_is_made_says_its_shapes(name, said, plan):
    assert said in shapes_in_words(plan(name))


# ----- what is printed


def printed(plan, file):
    text = texts(plan)[file]
    return format_text(file, text.replace(repository.PACKAGE, "package"))


def test_a_gate_in_cpp(plan):
    _, _, hosts = printed(plan("packed_swiglu"), "packed_swiglu.cpp").partition("};\n\nTensor")
    assert_expected_inline(
        hosts.partition("TORCH_LIBRARY")[0],
        """\
 packed_swiglu(const Tensor& x) {
  const CheckedInputs inputs = kPackedSwiglu.check(x);
  const auto [gate, up] = parts<2>(x);
  Tensor output = inputs.new_output();
  elementwise_into<PackedSwiglu>(output, gate, up);
  return output;
}

Tensor packed_swiglu_backward(const Tensor& grad_output, const Tensor& x) {
  const CheckedInputs inputs = kPackedSwigluBackward.check(grad_output, x);
  const auto [gate, up] = parts<2>(x);
  Tensor grad_x = inputs.new_output();
  auto results = parts<2>(grad_x);
  elementwise_into<PackedSwigluBackward>(results, grad_output, gate, up);
  return grad_x;
}

""",
    )


def test_optional_parts_in_cpp(plan):
    text = printed(plan("biased_gate"), "biased_gate.cpp")
    hosts = text[text.index("\nTensor biased_gate(") : text.index("TORCH_LIBRARY")]
    assert_expected_inline(
        hosts,
        """\

Tensor biased_gate(const Tensor& x, const Tensor& mask, const std::optional<Tensor>& bias, bool tanh) {
  const CheckedInputs inputs = kBiasedGate.check(x, mask, bias);
  const auto [gate, up] = parts<2>(x);
  Tensor output = inputs.new_output();
  if (bias.has_value()) {
    const auto [bias1, bias2] = parts<2>(*bias);
    elementwise_into<BiasedGate>(output, gate, up, mask, bias1, bias2, tanh);
  } else {
    elementwise_into<BiasedGateWithoutBias>(output, gate, up, mask, tanh);
  }
  return output;
}

std::tuple<Tensor, Tensor> biased_gate_backward(
    const Tensor& grad_output, const Tensor& x, const Tensor& mask, const Tensor& bias, bool tanh) {
  const CheckedInputs inputs = kBiasedGateBackward.check(grad_output, x, mask, bias);
  const auto [gate, up] = parts<2>(x);
  const auto [bias1, bias2] = parts<2>(bias);
  Tensor grad_x = inputs.new_output(0);
  Tensor grad_bias = inputs.new_output(1);
  auto results = joined(parts<2>(grad_x), parts<2>(grad_bias));
  elementwise_with_sums_into<BiasedGateBackward>(
      kBiasedGateBackward, results, grad_output, gate, up, mask, bias1, bias2, tanh);
  return {grad_x, grad_bias};
}

Tensor biased_gate_without_bias_backward(const Tensor& grad_output, const Tensor& x, const Tensor& mask, bool tanh) {
  const CheckedInputs inputs = kBiasedGateWithoutBiasBackward.check(grad_output, x, mask);
  const auto [gate, up] = parts<2>(x);
  Tensor grad_x = inputs.new_output();
  auto results = parts<2>(grad_x);
  elementwise_with_sums_into<BiasedGateWithoutBiasBackward>(
      kBiasedGateWithoutBiasBackward, results, grad_output, gate, up, mask, tanh);
  return grad_x;
}

""",
    )


def test_a_rotation_in_python(plan):
    text = printed(plan("rotary_embedding"), "ops.py")
    assert_expected_inline(
        text[text.index("def rotary") : text.index("registration.")],
        """\
def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    \"\"\"Computes rotary_embedding of each element.

    Half types are computed in float32 and rounded once.

    Args:
        x: `(..., 2 * n)`, `x1` and `x2` side by side; float64, float32, float16 or bfloat16, on CPU
            or CUDA.
        cos: `(..., 2 * n)`, `cos1` and `cos2` side by side, of which the dimensions before the last
            broadcast; dtype and device of `x`.
        sin: `(..., 2 * n)`, `sin1` and `sin2` side by side, of which the dimensions before the last
            broadcast; dtype and device of `x`.

    Returns:
        A contiguous tensor `(..., 2 * n)`, of the common shape. Differentiable to any order, in
        reverse and forward mode. The gradient of an input that was broadcast is a deterministic
        sum, accumulated in float32 (float64 for float64).

    Raises:
        RuntimeError: a dtype, device or shape other than the above.
    \"\"\"
    return _ops.rotary_embedding(x, cos, sin)


def _setup_context(ctx, inputs, output):
    x, cos, sin = inputs
    ctx.save_for_backward(x, cos, sin)


def _backward(ctx, grad_output):
    x, cos, sin = ctx.saved_tensors
    return _ops.rotary_embedding_backward(grad_output, x, cos, sin)


def _backward_in_torch(grad_output, x, cos, sin):
    grad_output_1, grad_output_2 = grad_output.chunk(2, -1)
    x1, x2 = x.chunk(2, -1)
    cos1, cos2 = cos.chunk(2, -1)
    sin1, sin2 = sin.chunk(2, -1)
    grad_x = torch.cat(
        (grad_output_1 * cos1 + grad_output_2 * sin2, grad_output_2 * cos2 - grad_output_1 * sin1),
        -1,
    )
    grad_cos = torch.cat((grad_output_1 * x1, grad_output_2 * x2), -1)
    grad_sin = torch.cat((-(grad_output_1 * x2), grad_output_2 * x1), -1)
    return (
        grad_x.sum_to_size(x.shape),
        grad_cos.sum_to_size(cos.shape),
        grad_sin.sum_to_size(sin.shape),
    )


""",
    )


def test_samples_have_whole_parts(define):
    source = "def f(y: Tensor, x: Tensor) -> Tensor:\n    a, b = x.chunk(2, -1)\n    "
    text = assemble(define(f"{source}return torch.log(a) * b * y")).files["spec.py"]
    assert_expected_inline(
        text[text.index("# Where") :],
        """\
# Where it is defined.
def samples(make, shape):
    if shape:
        rows, n = shape[:-1], shape[-1]
        yield Sample(make((*rows, n), low=0.1, high=2.0), make((*rows, 2 * n), low=0.1, high=2.0))
        yield Sample(
            make((*rows, n), low=0.1, high=2.0), make((*rows[1:], 2 * n), low=0.1, high=2.0)
        )


spec = OpSpec(name="f", reference=f, samples=samples, autocast="promote")
""",
    )


def test_samples_have_columns_where_the_definition_needs_some(plan):
    """Of none, split makes one part."""
    text = texts(plan("biased_gate"))["spec.py"]
    assert "if shape and shape[-1] > 0 and shape[-1] % 2 == 0:" in text
    assert "samples" not in texts(plan("packed_swiglu"))["spec.py"]


def test_a_reference_of_primitive_operations(define):
    body = "a, b = x.chunk(2, -1)\n    return torch.cat((F.hardswish(a), b * y), -1)"
    text = assemble(define(XY + body)).files["spec.py"]
    assert_expected_inline(
        text[text.index("# Of prim") : text.index("spec =")],
        """\
# Of primitive operations: PyTorch's hardswish rounds its constants to float32 on CUDA.
def composed(x, y):
    a, b = x.chunk(2, -1)
    choice = torch.where(a + 3 > 6, 6, a + 3)
    choice2 = torch.where(choice < 0, 0, choice)
    return torch.cat((a * choice2 / 6, b * y), -1)


""",
    )

"""templates/derive: definitions that reduce over everything."""

import re

import pytest
from definitions import HEAD, PLACES, written
from derive.assemble import assemble, planned, texts
from derive.definition import read
from derive.refusal import NotDerived


@pytest.fixture
def define(tmp_path):
    def write(source):
        path = tmp_path / "definition.py"
        path.write_text(HEAD + source)
        return read(f"{path}:f")

    return write


def flat(text):
    return " ".join(text.split())


def test_the_line_says_what_is_one_number():
    cpp = written("dice_loss")["dice_loss.cpp"]
    assert '"*all, *all -> (), ():sum, ():sum"' in cpp
    assert '"(), *all, *all, ():sum, ():sum -> *all, *all"' in cpp
    assert '"*all, *all -> ():sum"' in written("mse_in_float32")["mse_in_float32.cpp"]
    assert '"*all -> *all, ()"' in written("clipped")["clipped.cpp"]


def test_sums_of_one_pass_and_what_is_made_of_them():
    cpp = flat(written("dice_loss")["dice_loss.cpp"])
    assert "totals_into<DiceLossSums>(sums, logits, target);" in cpp
    assert "Values<A, 3> operator()(A logits, A target) const" in cpp
    assert "elementwise_into<DiceLoss>(output, sums[0], sums[1], sums[2], smooth);" in cpp
    assert "SumType<A> overlap, SumType<A> total_sum, SumType<A> total_sum_2" in cpp


def test_a_sum_alone_is_the_result():
    cpp = flat(written("sum_of_all")["sum_of_all.cpp"])
    assert "std::array<Tensor, 1> sums{output}; totals_into<SumOfAllSums>(sums, x); return" in cpp
    assert "numel" not in cpp


def test_a_sum_that_is_two_results_is_rounded_after_it_is_kept(define):
    source = "def f(x: Tensor) -> tuple[Tensor, Tensor]:\n    return x.sum(), x.sum() + 0"
    cpp = flat(texts(planned(define(source)))["f.cpp"])
    assert "sums{new_sum(x)}; totals_into<FSums>(sums, x);" in cpp
    assert "elementwise_into<F>(output, sums[0]);" in cpp


def test_what_a_sum_is_made_of_is_found_before_it():
    """About the first element: of equal numbers nothing is left."""
    cpp = flat(written("standardized")["standardized.cpp"])
    calls = re.findall(r"(?:totals|elementwise)_into<Standardized(\w*)>", cpp)
    assert calls[:6] == ["Numbers", "Sums", "Numbers2", "Sums2", "Numbers3", ""]
    assert "const Tensor x_first = first_element(x);" in cpp
    # A mean that the backward is given goes where the operator returns it.
    assert "elementwise_into<StandardizedNumbers2>(output[1], numbers[0], sums[0], numel);" in cpp
    assert "totals_into<StandardizedSums2>(sums2, x, in_memory(output[1]));" in cpp


def test_elements_take_numbers_where_they_are_in_memory():
    cpp = flat(written("clipped")["clipped.cpp"])
    assert (
        "InMemory<A> total_choice; HOST_DEVICE A operator()(A grad) const { return grad * " in cpp
    )
    assert "elementwise_into<Clipped>(output[0], grad, in_memory(numbers[1]));" in cpp


def test_what_elements_are_divided_by(define):
    cpp = texts(planned(define("def f(x: Tensor) -> Tensor:\n    return x / x.sum()")))["f.cpp"]
    assert "return x / Divisor<A>(total_sum);" in cpp


def test_a_condition_of_all(define):
    source = "def f(x: Tensor, most: float) -> Tensor:\n    n = x.norm()\n"
    source += "    return torch.where(n > most, x * (most / n), x)"
    cpp = flat(texts(planned(define(source)))["f.cpp"])
    assert "A(total_above) != A(0) ? x * A(total_quotient) : x" in cpp
    assert "sqrt > most ? A(1) : A(0)" in cpp


def test_a_gradient_that_is_one_number_beside_one_that_is_not(define):
    source = "def f(x: Tensor, y: Tensor) -> Tensor:\n    return x.sum() + y.square().sum()"
    cpp = flat(texts(planned(define(source)))["f.cpp"])
    assert "elementwise_into<FBackwardFilled>(output[0], grad_output);" in cpp
    assert "elementwise_into<FBackward>(output[1], y, in_memory(" in cpp


def test_the_number_of_elements_alone(define):
    cpp = flat(
        texts(planned(define("def f(x: Tensor) -> Tensor:\n    return x * x.numel()")))["f.cpp"]
    )
    assert "const double numel = double(x.numel()); elementwise_into<F>(output, x, numel);" in cpp


def test_a_gradient_that_is_a_sum(define):
    """It has one for each element: what adds up to it is a tensor of its own."""
    source = "def f(x: Tensor, y: Tensor) -> Tensor:\n    return x * y.sum()"
    cpp = flat(texts(planned(define(source)))["f.cpp"])
    assert "sums{new_sum(grad_output), new_sum(grad_output)};" in cpp
    assert "elementwise_into<FBackwardFilled>(output[1], sums[" in cpp


def test_a_gradient_that_is_nothing_for_a_switch():
    cpp = flat(written("weighted_or_not")["weighted_or_not.cpp"])
    call = "elementwise_into<WeightedOrNotBackward>(output, x, target, in_memory(numbers[0]));"
    assert call in cpp
    assert "return {product, -product, A(0)};" in cpp


@pytest.mark.parametrize("name", ["new", "A", "Values", "InMemory", "HOST_DEVICE", "int64_t"])
def test_what_the_author_calls_a_number(name, define):
    source = f"def f(x: Tensor, y: Tensor) -> Tensor:\n    {name} = (x * y).sum()\n"
    cpp = texts(planned(define(source + f"    return x * {name}")))["f.cpp"]
    assert f"> {name};" not in cpp
    assert "InMemory<A> total_" in cpp


def test_many_stages_have_names_of_their_own(define):
    """Beside arguments that are called so."""
    source = "def f(x: Tensor, sums5: float, numbers5: float) -> Tensor:\n"
    source += "    for _ in range(6):\n        x = x / (x.square().mean() + sums5)\n"
    cpp = texts(planned(define(source + "    return (x * numbers5).sum()")))["f.cpp"]
    arrays = re.findall(r"std::array<Tensor, \d+> (\w+)\{", cpp)
    assert "sums5_" in arrays
    assert "sums5" not in arrays


def test_switches_choose_between_sums():
    cpp = flat(written("squares_or_not")["squares_or_not.cpp"])
    assert "if (squared) { std::array<Tensor, 1> sums{new_sum(x)}; " in cpp
    assert "totals_into<SquaresOrNotWithSquaredSums>(sums, x, target);" in cpp
    assert "} else { std::array<Tensor, 1> sums{new_sum(x)}; " in cpp


def test_arguments_called_as_what_is_generated():
    cpp = flat(written("shadowed")["shadowed.cpp"])
    assert "const Tensor& double_, const Tensor& numel_, double sums, int64_t x_first" in cpp
    assert "totals_into<ShadowedSums>(sums_, double_, in_memory(numbers[0]));" in cpp
    assert "const double numel = double(double_.numel());" in cpp


def test_the_derivative_in_pytorch_and_its_batching():
    ops = written("masked_mse")["ops.py"]
    assert "    shape = x.shape\n    x = x.flatten()\n" in ops
    assert "mask = mask.flatten()" in ops
    assert ".reshape(shape), (-grad_product).reshape(shape)" in ops
    assert '"extension_cpp::masked_mse_backward", by_example(' in flat(ops)
    assert "A tensor with no dimensions and the dtype of `x`." in flat(ops)
    assert "constants without dimensions, in float32" in flat(ops)


def test_results_of_both_kinds_are_told_apart():
    ops = flat(written("clipped")["ops.py"])
    assert "Two tensors: `output0` with the shape and dtype of `grad`" in ops
    assert "`norm` with no dimensions and the dtype of `grad`." in ops


def test_samples_have_elements():
    spec = flat(written("standardized")["spec.py"])
    assert "if math.prod(shape) >= 2: yield Sample(make(shape), " in spec
    assert "import math" in spec


def test_what_is_said_at_the_end():
    found = assemble(read(PLACES["masked_mse"]))
    assert found.taken_for == [
        "Shapes: `x`, `target` and `mask` have one shape, and everything is reduced that is."
    ]


@pytest.mark.parametrize(
    "loss",
    [
        "F.mse_loss(x, y)",
        "F.l1_loss(x, y, reduction='sum')",
        "F.smooth_l1_loss(x, y, beta=0.5)",
        "F.huber_loss(x, y, 'mean', 0.7)",
        "F.binary_cross_entropy_with_logits(x, y)",
        "F.kl_div(x, y.exp(), reduction='sum')",
        "F.kl_div(input=x, target=y, log_target=True)",
        "F.poisson_nll_loss(x, y)",
        "F.gaussian_nll_loss(x, y, x * x + 1)",
        "F.margin_ranking_loss(x, y, x.sign())",
        "F.soft_margin_loss(x, y)",
        "torch.linalg.vector_norm(x) + x.norm(p=1) + y.std(unbiased=False)",
        "torch.linalg.norm(x) / (torch.norm(y) + 1)",
        "(x.flatten() * y.reshape(-1)).sum() / x.numel()",
        "torch.var(x, correction=0) + y.var(False)",
    ],
)
def test_losses_are_reduced(loss, define):
    """Compared with PyTorch, and its derivatives, before anything is written."""
    plan = planned(define(f"def f(x: Tensor, y: Tensor) -> Tensor:\n    return {loss}"))
    assert plan.of_all
    assert plan.own.line.startswith("*all, *all -> ()")


ROWS = 'k: Annotated[Tensor, torch.int64, "*rows"]'


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("x / x.abs().amax()", "amax over everything is not derived, as sums, means, variances"),
        ("x.softmax(-1).sum()", "softmax over dim=-1 is beside a reduction over all dimensions"),
        ("x.sum(-1).mean()", "or return what each row has and reduce it outside"),
        ("x.sum() * x.mean(-1)", "mean over dim=-1 is beside a reduction over all dimensions"),
        ("x.mean(None, keepdim=True)", "with keepdim the number of dimensions would be the tensor"),
        ("x.square().sum() / x.shape[0]", "has a number of elements, and no sizes; say x.numel()"),
        ("x.flatten() * 2", "flatten changes a shape"),
        ("x.flatten() * x.sum()", "of shape (24,), not (2, 3, 4)"),
        ("(x > 0).sum().to(torch.int64)", "which holds no integers beyond 2**24 in float32"),
        ("torch.ones_like(x).sum()", "has no value of its own for each element"),
        ("F.kl_div(x, x.exp(), reduction='batchmean')", 'reduction="batchmean" is a reduction'),
        ("x.sum()[None] * x", "getitem picks elements out"),
    ],
)
def test_refused(source, why, define):
    with pytest.raises(NotDerived, match=re.escape(why)):
        planned(define(f"def f(x: Tensor) -> Tensor:\n    return {source}"))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (
            "def f(x: Tensor, w: Tensor | None = None) -> Tensor:\n"
            "    return (x if w is None else x * w).mean()",
            "of tensors of which none may be None as 'w' may; write a function for each case",
        ),
        (
            "def f(x: Tensor) -> None:\n    x.div_(x.norm())",
            "it reduces over everything, and writes to 'x'; return the new values",
        ),
        (
            "def f(x: Tensor) -> Tensor:\n    a, b = x.chunk(2, -1)\n    return (a * b).sum()",
            "sum over all dimensions is not row-wise",
        ),
        (
            f"def f(x: Tensor, {ROWS}) -> Tensor:\n"
            "    return -x.log_softmax(-1).gather(-1, k.unsqueeze(-1)).mean()",
            "mean over all dimensions is not row-wise; give it dim=-1, or return what each row has",
        ),
        (
            "def f(x: Tensor, k: Annotated[Tensor, torch.int64]) -> Tensor:\n"
            "    n = (k == 3).sum().to(torch.int64)\n    return torch.where(k == n, x, 0.0).sum()",
            "elements meet an integer that is made of sums over everything",
        ),
    ],
)
def test_definitions_that_are_refused(source, why, define):
    with pytest.raises(NotDerived, match=re.escape(why)):
        texts(planned(define(source)))

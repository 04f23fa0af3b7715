"""templates/derive: tensors and results that are float32 beside half types."""

import derived_wide_functions
import pytest
import torch
from definitions import HEAD, PLACES, written
from derive.assemble import assemble, planned
from derive.definition import read
from derive.refusal import NotDerived


@pytest.fixture
def define(tmp_path):
    def write(source):
        path = tmp_path / "definition.py"
        path.write_text(HEAD + source)
        return f"{path}:f"

    return write


def lines(place):
    return [op.line for op in planned(read(place)).declared]


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("torch.exp(x.float())", "*shape -> *shape:sum"),
        ("x.to(torch.float32) * 2", "*shape -> *shape:sum"),
        ("(x > 0).float() * torch.tanh(x)", "*shape -> *shape:sum"),
        ("torch.tanh(x.float()).to(x.dtype)", "*shape -> *shape"),
        ("torch.tanh(x.float()).type_as(x)", "*shape -> *shape"),
        ("torch.softmax(x, -1, dtype=torch.float32)", "*rows n -> *rows n:sum"),
        ("torch.softmax(x, -1) * (x > 0).float()", "*rows n -> *rows n:sum"),
        ("x.float().square().mean(-1)", "*rows n -> *rows:sum"),
        ("x.sum(-1, keepdim=True, dtype=torch.float32)", "*rows n -> *rows 1:sum"),
    ],
)
def test_what_does_not_go_back_stays_float32(body, line, define):
    found = lines(define(f"def f(x: Tensor) -> Tensor:\n    return {body}"))[0]
    assert found.removesuffix(", *rows:sum, *rows:sum") == line  # of a softmax statistics follow


def test_what_meets_integers_or_counts_that_are_float32_is_too(define):
    product = "def f(x: Tensor, k: torch.LongTensor) -> Tensor:\n    return x * k.float()"
    assert lines(define(product))[0] == "..., ...:int64 -> ...:sum"
    mean = "def f(x: Tensor, mask: torch.BoolTensor) -> Tensor:\n"
    mean += "    return (x * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)"
    assert lines(define(mean))[0] == "*rows n, *rows n:bool -> *rows:sum, *rows:sum"


def test_gradients_have_the_dtypes_of_their_tensors():
    assert lines(PLACES["moving_average"]) == [
        "..., ...:sum -> ...:sum",
        "...:sum, ..., ...:sum -> =x, =state:sum",
    ]
    assert lines(PLACES["norm_of_float32_weight"]) == [
        "*rows n, n:sum -> *rows n",
        "*rows n, *rows n, n:sum -> *rows n, n:sum",
    ]
    assert lines(PLACES["tempered"])[1] == (
        "*rows n, *rows n, *rows 1:sum, 1:sum, *rows:sum, *rows:sum"
        " -> *rows n, *rows 1:sum, *rows:sum"
    )


def test_formulas_are_of_numbers_of_the_arithmetic():
    cpp = written("moving_average")["moving_average.cpp"]
    assert "SumType<A> operator()(A x, SumType<A> state) const" in cpp
    assert "decay * A(state)" in cpp
    assert "Results<A, SumType<A>> operator()(SumType<A> grad_output, A /*x*/) const" in cpp


def test_rows_read_and_write_them_where_they_lie():
    cpp = written("residual_in_float32")["residual_in_float32.cpp"]
    assert "PerElement<A> residual;" in cpp
    assert "A* total_output;" in cpp
    assert "row.elements(residual)" in cpp
    assert "RowElements<A, A> row_elements()" in cpp  # the gradient of the sum, and the sum
    assert "const A* temperature;  // [rows]" in written("tempered")["tempered.cpp"]


def test_plain_pytorch_computes_in_float32_and_rounds_what_is_to_be():
    ops = written("residual_in_float32")["ops.py"]
    scope = {"torch": torch, "sum_dtype": lambda dtype: torch.float32}
    source = ops[ops.index("def _in_torch") : ops.index("registration.register_fake")]
    exec(source, scope)
    x, weight = torch.randn(3, 8).bfloat16(), torch.randn(8).bfloat16()
    residual = torch.randn(3, 8)
    found = scope["_in_torch"](x, residual, weight)
    expected = derived_wide_functions.residual_in_float32(x, residual, weight)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=1e-6, atol=0)
    grads = [torch.randn(3, 8).bfloat16(), torch.randn(3, 8)]
    dtypes = [g.dtype for g in scope["_backward_in_torch"](*grads, weight, expected[1])]
    assert dtypes == [torch.bfloat16, torch.float32, torch.bfloat16]


def test_what_is_taken_for_float32_is_said(define):
    place = define("def f(x: Tensor) -> tuple[Tensor, Tensor]:\n    return x * 2, x.float() + 1")
    assert assemble(read(place)).taken_for == [
        "Dtypes: result 1 is float32 of half types, as the definition has it;"
        " .to(x.dtype) would round."
    ]
    documented = " ".join(written("moving_average")["ops.py"].split())
    assert "state: float32 (float64 for float64), of a shape that broadcasts with" in documented
    assert "It is float32 (float64 for float64)." in documented


def test_beside_float32_nothing_promotes_under_autocast():
    assert "autocast" not in written("residual_in_float32")["ops.py"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "def f(x: Annotated[Tensor, torch.float32]) -> Tensor:\n    return x * 2",
            "make 'x' a Tensor, which float32 may be",
        ),
        (
            "def f(x: torch.FloatTensor, y: Tensor) -> Tensor:\n    return x * y",
            "'x' is annotated as torch.float32; what is floating has the dtype of the call",
        ),
        (
            "def f(x: Tensor, y: Annotated[Tensor, torch.float64]) -> Tensor:\n    return x * y",
            "write Tensor, or Annotated[Tensor, torch.float32] for what is float32 beside half",
        ),
        (
            "def f(x: Tensor, flag: bool) -> Tensor:\n"
            "    y = x.float() + 1\n    return y * 2 if flag else y.to(x.dtype)",
            "the shape or dtype of a result depends on a switch",
        ),
        (
            "def f(x: Tensor, y: Annotated[Tensor, torch.float32]) -> Tensor:\n"
            "    a, b = x.chunk(2, -1)\n    return (a * b * y).to(x.dtype)",
            "as 'y' is; annotate it as Tensor, or pass the parts as tensors of their own",
        ),
        (
            "def f(x: Tensor) -> Tensor:\n    a, b = x.float().chunk(2, -1)\n    return a * b",
            "a result is float32 of half types, which is not derived of parts; say .to(x.dtype)",
        ),
        (
            "def f(x: Tensor, dtype: float) -> Tensor:\n    return x.float() * dtype",
            "the argument's name 'dtype'",
        ),
        (
            "def f(x: Tensor) -> Annotated[Tensor, torch.float32]:\n    return x * 2",
            "the annotation says that result 0 is float32",
        ),
    ],
)
def test_refused(source, message, define):
    with pytest.raises(NotDerived) as refused:
        assemble(read(define(source)))
    assert message in str(refused.value)


def test_shapes_that_say_float32_of_what_is_not(define):
    source = "def f(x: Tensor) -> Tensor:\n    return x.square().sum(-1)"
    with pytest.raises(NotDerived, match="--shapes says that result 0 is float32"):
        planned(read(define(source), "*rows n -> *rows:sum"))
    wide = source.replace("x.square", "x.float().square")
    assert planned(read(define(wide), "*rows n -> *rows:sum")).own.line == "*rows n -> *rows:sum"

"""templates/derive: what is traced, simplified, printed, checked and refused.

test_derive_built.py builds what comes of it.
"""

import ast
import io
import itertools
import math
import re
import sys
from contextlib import redirect_stderr
from typing import Any

import pytest
import torch
from expecttest import assert_expected_inline
from scratch import ROOT, checkout_of, git

sys.path.insert(0, str(ROOT / "templates"))

import derived_functions
import derived_packed_functions
import derived_row_functions
import derived_total_functions
import derived_wide_functions
import new_op
import repository
from derive import at_ties, operations, rows_vocabulary, trace, verify
from derive.as_schema import with_template
from derive.assemble import assemble, planned, texts
from derive.definition import read, summary
from derive.derived import derive, traced
from derive.differentiate import gradients
from derive.graph import GRADIENT, Gradient, Node, const, make, where
from derive.plan import Plan
from derive.python_text import function as python_function
from derive.refusal import NotDerived
from formatting import format_text
from kinds import Options
from schema import Refusal
from torch._subclasses.fake_tensor import FakeTensorMode

from extension_cpp import real_math

MODULES = (
    derived_functions,
    derived_packed_functions,
    derived_row_functions,
    derived_total_functions,
    derived_wide_functions,
)
DEFINITIONS = [
    (name, f"{module.__file__}:{name}")
    for module in MODULES
    for name, function in vars(module).items()
    if getattr(function, "__module__", None) == module.__name__
]
FUNCTIONS = dict(DEFINITIONS)
HEAD = """
import math
import torch
import torch.nn.functional as F
from torch import Tensor

"""


@pytest.fixture
def define(tmp_path):
    """Writes a definition's file, and returns `file:function`."""
    count = itertools.count()

    def write(source, name="f", head=HEAD):
        path = tmp_path / f"definition_{next(count)}.py"
        path.write_text(head + source)
        return f"{path}:{name}"

    return write


@pytest.fixture
def formulas(define):
    """The formula of a definition and its gradients, as text."""

    def derive_text(source):
        (variant,) = derive(read(define(source)))
        return repr((*variant.forward, *variant.gradients))

    return derive_text


def test_definitions_have_names_of_their_own():
    """One would be looked up in the place of another."""
    assert len(FUNCTIONS) == len(DEFINITIONS)


# ----- arithmetic that simplifies

X, Y, G = (make("tensor", value=name) for name in ("x", "y", GRADIENT))
CAP = make("number", value="cap")


def test_equal_expressions_are_one_node():
    assert make("add", X, Y) is make("add", X, Y)
    assert make("add", X, Y) is not make("add", Y, X)
    assert const(0.0) is not const(-0.0)
    assert const(1.0) is not const(True)


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (G * 1, "grad_output"),
        (G * -1, "neg(grad_output)"),
        ((-G) * -1, "grad_output"),
        (CAP * G / CAP, "grad_output"),
        (G / CAP * CAP, "grad_output"),
        (2 * G * 3, "mul(6.0, grad_output)"),
        (G * X + G * Y, "mul(grad_output, add(x, y))"),
        (G * X - G * Y, "mul(grad_output, sub(x, y))"),
        (G + G, "mul(2.0, grad_output)"),
        (X * G, "mul(grad_output, x)"),
        (where(make("gt", X, Y), G, 0) + where(make("gt", X, Y), 0, -G), None),
        # Nothing is dropped: x may be infinite or NaN.
        (X * 0, "mul(0.0, x)"),
        (G * X / X, "div(mul(grad_output, x), x)"),
        (X - X, "sub(x, x)"),
    ],
)
def test_simplified(node, text):
    assert repr(node) == (text or "where(gt(x, y), grad_output, neg(grad_output))")


def test_what_the_author_wrote_stays_whole():
    """So that it is shared with the forward, and rounded as there."""
    product = make("mul", X, Y)
    assert repr(G * product) == "mul(grad_output, mul(x, y))"


def test_a_gradient_that_arrives_twice_is_added():
    product = make("mul", X, X)
    assert repr(gradients([product], [G], [X, Y])) == "[mul(mul(2.0, grad_output), x), 0.0]"


def test_gradients_of_several_results_meet():
    """The first result is made of the second."""
    rows = [make("row_sum", X)]
    outputs = [make("mul", X, *rows), *rows]
    given = [G, make("row", value=Gradient("grad_total"))]
    assert_expected_inline(
        repr(gradients(outputs, given, [X])),
        """[add(mul(grad_output, row_sum(x)), add(grad_total, row_sum(mul(grad_output, x))))]""",
    )


# ----- tracing


def test_the_formula_is_as_written(formulas):
    text = formulas("def f(x: Tensor, cap: float) -> Tensor:\n    return cap * torch.tanh(x / cap)")
    assert_expected_inline(
        text,
        """(mul(cap, tanh(div(x, cap))), mul(grad_output, sub(1.0, mul(tanh(div(x, cap)), tanh(div(x, cap))))))""",
    )


def test_numbers_go_through_python_and_math(formulas):
    source = """
def f(x: Tensor, a: float, k: int) -> Tensor:
    return x * (math.sqrt(a) + 1 / a) + 2 * k
"""
    assert_expected_inline(
        formulas(source),
        """(add(mul(x, add(sqrt(a), div(1.0, a))), mul(2.0, k)), mul(grad_output, add(sqrt(a), div(1.0, a))))""",
    )


def test_functions_of_math_are_followed_by_any_name(formulas):
    """As constants they would be the same of any positive number."""
    source = """
from math import copysign as signed
def f(x: Tensor, a: float, k: int) -> Tensor:
    return x * signed(1.0, a) * +k
"""
    assert formulas(source).startswith("(mul(mul(x, copysign(1.0, a)), k), ")


@pytest.mark.parametrize(
    ("expression", "formula"),
    [
        # A float would take the value of an int that is on its right, and not ask it.
        ("0.1 * k", "mul(0.1, k)"),
        ("1.0 + k", "add(1.0, k)"),
        ("1.0 - k", "sub(1.0, k)"),
        ("7.0 // k + 7.0 % k", "add(floor_divide(7.0, k), remainder(7.0, k))"),
        ("1 - 0.9**k", "sub(1.0, pow(0.9, k))"),
        ("BETA**k", "pow(0.9, k)"),
        ("math.sqrt(2.0 / k)", "sqrt(div(2.0, k))"),
        ("sum([0.5, k])", "add(0.5, k)"),
        ("math.prod([0.5, k])", "mul(0.5, k)"),
        ("(True + k)", "add(1.0, k)"),
        ("(a * True)", "mul(a, 1.0)"),
        ("(True - a)", "sub(1.0, a)"),
        ("math.pow(a, True)", "pow(a, 1.0)"),
        ("(a * (a > 0))", "mul(a, to_real(gt(a, 0.0)))"),
        ("((k > 2) * 0.5)", "mul(to_real(gt(k, 2.0)), 0.5)"),
        ("((a > 0) & (k > 2))", "to_real(and(gt(a, 0.0), gt(k, 2.0)))"),
        ("((a > 0) | (k > 2))", "to_real(or(gt(a, 0.0), gt(k, 2.0)))"),
        ("((a > 0) ^ (k > 2))", "to_real(ne(gt(a, 0.0), gt(k, 2.0)))"),
        ("(True & (k > 2))", "to_real(and(gt(k, 2.0), True))"),
        ("((a > 0) == (k > 2))", "to_real(eq(to_real(gt(a, 0.0)), to_real(gt(k, 2.0))))"),
        ("math.sqrt(k > 2)", "sqrt(to_real(gt(k, 2.0)))"),
        ("math.floor(a / 2) + math.exp2(k)", "add(floor(div(a, 2.0)), exp2(k))"),
        # The first where neither is less, as Python has it.
        ("min(1.0, a / k)", "where(lt(div(a, k), 1.0), div(a, k), 1.0)"),
        ("max(a, 0)", "where(gt(0.0, a), 0.0, a)"),
        ("max([k, 1])", "where(gt(1.0, k), 1.0, k)"),
        ("min(i for i in (2, a))", "where(lt(a, 2.0), a, 2.0)"),
        (
            "min(2, a, k)",
            "where(lt(k, where(lt(a, 2.0), a, 2.0)), k, where(lt(a, 2.0), a, 2.0))",
        ),
        ("min(2, 3)", "2.0"),
        ("type(a)(2)", "2.0"),
        ("type(k)(2)", "2.0"),
        ("(a if a != None else 1.0)", "a"),
        ("(2 if isinstance(k, int) else 3)", "2.0"),
        ("(2 if isinstance(k, float) else 3)", "3.0"),
        ("(2 if isinstance(a, float) and not isinstance(a, int) else 3)", "2.0"),
    ],
)
def test_numbers_are_followed_wherever_they_stand(expression, formula, formulas):
    source = "BETA = 0.9\ndef f(x: Tensor, a: float, k: int) -> Tensor:\n    "
    text = formulas(f"{source}return x * a * k * ({expression})")
    assert text.startswith(f"(mul(mul(mul(x, a), k), {formula}), ")


@pytest.mark.parametrize("operand", ["flag * n", "n * flag", "flag + n", "flag - n * 0.5"])
@pytest.mark.parametrize("kind", ["int", "float"])
def test_numbers_are_computed_with_switches(operand, kind, define):
    source = f"def f(x: Tensor, n: {kind}, flag: bool) -> Tensor:\n    return x * ({operand}) + n"
    (variant,) = planned(read(define(source))).variants
    assert variant.forward.switch == "flag"


@pytest.mark.parametrize(
    "expression",
    [
        *("n * x", "x * n", "n - x", "x / n", "n / x", "x**n", "n**x", "x // n", "x % n"),
        *("x < n", "torch.where(x > n, x, n)", "torch.full_like(x, n) + x", "torch.maximum"),
        *("torch.add(x, x, alpha=n)", "torch.rsub(x, n)", "x.clamp(-n, n)", "x.clamp(max=n)"),
        *("torch.lerp(x, x, n)", "F.softplus(x, n)", "F.hardtanh(x, -3, n)", "F.leaky_relu(x, n)"),
        *(
            "torch.tensor(n) * x",
            "torch.tensor(data=n) * x",
            "x.new_tensor(n) + x",
            "x.masked_fill(x > 0, n)",
        ),
        "x.var(-1, correction=n, keepdim=True)",
        *(
            "x * (n > 1)",
            "(n > 1) + x",
            "torch.where((n > 1) & (x > 0), x, 0)",
            "x / (1 + (n > 1))",
        ),
    ],
)
def test_functions_of_torch_take_integers_as_they_take_floats(expression, formulas):
    expression = expression.replace("torch.maximum", "torch.maximum(x, torch.tensor(n))")
    found = [
        formulas(f"def f(x: Tensor, n: {kind}) -> Tensor:\n    return x.exp() * ({expression})")
        for kind in ("int", "float")
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("by_keyword", "by_position"),
    [
        ("torch.where(condition=x > y, input=x, other=y)", "torch.where(x > y, x, y)"),
        ("torch.where(x > y, input=x, other=y)", "torch.where(x > y, x, y)"),
        ("torch.where(x > y, x, other=y)", "torch.where(x > y, x, y)"),
        ("x.where(x > y, other=y)", "x.where(x > y, y)"),
        ("torch.pow(input=x, exponent=y)", "torch.pow(x, y)"),
        ("torch.pow(self=2.0, exponent=x) * y", "torch.pow(2.0, x) * y"),
        ("torch.lerp(input=x, end=y, weight=0.3)", "torch.lerp(x, y, 0.3)"),
        ("torch.addcmul(input=x, tensor1=y, tensor2=x, value=2)", "x.addcmul(y, x, value=2)"),
        ("torch.addcdiv(x, tensor1=y, tensor2=x.exp())", "torch.addcdiv(x, y, x.exp())"),
        ("x.masked_fill(mask=y > 0, value=2.0)", "x.masked_fill(y > 0, 2.0)"),
        ("x.clone().masked_fill_(mask=y > 0, value=2.0)", "x.masked_fill(y > 0, 2.0)"),
        ("x.new_tensor(data=2.0) * y * x", "x.new_tensor(2.0) * y * x"),
        ("x.new_full((), fill_value=2.0) * y * x", "x.new_full((), 2.0) * y * x"),
        ("x.new_full(size=(), fill_value=2.0) * y * x", "x.new_full((), 2.0) * y * x"),
        ("torch.full_like(x, fill_value=2.0) * y * x", "torch.full_like(x, 2.0) * y * x"),
        ("F.cosine_similarity(x1=x, x2=y, dim=-1)", "F.cosine_similarity(x, y, -1)"),
    ],
)
def test_tensors_are_given_by_keyword(by_keyword, by_position, define, formulas):
    source = "def f(x: Tensor, y: Tensor) -> Tensor:\n    return "
    assert formulas(source + by_keyword) == formulas(source + by_position)
    definition = read(define(source + by_keyword))
    (variant,) = derive(definition)
    tensors = {name: torch.rand(2, 3) for name in "xy"}
    verify.Checked(definition, variant, {}, {}).define(tensors)


@pytest.mark.parametrize("start", ["torch.zeros_like(x)", "torch.zeros_like(x).clone()"])
def test_what_has_the_shape_of_a_tensor_is_written_to(start, define, formulas):
    source = f"""
def f(x: Tensor) -> Tensor:
    y = {start}
    y += x * 2
    y *= x
    return y
"""
    text = formulas(source)
    assert text.startswith("(mul(add(0.0, mul(x, 2.0)), x), ")
    for row in ("x.sum(-1)", "x.sum(-1, keepdim=True)"):
        summed = source.replace(
            "f(x: Tensor) -> Tensor:", f"f(x: Tensor) -> Tensor:\n    x = {row}"
        )
        verify.verify(definition := read(define(summed)), derive(definition))


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("return torch.zeros_like(x) + x.sum(-1, keepdim=True)", "*rows n"),
        ("return torch.zeros_like(x) + weight + x.sum(-1, keepdim=True)", "*rows n"),
        ("m = torch.zeros_like(x) > 0\n    return s + m.to(x.dtype)", "*rows n"),
        ("m = torch.zeros_like(x).bool()\n    return torch.where(m, weight, s)", "*rows n"),
        ("y = torch.zeros_like(x)\n    y += s\n    return y", "*rows n"),
        ("y = torch.zeros_like(x)\n    return s * y.shape[-1]", "*rows 1"),
        ("return x * torch.ones_like(s.squeeze(-1)).unsqueeze(-1) + s", "*rows n"),
        ("y = torch.zeros_like(s).squeeze(-1)\n    return y.unsqueeze(-1) + s", "*rows 1"),
        (
            "y = torch.zeros_like(s.squeeze(-1)).unsqueeze(-1)\n"
            "    return y.squeeze(-1) + s.squeeze(-1)",
            "*rows",
        ),
    ],
)
def test_zeros_keep_their_shape(body, shape, define):
    source = "def f(x: Tensor, weight: Tensor) -> Tensor:\n"
    source += f"    s = x.mean(-1, keepdim=True) * x.norm(dim=-1, keepdim=True)\n    {body}"
    if "weight" not in body:
        source = source.replace(", weight: Tensor", "")
    definition = read(define(source))
    variants = derive(definition)
    assert variants[0].results[0].shape == shape
    verify.verify(definition, variants)


@pytest.mark.parametrize(
    ("statement", "both"),
    [
        ("m &= y > 0", "m & (y > 0)"),
        ("m |= y > 0", "m | (y > 0)"),
        ("m ^= y > 0", "m ^ (y > 0)"),
        ("m *= y > 0", "m & (y > 0)"),
        ("m += y > 0", "m | (y > 0)"),
        ("m = m * (y > 0)", "m & (y > 0)"),
        ("m = (y > 0) + m", "(y > 0) | m"),
        ("m.logical_and_(y)", "m & (y != 0)"),
        ("m.masked_fill_(y > 0, 0)", "torch.where(y > 0, False, m)"),
        ("z = m\n    m = m.bool()\n    z &= y > 0", "m & (y > 0)"),
        (
            "z = x * y\n    z.gt_(0)\n    m = z + z > 1",
            "(x * y > 0).to(x.dtype) + (x * y > 0).to(x.dtype) > 1",
        ),
    ],
)
def test_masks_stay_masks_and_numbers_numbers(statement, both, formulas):
    source = "def f(x: Tensor, y: Tensor) -> Tensor:\n    m = x > 0\n    {}\n"
    source += "    return torch.where(m, x, y)"
    assert formulas(source.format(statement)) == formulas(source.format(f"m = {both}"))


def test_the_smallest_and_largest_of_a_row_at_once(formulas):
    at_once = (
        "    r = torch.aminmax(x, dim=-1, keepdim=True)\n    return (x - r.min) / (r.max - r.min)"
    )
    apart = (
        "    low, high = x.amin(-1, True), x.amax(-1, True)\n    return (x - low) / (high - low)"
    )
    head = "def f(x: Tensor) -> Tensor:\n"
    assert formulas(head + at_once) == formulas(head + apart)


@pytest.mark.parametrize(
    ("body", "by_amax"),
    [
        ("x - x.detach().max(-1, keepdim=True)[0]", "x - x.detach().amax(-1, True)"),
        ("x - x.max(dim=-1, keepdim=True).values.detach()", "x - x.amax(-1, True).detach()"),
        ("x - torch.min(x, -1, True)[0].detach()", "x - x.amin(-1, True).detach()"),
        ("x.sum(-1) * (x.max(-1)[0] > 0)", "x.sum(-1) * (x.amax(-1) > 0)"),
        ("x * (x < torch.max(x, axis=-1, keepdims=True)[0])", "x * (x < x.amax(-1, True))"),
    ],
)
def test_the_largest_of_a_row_without_its_index(body, by_amax, define):
    """Where nothing asks for its derivative it is that of amax."""
    made, same = (texts(planned(read(define(TENSOR + text)))) for text in (body, by_amax))
    for file, head in (("f.cpp", "#include"), ("ops.py", "Args:")):  # after what the author wrote
        assert made[file].partition(head)[2] == same[file].partition(head)[2] != ""


@pytest.mark.parametrize("name", ["max", "aminmax"])
def test_without_gradients_both_results_are_constants(name, formulas):
    of_both = f"    with torch.no_grad():\n        r = torch.{name}(x, dim=-1, keepdim=True)\n"
    value = "r.max" if name == "aminmax" else "r.values"
    head = "def f(x: Tensor) -> Tensor:\n"
    found = formulas(f"{head}{of_both}    return x * {value}")
    assert found == formulas(f"{head}    return x * x.amax(-1, True).detach()")


def test_loops_and_helpers_are_followed(formulas):
    source = """
def step(x: Tensor) -> Tensor:
    return x * 0.5

def f(x: Tensor) -> Tensor:
    for _ in range(2):
        x = step(x)
    return x
"""
    assert_expected_inline(formulas(source), """(mul(mul(x, 0.5), 0.5), mul(0.25, grad_output))""")


def test_a_detached_part_is_a_constant(formulas):
    assert formulas("def f(x: Tensor) -> Tensor:\n    return x * torch.exp(x).detach()\n") == (
        "(mul(x, detach(exp(x))), mul(grad_output, detach(exp(x))))"
    )


def test_without_gradients_all_results_are_constants(formulas):
    text = formulas(
        """
def f(x: Tensor) -> Tensor:
    with torch.no_grad():
        with torch.no_grad():
            y = torch.exp(x)
        y = torch.sin(y + 1) * x
    return x * y
"""
    )
    constant = "detach(mul(sin(add(detach(exp(x)), 1.0)), x))"
    assert text == f"(mul(x, {constant}), mul(grad_output, {constant}))"
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    "body",
    [
        "torch.sigmoid(x.float()).to(x.dtype)",
        "torch.sigmoid(x.to(torch.float32)).type_as(x)",
        "torch.sigmoid(x.to(dtype=torch.float32)).to(x)",
    ],
)
def test_a_conversion_to_float32_is_the_operators_own(body, formulas):
    text = formulas(f"def f(x: Tensor) -> Tensor:\n    return {body}")
    assert text.startswith("(sigmoid(x), mul(")


@pytest.mark.parametrize(
    "body",
    [
        "x.float().softmax(-1).to(x.dtype)",
        "x.softmax(-1, torch.float32).to(x.dtype)",
        "F.softmax(x, dim=-1, dtype=torch.float32).to(x.dtype)",
    ],
)
def test_a_reference_that_keeps_float64(body, define):
    source = f"def f(x: Tensor) -> Tensor:\n    return {body}"
    text = assemble(read(define(source))).files["spec.py"]
    assert "# Of primitive operations: the definition computes float64 in float32." in text
    assert "reference=composed" in text
    assert "counterpart=f" in text
    assert "    return torch.softmax(x, -1)\n" in text


@pytest.mark.parametrize(
    "body",
    [
        "x.masked_fill(mask == 0, -1e9)",
        "torch.where(mask == 0, torch.full_like(x, -1e9), x)",
        "x.masked_fill(mask == 0, -1e9) + 0 * x.sum(-1, keepdim=True)",
        "F.threshold(mask, 0.5, -1e9) * x",
        "torch.maximum(x, torch.full_like(x, -1e9)) / mask.clamp(max=1e5) * (2 * mask - 1)",
    ],
)
def test_a_reference_that_takes_halves(body, define):
    """In which PyTorch fills no tensor with a number that they do not hold."""
    source = f"def f(x: Tensor, mask: Tensor) -> Tensor:\n    return {body}"
    text = assemble(read(define(source))).files["spec.py"]
    assert "# Of primitive operations: the definition raises for a half type." in text
    names: dict[str, Any] = {"torch": torch}
    exec(text[text.index("def composed") : text.index("\n\n\n", text.index("composed"))], names)
    x, mask = torch.ones(2, dtype=torch.float16), torch.tensor([0, 1]).half()
    assert names["composed"](x, mask).tolist() == [-math.inf, 1.0]


def test_second_derivatives_in_halves(define):
    source = TENSOR + "x.clamp(-1e9, 1.0) * x.clamp(0.0, math.inf)"
    text = assemble(read(define(source))).files["ops.py"]
    assert "torch.where(x < -1000000000, -1000000000, x)" in text
    assert "torch.clamp(x, 0, math.inf)" in text


def test_gradients_that_a_definition_turns_off_are_on_again(formulas):
    formulas(
        "def f(x: Tensor) -> Tensor:\n"
        "    torch.set_grad_enabled(False)\n    y = x * 2\n    torch.set_grad_enabled(True)\n"
        "    return x * y\n"
    )
    with pytest.raises(NotDerived):
        formulas(
            "def f(x: Tensor) -> Tensor:\n    torch.set_grad_enabled(False)\n    return x @ x\n"
        )
    assert torch.is_grad_enabled()


def test_sums_are_added_in_the_authors_order(define):
    """What is left of two large numbers is not lost in the sum with one of them."""
    place = define("def f(x: Tensor, y: Tensor, z: Tensor) -> Tensor:\n    return x + (y - z)\n")
    assert "return x + (y - z);" in texts(planned(read(place)))["f.cpp"]


@pytest.mark.parametrize(
    ("result", "returned"),
    [
        ("torch.softmax(x, -1) + y", "grad_x, grad_output"),
        ("torch.exp(x), x + y", "grad_x, grad_output1"),
    ],
)
def test_a_gradient_that_is_the_outputs_is_passed_on(result, returned, define):
    annotation = "tuple[Tensor, Tensor]" if result.startswith("torch.exp") else "Tensor"
    source = f"def f(x: Tensor, y: Tensor) -> {annotation}:\n    return {result}"
    text = assemble(read(define(source))).files["ops.py"]
    assert f"    return {returned}\n" in text


def test_what_a_row_keeps_is_made_of_its_elements(define):
    source = TENSOR + "torch.softmax(torch.softmax(x, -1), -1)"
    text = assemble(read(define(source))).files["f.cpp"]
    kept = re.findall(r"row[.]keep\(\s*\[[^]]*\]\((.*?)\)", text)
    assert set(kept) <= {"A x", "A /*grad_output*/, A x"}
    assert "A x" in kept


def test_what_one_pass_wants_is_not_kept(define):
    text = assemble(read(define(TENSOR + "2 * torch.log_softmax(x, -1)"))).files["f.cpp"]
    assert "row.sum([=](A x) { return math::exp(x - max); })" in text
    assert "row.keep" not in text


@pytest.mark.parametrize(
    "expression",
    [
        "torch.logsumexp(x * y, -1, keepdim=True) + F.softplus(torch.softmax(z, -1))",
        # With sums over columns the results have a function of their own, which keeps nothing.
        "weight * (torch.logsumexp(x * y, -1, keepdim=True) + F.softplus(torch.softmax(z, -1)))",
        # One of the sums is found in a pass that another one needs.
        "torch.log_softmax(torch.softmax(x * y, -1) * torch.tanh(z.mean(-1, keepdim=True) + y), -1)",
    ],
)
def test_what_a_row_has_one_of_is_computed_once_for_what_it_keeps(expression, define):
    tensors = "x: Tensor, y: Tensor, z: Tensor"
    tensors += ", weight: Tensor" if "weight" in expression else ""
    text = texts(planned(read(define(f"def f({tensors}) -> Tensor:\n    return {expression}"))))
    methods = re.findall(r"\n  HOST_DEVICE \w+ \w+(?:\(\))?\(Row.*?\n  \}", text["f.cpp"], re.S)
    assert len(methods) == (3 if "weight" in expression else 2)
    for method in methods:
        for kept in re.findall(r"row[.]keep\(.*?\);\n", method, re.S):
            assert "log(" not in kept
        for name in re.findall(r"const \S+ (\w+) =", method):
            assert len(re.findall(rf"\b{name}\b", method)) > 1


def of_backward(define, source):
    """The backward's formula in Python, which its derivatives follow from."""
    text = assemble(read(define(source))).files["ops.py"]
    (function,) = [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name == "_backward_in_torch"
    ]
    scope = {"torch": torch, "math": math, "real_math": real_math}
    exec(ast.unparse(function), scope)
    return scope[function.name]


@pytest.mark.parametrize(
    ("choice", "lines"),
    [
        ("x > 0, x, torch.expm1(x)", ["expm1 = math::expm1(x)", "x > A(0) ? x : expm1"]),
        ("x > 0, x, 2 * x", ["x > A(0) ? x : A(2) * x"]),
    ],
)
def test_a_choice_is_no_branch(choice, lines, define):
    """As a branch it would keep a thread from computing its elements side by side."""
    text = assemble(read(define(TENSOR + f"torch.where({choice})"))).files["f.cpp"]
    assert all(f" {line};" in text.split("struct FBackward")[0] for line in lines)


def test_powers_have_derivatives_where_the_exponent_is_zero(define):
    """A factor that is infinite there would be multiplied by 0 when it is differentiated."""
    source = "def f(x: Tensor, p: float) -> Tensor:\n    return x ** p"
    text = assemble(read(define(source))).files["f.cpp"]
    assert "// p == 0.0 ? 0.0 : p - 1.0\n" in text
    assert "equal ? A(0) : grad_output * p * std::pow(x, choice);" in text
    backward = of_backward(define, source)
    x = torch.tensor([0.0, 2.0, torch.inf], requires_grad=True)
    gradient = torch.ones(3, requires_grad=True)
    for by in torch.autograd.grad(backward(gradient, x, 0.0).sum(), (gradient, x)):
        assert by.tolist() == [0, 0, 0]
    assert backward(gradient * torch.inf, x, 0.0).tolist() == [0, 0, 0]
    backward = of_backward(define, "def f(x: Tensor, y: Tensor) -> Tensor:\n    return x ** y")
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    y = torch.tensor([0.0, 1.5], requires_grad=True)
    (expected,) = torch.autograd.grad((x**y).sum(), x, create_graph=True)
    actual, _ = backward(torch.ones(2), x, y)
    torch.testing.assert_close(actual, expected)
    for by, of_torch in zip(
        torch.autograd.grad(actual.sum(), (x, y)),
        torch.autograd.grad(expected.sum(), (x, y)),
        strict=True,
    ):
        torch.testing.assert_close(by, of_torch)


def test_where_python_raises_derivatives_of_numbers_are_infinite_or_nan(define):
    backward = of_backward(define, "def f(x: Tensor, a: float) -> Tensor:\n    return a ** x")
    gradient, x = torch.ones(2), torch.tensor([1.0, 2.0], requires_grad=True)
    zero = backward(gradient, x, 0.0)
    assert zero.tolist() == torch.autograd.grad(zero.sum(), x)[0].tolist() == [0, 0]
    assert backward(gradient, x, -2.0).isnan().all()
    inverse = of_backward(
        define, "def f(x: Tensor, a: float) -> Tensor:\n    return torch.exp(x) * (1 / a)"
    )
    assert inverse(gradient, x, 0.0).tolist() == [torch.inf, torch.inf]
    for call, expected in (
        (lambda: real_math.exp(1000), torch.inf),
        (lambda: real_math.log1p(-1), -torch.inf),
        (lambda: real_math.floor(torch.inf), torch.inf),
        (lambda: real_math.power(0, -1), torch.inf),
        (lambda: real_math.divide(-1, 0), -torch.inf),
        (lambda: real_math.floor_divide(1, 0), torch.inf),
        (lambda: real_math.power(10, 400), torch.inf),
    ):
        assert call() == expected
    for call in (
        lambda: real_math.sqrt(-1),
        lambda: real_math.power(-2, 0.5),
        lambda: real_math.remainder(1, 0),
    ):
        assert math.isnan(call())
    with torch.device("meta"), FakeTensorMode():
        assert math.isnan(real_math.log(-1))


def test_more_columns_are_taken_away_than_there_are(define):
    """PyTorch divides by no less than 0, though its derivative does."""
    source = """
def f(x: Tensor, k: int = 0) -> Tensor:
    return x - x.var(-1, correction=k, keepdim=True)
"""
    text = assemble(read(define(source))).files["f.cpp"]
    assert "const A difference = cols - k;" in text
    assert "const A choice = difference < A(0) ? A(0) : difference;" in text


def test_of_a_row_without_columns_the_variance_divides_by_zero(define):
    text = assemble(read(define(TENSOR + "x.var(-1)"))).files["f.cpp"]
    assert "const A choice = cols - A(1) < A(0) ? A(0) : cols - A(1);" in text


def test_conditions_of_numbers_and_switches_are_the_hosts(define):
    source = """
def f(x: Tensor, a: float, k: int, flag: bool) -> Tensor:
    return x * ((a > 0) & (k > 1) ^ flag)
"""
    files = assemble(read(define(source))).files
    assert "const bool both = a > 0.0 && double(k) > 1.0;" in files["f.cpp"]
    assert "A flag2;  // both != true ? 1.0 : 0.0\n" in files["f.cpp"]
    assert "float(((a > 0) & (k > 1)) != True)" in files["ops.py"]


def test_dropout_without_training_is_its_argument(formulas, define):
    for call in ("F.dropout(x, training=False)", "F.dropout(x, 0.5, False)"):
        assert formulas(TENSOR + f"{call} * 2") == formulas(TENSOR + "x * 2")
    source = "def f(x: Tensor) -> Tensor:\n    y = F.dropout(x, training=False)\n    y += 1\n    return y"
    with pytest.raises(NotDerived, match="this writes to an argument"):
        derive(read(define(source)))


def test_numbers_are_computed_in_double_by_the_host(define):
    """As PyTorch does: in float32, 1 - 0.999 has four digits."""
    source = """
def f(x: Tensor, decay: float, k: int) -> Tensor:
    left = 1 - decay**k
    return torch.sin(x * left) / left + left * (k // 4) + decay / (1 + left)
"""
    text = assemble(read(define(source))).files["f.cpp"]
    struct = text[text.index("struct F {") : text.index("};", text.index("struct F {"))]
    assert "Divisor<A> left;\n" in struct
    assert "A quotient;  // decay / (1.0 + left)\n" in struct
    assert "return std::sin(x * left) / left + product + quotient;" in struct
    host = text[text.index("Tensor f(") : text.index("Tensor f_backward(")]
    assert "const double left = 1.0 - std::pow(decay, double(k));" in host
    assert "std::fmod(double(k), 4.0)" in host
    assert "elementwise<F>(kF, x, left, " in host


@pytest.mark.parametrize("value", [1.0, -1.0])
@pytest.mark.parametrize(
    "choice",
    [
        "x, y",
        "2.0, x * y",
        "x.exp(), x",
        "x.sum(-1, keepdim=True), y",
        "x.sum(-1, keepdim=True), 1.0) * (y",
        "(x - x.mean(-1, keepdim=True)) * x.mean(-1, keepdim=True), 0.0) * (y",
        "x > y, x < y).to(x.dtype) * (x",
    ],
)
def test_a_choice_by_a_number_has_the_shape_of_all(choice, value, define):
    source = (
        f"def f(x: Tensor, y: Tensor, a: float = {value}) -> Tensor:\n"
        f"    return torch.where(torch.tensor(a) > 0, {choice}) * y.sin()"
    )
    definition = read(define(source))
    verify.verify(definition, derive(definition))


def test_a_number_that_is_chosen_and_divided_by_is_a_value(define):
    source = "def f(x: Tensor, cap: float) -> Tensor:\n    return torch.clamp(x, max=cap) / cap"
    assert "  A cap;\n" in assemble(read(define(source))).files["f.cpp"]


@pytest.mark.parametrize("choice", ["torch.minimum(x, s)", "torch.where(x > 1, s, x)"])
def test_what_a_row_has_one_of_is_a_value_where_it_is_chosen_and_divided_by(choice, define):
    source = f"""
def f(x: Tensor) -> Tensor:
    s = x.abs().amax(-1, keepdim=True)
    return {choice} / s
"""
    text = assemble(read(define(source))).files["f.cpp"]
    assert "const A s = row.max(" in text
    assert "Divisor<A>" not in text


@pytest.mark.parametrize(
    ("arguments", "largest", "call"),
    [
        ("x: Tensor", "x", "row.max()"),
        ("x: Tensor", "-x", "row.max([](A x) { return -x; })"),
        ("x: Tensor, y: Tensor", "x", "row.max([](A x, A /*y*/) { return x; })"),
    ],
)
def test_the_largest_element_as_it_is_takes_no_lambda(arguments, largest, call, define):
    more = " * y" if "y" in arguments else ""
    source = f"""
def f({arguments}) -> Tensor:
    return x{more} - ({largest}).amax(-1, keepdim=True)
"""
    assert f" = {call};\n" in assemble(read(define(source))).files["f.cpp"]


def test_a_number_of_rows_may_be_called_as_a_gradient(define):
    source = """
def f(x: Tensor, grad_x: float) -> Tensor:
    return x * (x * grad_x).sum(-1, keepdim=True)
"""
    text = assemble(read(define(source))).files["f.cpp"]
    assert "  T* grad_x;  // [rows, cols]\n  A grad_x_;\n" in text


def test_the_square_of_an_integer_has_a_name(define):
    source = "def f(x: Tensor, n: int) -> Tensor:\n    return x * (n**2 + 1) / (n**2 - 1)"
    text = assemble(read(define(source))).files["f.cpp"]
    assert "const double n_squared = double(n) * double(n);" in text


def test_a_number_may_be_called_as_the_columns_are(define):
    """Which is no size of a row."""
    source = """
def f(x: Tensor, weight: Tensor, n: int, n_: float) -> Tensor:
    return x * n_ / x.sum(-1, keepdim=True) * n * weight
"""
    text = assemble(read(define(source))).files["f.cpp"]
    lines = re.findall(r'"(\*rows [^"]*)"', text)
    assert lines[0].startswith("*rows n_, n_ -> *rows n_")
    assert not any(re.search(r"\bn\b", line) for line in lines)


@pytest.mark.parametrize("name", ["SCALE", "DX", "W1"])
def test_a_value_may_be_called_as_macros_are(name, define):
    source = f"""
def f(x: Tensor, a: float) -> Tensor:
    {name} = 2 * a
    return x * {name} + torch.sin(x * {name})
"""
    assert f"A {name}_;  // 2.0 * a\n" in assemble(read(define(source))).files["f.cpp"]


@pytest.mark.parametrize(
    ("name", "made"), [("SCALE", "SCALE2_"), ("DX", "DX2_"), ("W1", "W1_2_"), ("X", "X_")]
)
def test_values_may_be_called_twice_as_macros_are(name, made, define):
    source = f"""
def f(x: Tensor, {name}: float) -> Tensor:
    {name} = 2 * {name}
    y = x * {name} + torch.sin(x * {name})
    {name} = y + 1
    {name} = {name} * torch.sin({name})
    return {name} * torch.cos({name})
"""
    text = assemble(read(define(source))).files["f.cpp"]
    assert f"A {made};  // 2.0 * " in text


@pytest.mark.parametrize(
    ("signature", "result", "host"),
    [
        ("elementwise: float", "x * elementwise", "elementwise<F>(kF, x, elementwise_)"),
        ("kF: float", "x * kF", "elementwise<F>(kF, x, kF_)"),
        ("F: float", "x * F", "elementwise<F>(kF, x, F_)"),
        ("y: Tensor, unread: float", "x + y * unread", "unread(y), unread(x), unread_)"),
        ("acc_t: float", "x * (acc_t * x).sum(-1, keepdim=True)", "rowwise<F>(kF, x, acc_t_)"),
        ("RowElements: float", "x.sum(-1) * RowElements", "rowwise<F>(kF, x, RowElements_)"),
        ("PerElement: float", "x.sum(-1) * PerElement", "rowwise<F>(kF, x, PerElement_)"),
    ],
)
def test_an_argument_may_be_called_as_what_the_host_calls(signature, result, host, define):
    source = f"def f(x: Tensor, {signature}) -> Tensor:\n    return {result}\n"
    assert host in assemble(read(define(source))).files["f.cpp"]


def test_values_may_be_called_as_what_the_generated_code_calls(define):
    source = """
def f(x: Tensor, a: float) -> Tensor:
    F = 2 * a
    write_per_row = (x * F + torch.sin(x * F)).sum(-1, keepdim=True)
    return x * torch.sin(write_per_row) * write_per_row
"""
    text = assemble(read(define(source))).files["f.cpp"]
    assert re.search(r"\n  A F_; +// 2.0 \* a\n", text)
    assert "const A write_per_row2 = row.sum(" in text


def test_a_number_may_be_called_as_a_result_is_kept(define):
    source = """
def f(x: Tensor, a_output: float) -> tuple[Tensor, Tensor]:
    m = x.mean(-1, keepdim=True)
    a = x * a_output - m
    return a, m
"""
    text = assemble(read(define(source))).files["f.cpp"]
    assert "  T* a_output;  // [rows, cols]\n" in text
    assert "  A a_output_;\n" in text


@pytest.mark.parametrize("name", ["write", "of_row", "row_columns"])
def test_a_number_may_be_called_as_a_method_of_functors(name, define):
    source = f"""
def f(x: Tensor, weight: Tensor, {name}: float) -> Tensor:
    return x * weight * {name} / (x * x).mean(-1, keepdim=True).sqrt()
"""
    text = assemble(read(define(source))).files["f.cpp"]
    assert f"  A {name}_;\n" in text
    assert f" {name}(" in text


def test_a_number_may_be_called_as_a_functor_that_a_switch_chooses(define):
    source = """
def f(x: Tensor, flag: bool, FWithFlag: float) -> Tensor:
    y = x.softmax(-1) if flag else x.log_softmax(-1)
    return y * FWithFlag
"""
    text = assemble(read(define(source))).files["f.cpp"]
    assert "return rowwise<FWithFlag>(kF, x, FWithFlag_);" in text


@pytest.mark.parametrize(
    ("name", "result", "written"),
    [
        ("a", "x * torch.sin(x)", "struct OpA {"),
        ("t", "x * x.softmax(-1)", "struct OpT {"),
        ("n_a_n", "x * torch.sin(x)", "struct OpNAN {"),
        ("int64_t", "x * torch.sin(x)", "namespace extension_cpp::op_int64_t {"),
        ("offsetof", "x * torch.sin(x)", "namespace extension_cpp::op_offsetof {"),
    ],
)
def test_an_operator_may_be_called_as_something_in_cpp(name, result, written, define):
    source = f"def {name}(x: Tensor) -> Tensor:\n    return {result}\n"
    assert written in assemble(read(define(source, name))).files[f"{name}.cpp"]


@pytest.mark.parametrize(
    ("types", "result", "named"),
    [
        ("Tensor | None", "x * x if {0} is None else x * {0}", "FWithoutAB"),
        ("bool", "x.softmax(-1) if {0} else x", "FWithAB"),
    ],
)
def test_arguments_that_give_two_functors_one_name_are_refused(types, result, named, define):
    source = f"""
def f(x: Tensor, a_b: {types}, aB: {types}) -> Tensor:
    x = {result.format("a_b")}
    x = {result.format("aB")}
    return x * x
"""
    with pytest.raises(NotDerived, match=f"two would give the name {named}"):
        assemble(read(define(source)))


def test_names_that_no_schema_or_no_cpp_has(define):
    source = """
def f(x: Tensor) -> tuple[Tensor, Tensor]:
    __LINE__ = torch.exp(x)
    α = torch.sin(__LINE__) * __LINE__
    return α, torch.cos(x)
"""
    files = assemble(read(define(source))).files
    assert "const A exp = math::exp(x);" in files["f.cpp"]
    assert "(Tensor grad_output0, Tensor grad_output1, Tensor x)" in files["f.cpp"]


def test_a_tensor_may_be_called_as_a_gradient(define):
    source = "def f(x: Tensor, grad_x: Tensor) -> Tensor:\n    return torch.sin(x) + grad_x\n"
    text = assemble(read(define(source))).files["ops.py"]
    assert "    grad_x_, grad_grad_x = _ops.f_backward(grad_output, x, grad_x)\n" in text
    assert "    return grad_x_, grad_output if grad_x is None else grad_grad_x\n" in text


@pytest.mark.parametrize("names", [("name", "name_"), ("shapes", "shapes_"), ("has_b", "has_b_")])
def test_the_context_keeps_every_number_by_itself(names, define):
    first, second = names
    source = f"""
def f(x: Tensor, b: Tensor | None, {first}: float, {second}: float) -> Tensor:
    y = torch.sin(x * {first}) * torch.cos(x * {second})
    return y if b is None else y * b
"""
    text = assemble(read(define(source))).files["ops.py"]
    assert f"x, b, ctx.{first}__, ctx.{second} = inputs\n" in text
    assert "ctx.has_b = b is not None\n" in text


@pytest.mark.filterwarnings('ignore:"is')  # Python's own, of the definition
@pytest.mark.parametrize("asked", ["k is 1", "k is not -5", "FIVE is k", "0 < 1 is k"])
def test_a_number_is_not_asked_whether_it_is_an_object(asked, define):
    source = f"FIVE = 5\ndef f(x: Tensor, k: int) -> Tensor:\n    return x * k if {asked} else x\n"
    definition = read(define(source))
    with pytest.raises(NotDerived, match="asks whether two objects are one"):
        derive(definition)


def test_whether_something_is_none_may_be_asked_beside_numbers(define):
    source = """
def f(x: Tensor, y: Tensor | None) -> Tensor:
    return x * y if 0 < 5 and (0 < 1) is True and y is not None else torch.sin(x)
"""
    assert len(derive(read(define(source)))) == 2


def test_a_long_list_has_no_index_that_is_a_number(define):
    source = """
LONG = [2.0 if n == 5 else 1.0 for n in range(64)]
def f(x: Tensor, k: int) -> Tensor:
    return x * LONG[k] * k
"""
    with pytest.raises(NotDerived, match="the number argument 'k' becomes a constant"):
        assemble(read(define(source)))


def test_a_squared_sum_of_several_has_a_name(define):
    source = """
def f(x: Tensor) -> Tensor:
    total = x.sum(-1, keepdim=True) ** 2 + (x * x).sum(-1, keepdim=True)
    return x * total / (x.sum(-1, keepdim=True) ** 2 + 1)
"""
    text = assemble(read(define(source))).files["f.cpp"]
    assert "const A product = sums[0] * sums[0];" in text


def test_a_number_of_rows_may_be_computed_from_one_of_its_name(define):
    source = """
def f(x: Tensor, inputs: float) -> Tensor:
    inputs = 2 * inputs + 1
    return (x * inputs).sum(-1)
"""
    text = assemble(read(define(source))).files["f.cpp"]
    assert "A inputs2;  // 2.0 * inputs_ + 1.0\n" in text


def test_a_number_may_be_called_as_what_functors_declare(define):
    source = (
        "def f(x: Tensor, kWork: float) -> Tensor:\n    return torch.tanh(torch.sin(x * kWork))"
    )
    text = assemble(read(define(source))).files["f.cpp"]
    assert "  static constexpr int kWork = 34;" in text
    assert "  A kWork_;" in text


def test_second_derivatives_of_a_deviation_are_not_nan(define):
    source = TENSOR + "x.std(-1, keepdim=True) * x"
    x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    result = of_backward(define, source)(x.detach(), x, row_mean=None, row_std=None)
    (second,) = torch.autograd.grad(result.sum(), x)
    assert second.isfinite().all()


@pytest.mark.parametrize(
    ("expression", "needs_ones"),
    [
        ("x.masked_fill(make == 0, -torch.inf).softmax(-1)", True),
        ("x.masked_fill(make == 0, -1e9).softmax(-1)", False),
    ],
)
def test_samples_of_masks_have_ones_where_a_row_needs_them(expression, needs_ones, define):
    """Gradients of NaN are no two alike to opcheck."""
    source = f"def f(x: Tensor, make: Tensor) -> Tensor:\n    return {expression}"
    spec = assemble(read(define(source))).files["spec.py"]
    assert (
        "        make_[..., :1] = 1 " in spec or "    make_[..., :1] = 1 " in spec
    ) == needs_ones
    assert ("Sample(make(shape), make_)" in spec) == needs_ones


def test_values_that_a_definition_refuses_are_left_out(define):
    source = 'F.binary_cross_entropy(x, x.detach() ** 2, reduction="none")'
    verified = planned(read(define(TENSOR + source))).verified
    assert verified.ranges == {"x": (0.1, 0.9)}
    assert verified.functions >= {"binary_cross_entropy", "detach", "pow"}


@pytest.mark.parametrize(
    ("expression", "is_mask"),
    [
        ("x.masked_fill(mask.bool(), 0.0)", True),
        ("torch.where(mask == 0, x, x * 2)", True),
        ("torch.where(0.5 < mask, x, x * 2)", True),
        ("x.masked_fill(mask.bool(), -torch.inf).softmax(-1)", True),
        ("torch.where(mask > 0, x, -torch.inf).softmax(-1)", True),
        ("x * (mask > 3)", False),
        ("x * (mask > x)", False),
        ("mask * (mask > 0) + x", False),
    ],
)
def test_samples_of_masks_are_zeros_and_ones(expression, is_mask, define):
    definition = read(define(f"def f(x: Tensor, mask: Tensor) -> Tensor:\n    return {expression}"))
    written = "make(shape, low=0.0, high=1.0, step=1.0, requires_grad=False)"
    assert (written in " ".join(assemble(definition).files["spec.py"].split())) == is_mask


@pytest.mark.parametrize("count", [1, 2, 4])
def test_ranges_are_tried_with_few_different_ones_first(count):
    order = sorted(
        itertools.product(range(len(verify.RANGES)), repeat=count),
        key=lambda chosen: (len(set(chosen)), sum(chosen)),
    )
    assert [*verify.candidates(count)] == [[verify.RANGES[k] for k in c] for c in order]


def test_of_many_tensors_some_ranges_and_special_values_are_tried(define):
    tried = [*itertools.islice(verify.candidates(16), verify.MOST_RANGES)]
    assert len(tried) == verify.MOST_RANGES
    assert len({tuple(ranges) for ranges in tried}) == verify.MOST_RANGES
    names = [f"x{k}" for k in range(16)]
    parameters = ", ".join(f"{name}: Tensor" for name in names)
    definition = read(define(f"def f({parameters}) -> Tensor:\n    return {' + '.join(names)}"))
    special = [verify.Checked(definition, *derive(definition), {}, {}).special() for _ in range(2)]
    columns, again = (torch.stack([*values.values()]) for values in special)
    assert columns.shape == (16, verify.MOST_SPECIAL)
    assert torch.equal(columns, again)
    assert all({*column.tolist()} == {0.0, 1.0, -1.0} for column in columns)


@pytest.mark.parametrize(
    ("body", "bounds"),
    [
        ("x * 255", (-2.0, 2.0)),
        ("x / (1 - 0.999 ** 3)", (-2.0, 2.0)),
        ("torch.relu(x) * 1e4", (-2.0, 2.0)),
        ("torch.exp(10 * x) * 1e5", (0.1, 0.9)),
        # Where it is small, it is looked at there alone.
        ("100 / x", (1.1, 3.0)),
    ],
)
def test_large_values_are_no_pole(body, bounds, define):
    definition = read(define(f"def f(x: Tensor) -> Tensor:\n    return {body}"))
    assert verify.verify(definition, derive(definition)).ranges == {"x": bounds}


def test_samples_are_of_values_for_which_float32_suffices(define):
    source = "torch.where(x == 0, 1.0, torch.sin(x) / torch.where(x == 0, 1.0, x))"
    assert planned(read(define(TENSOR + source))).verified.ranges["x"][0] > 0


def test_the_reference_of_several_cases_is_composed_of_all_of_them(define):
    place = define(
        """
def f(x: Tensor, weight: Tensor | None = None, *, twice: bool = False) -> Tensor:
    y = F.hardsigmoid(x * 2 if twice else x)
    return y if weight is None else weight * y
"""
    )
    plan = planned(read(place))
    scope: dict = {}
    exec(texts(plan)["spec.py"].partition("from extension_cpp")[0], scope)
    source = texts(plan)["spec.py"].partition("def composed")
    exec(f"import torch.nn.functional as F\n{source[1]}{source[2].partition('spec =')[0]}", scope)
    x, weight = torch.randn(2, 30)
    for args in ((x,), (x, weight)):
        for twice in (False, True):
            found = scope["composed"](*args, twice=twice)
            torch.testing.assert_close(found, plan.definition.function(*args, twice=twice))


def test_names_are_the_authors(define):
    source = """
def f(x: Tensor) -> Tensor:
    inner = x * 2
    inner = inner + 1
    return torch.sin(inner)
"""
    (variant,) = derive(read(define(source)))
    assert {repr(node): name for node, name in variant.names.items()} == {
        "mul(x, 2.0)": "inner",
        "add(mul(x, 2.0), 1.0)": "inner",
    }


def test_tracing_leaves_nothing_behind(define):
    import math

    before = math.sqrt, sys.gettrace(), torch.is_grad_enabled()
    read_and_derived = derive(read(define("def f(x: Tensor) -> Tensor:\n    return x * 2")))
    assert len(read_and_derived) == 1
    with pytest.raises(NotDerived):
        derive(read(define("def f(x: Tensor) -> Tensor:\n    return x.amax()")))
    assert (math.sqrt, sys.gettrace(), torch.is_grad_enabled()) == before


@pytest.mark.parametrize(
    ("returned", "names"),
    [
        ("y, z", ["y", "z"]),
        ("y, torch.cos(x)", ["y", "output1"]),
        ("y, y", ["output0", "output1"]),
        # It is an argument's, whose gradient is called so.
        ("x, y", ["output0", "y"]),
        # The first would be the second's.
        ("output1, torch.cos(x)", ["output0", "output1"]),
        ("_y, z", ["output0", "z"]),
    ],
)
def test_results_have_the_authors_names(returned, names, define):
    source = "def f(x: Tensor) -> tuple[Tensor, Tensor]:\n    y = torch.sin(x)\n    z = y * 2\n"
    source += "    output1, _y = y * 3, y * 4\n"
    (variant,) = derive(read(define(f"{source}    return {returned}")))
    assert [result.name for result in variant.results] == names


def test_a_result_without_a_derivative_has_no_part_in_the_backward(define):
    source = "def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:\n"
    source += "    return torch.tanh(x), torch.sign(y), y\n"
    plan = planned(read(define(source)))
    assert [b.schema for b in plan.backwards] == [
        "f_backward(Tensor grad_output0, Tensor x) -> Tensor"
    ]
    assert plan.variants[0].passed_on == {"y": "grad_output2"}


@pytest.mark.parametrize(
    ("body", "condition"),
    [
        ("x * y if a else x", "ctx.a"),
        ("x if a else x * y", "not ctx.a"),
        ("x * y if a == b else x", "(ctx.b if ctx.a else not ctx.b)"),
        ("x * y if a else x * y * y * b", ""),
    ],
)
def test_a_gradient_is_none_where_a_switch_leaves_nothing_of_it(body, condition, define):
    """Zeros would do, but not in forward mode."""
    source = f"def f(x: Tensor, y: Tensor, a: bool, b: bool) -> Tensor:\n    z = {body}\n"
    source += "    return -z if b else z"
    written = texts(planned(read(define(source))))["ops.py"]
    expected = f"grad_y if {condition} else None" if condition else "grad_y, None, None"
    assert expected in written


# ----- what is saved


@pytest.mark.parametrize(
    ("expression", "saved"),
    [
        ("x + y", []),
        ("x * y", ["x", "y"]),
        ("torch.exp(x) + y", ["x"]),
        # A gradient that is zero everywhere is none.
        ("torch.round(x) * y", ["x"]),
        # Which side of its kink a relu is on its value says as exactly.
        ("torch.relu(2 * x + y)", ["output"]),
        ("torch.relu(x * y)", ["x", "y"]),
        ("torch.tanh(x) + y", ["x"]),
        # A softmax, where nothing else of the inputs is needed.
        ("torch.softmax(x + y, -1)", ["output"]),
        ("torch.log_softmax(x - y, -1)", ["output"]),
        # Else what it is made of.
        ("torch.log_softmax(x, -1) + y", ["x", "row_max", "row_sum"]),
        ("torch.softmax(x, -1) + y", ["x", "row_max", "row_sum"]),
        ("torch.softmax(x * y, -1)", ["x", "y", "row_max", "row_sum"]),
    ],
)
def test_saved(expression, saved, define):
    source = f"def f(x: Tensor, y: Tensor) -> Tensor:\n    return {expression}"
    (variant,) = derive(read(define(source)))
    assert variant.saved == saved


@pytest.mark.parametrize(
    "body",
    [
        # Of parts that have names, and of those that have none.
        "for k in range(400): x = x * x + 1 / (k + 1)\n    return x",
        "return x + " + "F.softplus(" * 20 + "y" + ", 2.0, 3.0)" * 20,
        "return x + deep(y, 400)",
        "return deep(y.mean(-1, keepdim=True), 400) * x",
        "return deep(y.detach(), 400).detach() + x",
    ],
)
def test_deep_expressions(body, define):
    source = f"""
def deep(x: Tensor, count: int) -> Tensor:
    return torch.sin(deep(x, count - 1)) if count else x


def f(x: Tensor, y: Tensor) -> Tensor:
    {body.replace("x = x * x", "x = x * y")}
"""
    definition = read(define(source))
    variants = derive(definition)
    ranges = dict.fromkeys("xy", verify.RANGES[0])
    written = texts(Plan(definition, variants, verify.Verified(True, ranges, None)))
    assert max(map(len, written["ops.py"].splitlines())) < 400
    assert max(map(len, written["f.cpp"].splitlines())) < 400


def test_a_deep_expression_is_refused_in_a_short_sentence(define):
    source = """
seen = []
def f(x: Tensor) -> Tensor:
    for k in range(400):
        x = torch.sin(x)
    seen.append(1)
    return torch.sin(x) if len(seen) % 2 else torch.cos(x)
"""
    with pytest.raises(NotDerived, match=r"itself, \w+\(.{,99}\) here and .{,99} there"):
        derive(read(define(source)))


@pytest.mark.parametrize(
    "condition",
    [
        *("k in (1, 4)", "(a > 0) == True", "max(k, 2, key=abs) > 2", "not a > 0", "a", "k"),
        *("a > 0 and k > 1", "a > 1 or k", "bool(a > 0)", "1 < a <= 2", "[a] == [2.0]"),
        "sorted((a, 1.5))[0] > 1",
    ],
)
def test_branches_on_numbers_are_taken_both_ways(condition, define):
    source = f"""
def f(x: Tensor, a: float = 1.0, k: int = 4) -> Tensor:
    if {condition}:
        x = x * a
    return torch.tanh(x) * k
"""
    plan = planned(read(define(source)))
    (variant,) = plan.variants
    for a, k in itertools.product((-1.0, 0.0, 1.0, 1.75, 2.0, 3.0), (-5, 0, 1, 2, 4)):
        verify.checked(plan.definition, variant, {}, {"a": a, "k": k}).check()


def test_branches_on_numbers_in_several_results_and_writes(define):
    source = """
def f(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    if p == 1:
        return x.abs().sum(-1), x
    if p == 2:
        return x.square().sum(-1).sqrt(), x * 2
    return (x.abs() ** p).sum(-1) ** (1 / p), x
"""
    (variant,) = derive(read(define(source)))
    first, second = map(repr, variant.forward)
    two = "where(eq(p, 2.0), sqrt(row_sum(pow(x, 2.0))), "
    assert first.startswith(f"where(eq(p, 1.0), row_sum(abs(x)), {two}")
    assert second.startswith("where(eq(p, 1.0), x, where(eq(p, 2.0), mul(")
    source = """
def f(x: Tensor, a: float) -> tuple[Tensor, Tensor]:
    y = x * 2 if a > 0 else x
    return y, y
"""
    (variant,) = derive(read(define(source)))
    first, second = map(repr, variant.forward)
    assert first == second == "where(gt(a, 0.0), mul(x, 2.0), x)"
    source = """
def f(x: Tensor, a: float) -> tuple[Tensor, Tensor]:
    y = x * 2
    return (y, y) if a < 100 else (y.sin(), y.cos())
"""
    (variant,) = derive(read(define(source)))
    first, second = map(repr, variant.forward)
    assert first == "where(lt(a, 100.0), mul(x, 2.0), sin(mul(x, 2.0)))"
    assert second == "where(lt(a, 100.0), mul(x, 2.0), cos(mul(x, 2.0)))"
    source = """
def f(p: Tensor, g: Tensor, lr: float, decay: float = 0.0) -> None:
    if decay != 0:
        g = g + decay * p
    p.sub_(lr * g)
"""
    (variant,) = derive(read(define(source)))
    (written,) = variant.forward
    assert repr(written).startswith("where(ne(decay, 0.0), sub(p, mul(")


@pytest.mark.parametrize(
    "body",
    [
        "try:\n        if a > 100: x = 2 * x\n    except BaseException: pass",
        "with contextlib.suppress(BaseException):\n        if a > 100: x = 2 * x",
        "try: x = 2 * x if a > 100 else x\n    except: x = 5 * x\n    finally: x = x + 0",
    ],
)
def test_branches_on_numbers_that_the_definition_catches(body, define):
    source = (
        f"import contextlib\ndef f(x: Tensor, a: float) -> Tensor:\n    {body}\n    return x * a"
    )
    plan = planned(read(define(source)))
    for a in (1.0, 200.0):
        verify.checked(plan.definition, plan.variants[0], {}, {"a": a}).check()


def test_tensors_broadcast_where_they_do_whatever_the_numbers_are(define):
    source = "def f(x: Tensor, w: Tensor, a: float) -> Tensor:\n    return x * {} * a"
    assert planned(read(define(source.format("(w if a < 100 else 2 * w)")))).verified.broadcasts
    plan = planned(read(define(source.format("(w if a < 100 else 2)"))))
    assert not plan.verified.broadcasts


# ----- every function of the list agrees with its definition


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_derived(name):
    written = texts(planned(read(FUNCTIONS[name])))
    assert all(written[file] for file in (f"{name}.cpp", "ops.py", "spec.py"))


def test_a_wrong_derivative_is_noticed(define, monkeypatch):
    place = define("def f(x: Tensor) -> Tensor:\n    return torch.tanh(x)")
    tanh = operations.OPERATIONS["tanh"]
    wrong = {**vars(tanh), "derivative": lambda g, out, x: (g * (1 - out),)}
    monkeypatch.setitem(operations.OPERATIONS, "tanh", operations.Operation(**wrong))
    definition = read(place)
    with pytest.raises(NotDerived, match="does not agree with the definition: the gradient of x"):
        verify.verify(definition, derive(definition))


def test_a_wrong_kink_is_noticed(define, monkeypatch):
    """Only at 0 is it different."""
    relu = operations.OPERATIONS["relu"]
    wrong = {
        **vars(relu),
        "derivative": lambda g, out, x: (where(make("lt", x, const(0)), 0, g),),
    }
    monkeypatch.setitem(operations.OPERATIONS, "relu", operations.Operation(**wrong))
    definition = read(define("def f(x: Tensor) -> Tensor:\n    return torch.relu(x)"))
    with pytest.raises(NotDerived, match=r"the gradient of x at x=0 is"):
        verify.verify(definition, derive(definition))


# What versions of PyTorch give at ties, and beside NaN: (is_halved, reaches_nan, passes_bounds).
AT_TIES = {"2.13": (False, False, True), "2.14": (True, True, False), "2.15": (True, False, False)}
NAN = math.nan
PAIRS = [(2, 1), (1, 2), (1, 1), (NAN, 1), (1, NAN)]
FMAX = {
    "2.13": [(1, 0), (0, 1), (1, 0), (0, 1), (1, 0)],
    "2.14": [(1, 0), (0, 1), (0.5, 0.5), (1, 1), (1, 1)],
    "2.15": [(1, 0), (0, 1), (0.5, 0.5), (0, 1), (1, 0)],
}
CLAMP_MIN = {
    "2.13": [(1, 0), (0, 1), (1, 0), (0, 0), (0, 0)],
    "2.14": [(1, 0), (0, 1), (0.5, 0.5), (1, 1), (1, 1)],
    "2.15": [(1, 0), (0, 1), (0.5, 0.5), (1, 1), (1, 1)],
}
BETWEEN = [
    *((0, 1, 2), (1, 1, 2), (1.5, 1, 2), (2, 1, 2), (3, 1, 2)),
    *((1, 1, 1), (0, 1, 1), (2, 1, 1), (1, 2, 0), (1, 2, 1), (NAN, 1, 2)),
]
CLAMP = {
    "2.13": [
        *((0, 1, 0), (1, 0, 0), (1, 0, 0), (1, 0, 0), (0, 0, 1)),
        *((1, 0, 0), (0, 0, 0), (0, 0, 1), (0, 0, 1), (0, 0, 1), (0, 0, 0)),
    ],
    "2.14": [
        *((0, 1, 0), (0.5, 0.5, 0), (1, 0, 0), (0.5, 0, 0.5), (0, 0, 1)),
        *((1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 1), (0, 0, 1), (1, 0, 0)),
    ],
}
CLAMP["2.15"] = CLAMP["2.14"]
Z = make("tensor", value="z")
ONE, TWO = const(1.0), const(2.0)


@pytest.mark.parametrize("version", AT_TIES)
@pytest.mark.parametrize(
    ("node", "leaves", "points", "expected"),
    [
        (make("fmax", X, Y), (X, Y), PAIRS, FMAX),
        (make("clamp_min", X, Y), (X, Y), PAIRS, CLAMP_MIN),
        (make("clamp", X, Y, Z), (X, Y, Z), BETWEEN, CLAMP),
        (
            *(make("clamp", X, ONE, TWO), (X,), [(0,), (1,), (1.5,), (2,), (3,), (NAN,)]),
            {
                "2.13": [(0,), (1,), (1,), (1,), (0,), (0,)],
                "2.14": [(0,), (0,), (1,), (0,), (0,), (0,)],
                "2.15": [(0,), (0,), (1,), (0,), (0,), (0,)],
            },
        ),
        (
            *(make("clamp_min", X, ONE), (X,), [(0,), (1,), (2,), (NAN,)]),
            {
                "2.13": [(0,), (1,), (1,), (0,)],
                "2.14": [(0,), (0,), (1,), (0,)],
                "2.15": [(0,), (0,), (1,), (0,)],
            },
        ),
    ],
    ids=["fmax", "clamp_min", "clamp", "clamp of numbers", "clamp_min of a number"],
)
def test_gradients_at_ties_are_those_of_any_version(
    node: Node,
    leaves: tuple[Node, ...],
    points: list[tuple[float, ...]],
    expected: dict[str, list[tuple[float, ...]]],
    version: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The suite runs with one of them."""
    is_halved, reaches_nan, passes_bounds = AT_TIES[version]
    monkeypatch.setattr(operations, "is_halved", lambda _: is_halved)
    monkeypatch.setattr(operations, "reaches_nan", lambda _: reaches_nan)
    monkeypatch.setattr(operations, "passes_bounds", lambda: passes_bounds)
    names = [str(leaf.value) for leaf in leaves]
    spelling = {name: name for name in [*names, GRADIENT]}
    body = tuple(gradients([node], [G], leaves))
    scope: dict[str, Any] = {"torch": torch}
    exec(python_function("f", [*names, GRADIENT], body, {}, spelling, like=GRADIENT), scope)
    values = torch.tensor(points, dtype=torch.float64)
    found = scope["f"](*values.unbind(1), torch.ones(len(points), dtype=torch.float64))
    found = found if isinstance(found, tuple) else (found,)
    assert torch.stack(found, 1).tolist() == [list(map(float, row)) for row in expected[version]]


def test_the_torch_at_hand_is_asked_where_nothing_is_differentiated() -> None:
    """As in a file that turns gradients off."""
    answers = at_ties.is_halved("fmax"), at_ties.reaches_nan("fmin"), at_ties.passes_bounds()
    at_ties._first_gradient.cache_clear()
    at_ties.passes_bounds.cache_clear()
    with torch.no_grad():
        assert answers == (
            *(at_ties.is_halved("fmax"), at_ties.reaches_nan("fmin")),
            at_ties.passes_bounds(),
        )


@pytest.mark.parametrize(
    "bounds", ["min=torch.zeros_like(x)", "torch.zeros_like(x), x.new_tensor(1.0)", "max=ONE"]
)
@pytest.mark.parametrize("passes", [True, False])
def test_clamp_by_a_tensor_of_one_number(bounds, passes, define, monkeypatch):
    """Where numbers have another gradient at ties, it is refused."""
    monkeypatch.setattr(trace, "passes_bounds", lambda: passes)
    source = f"ONE = torch.tensor(1.0)\ndef f(x: Tensor) -> Tensor:\n    return x.clamp({bounds})"
    if passes:
        derive(read(define(source)))
        return
    with pytest.raises(NotDerived, match=r"by a tensor that is one number.*give it the number"):
        derive(read(define(source)))
    derive(read(define("def f(x: Tensor, y: Tensor) -> Tensor:\n    return x.clamp(y, y * 0 + 1)")))


@pytest.mark.parametrize(
    "value",
    [
        "x.clamp(0.0, torch.tensor(1.0))",
        "x * x.detach().clamp(min=torch.tensor(0.0))",
        "x * no_gradient(x)",
    ],
)
def test_clamp_by_a_tensor_that_has_no_other_gradient(value, define, monkeypatch):
    """Beside a number it is a number to torch, and what is detached has no gradient."""
    monkeypatch.setattr(trace, "passes_bounds", lambda: False)
    source = (
        "@torch.no_grad()\ndef no_gradient(x):\n    return x.clamp(max=torch.tensor(1.0))\n"
        f"def f(x: Tensor) -> Tensor:\n    return {value}"
    )
    definition = read(define(source))
    verify.verify(definition, derive(definition))


def test_a_form_that_loses_accuracy_is_noticed(define, monkeypatch):
    """Log(1 + e^x) in float32, where the definition has log1p."""
    log1p = operations.OPERATIONS["log1p"]
    wrong = {**vars(log1p), "lowered": lambda x: make("log", 1 + x)}
    monkeypatch.setitem(operations.OPERATIONS, "log1p", operations.Operation(**wrong))
    source = "def f(x: Tensor) -> Tensor:\n    return torch.log1p(x * 1e-6)"
    definition = read(define(source))
    with pytest.raises(NotDerived, match="does not agree with the definition"):
        verify.verify(definition, derive(definition))


def test_infinity_meets_zero_as_in_pytorch(define):
    """Factored, the gradient of s would be infinite where PyTorch's is NaN."""
    source = """
def f(x: Tensor, s: Tensor, weight: Tensor) -> Tensor:
    z = x * torch.exp(-s)
    return (0.5 * z * z + s) * weight
"""
    definition = read(define(source))
    with pytest.raises(verify.Disagrees, match="is inf instead of nan"):
        verify.verify(definition, derive(definition))
    assert planned(definition).variants


@pytest.mark.parametrize(
    "expression",
    [
        "x * y + torch.tanh(x * y)",
        "(x * y) ** 2 + x * y",
        "x / y + torch.tanh(x / y)",
        "x.softmax(-1) * y.mean(-1, keepdim=True)",
    ],
)
def test_a_gradient_may_be_infinite_where_that_of_the_definition_is_nan(expression, define):
    """What is said twice is computed once, and PyTorch subtracts infinities."""
    definition = read(define(f"def f(x: Tensor, y: Tensor) -> Tensor:\n    return {expression}"))
    for factored in (True, False):
        with pytest.raises(verify.Disagrees, match=r"the gradient of . .*is -?inf instead of nan"):
            verify.verify(definition, derive(definition, factored))
    assert planned(definition).verified.ranges.keys() == {"x", "y"}


@pytest.mark.parametrize("shape", ["x", "x - x.mean(-1, keepdim=True)"])
def test_nothing_else_may_be_another(shape, define):
    """A NaN for an infinity, a number for a NaN, another infinity, or an infinite value."""
    definition = read(define(f"def f(x: Tensor) -> Tensor:\n    return {shape}"))
    (variant,) = derive(definition)
    strict, lenient = (verify.checked(definition, variant, {}, {}, k) for k in (False, True))
    inf, nan = math.inf, math.nan
    found = torch.tensor([inf, -inf, nan, 1.0, nan, inf, inf, 1.0, nan])
    expected = torch.tensor([nan, nan, inf, nan, 1.0, -inf, 1.0, 2.0, nan])
    value, gradient = strict.labels()
    assert strict.are_equal(gradient, found, expected, 0.0).nonzero().tolist() == [[8]]
    assert lenient.are_equal(value, found, expected, 0.0).nonzero().tolist() == [[8]]
    assert lenient.are_equal(gradient, found, expected, 0.0).nonzero().tolist() == [[0], [1], [8]]


def test_a_wrong_reduction_is_noticed(define, monkeypatch):
    softmax = operations.OPERATIONS["softmax"]
    wrong = {**vars(softmax), "derivative": lambda g, out, x: (out * g,)}
    monkeypatch.setitem(operations.OPERATIONS, "softmax", operations.Operation(**wrong))
    definition = read(define("def f(x: Tensor) -> Tensor:\n    return x.softmax(-1)"))
    with pytest.raises(NotDerived, match="does not agree with the definition: the gradient of x"):
        verify.verify(definition, derive(definition))


# ----- shapes of row-wise definitions


@pytest.mark.parametrize(
    ("shapes", "line"),
    [
        (None, "*rows n, *rows n, n -> *rows"),
        ("*rows n, n, n -> *rows", "*rows n, n, n -> *rows"),
        ("*rows n, *rows n, *rows n -> *rows", "*rows n, *rows n, *rows n -> *rows"),
    ],
)
def test_shapes(shapes, line, define):
    source = "def f(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:\n"
    source += "    return (x * torch.exp(y) * weight).sum(-1)"
    assert planned(read(define(source), shapes)).own.line == line


@pytest.mark.parametrize(
    ("expression", "line"),
    [
        ("x * x.sum(-1, keepdim=True)", "*rows n -> *rows n"),
        ("x.square().sum(-1)", "*rows n -> *rows"),
        ("x.square().sum(-1, keepdim=True)", "*rows n -> *rows 1"),
        ("x * x.shape[-1]", "*rows n -> *rows n"),
    ],
)
def test_the_shape_of_the_result(expression, line, define):
    source = f"def f(x: Tensor) -> Tensor:\n    return {expression}"
    assert planned(read(define(source))).own.line == line


def test_shapes_of_several_results(define):
    source = "def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:\n"
    source += "    return x * y, (x * y).sum(-1)"
    shapes = "*rows n, n -> *rows n,*rows"
    assert planned(read(define(source), shapes)).own.line == "*rows n, n -> *rows n, *rows"


@pytest.mark.parametrize(
    ("shape", "expression", "result"),
    [
        ("*rows 1", "x.softmax(-1) * y", "*rows n"),
        ("*rows 1", "x.sum(-1, keepdim=True) * y", "*rows 1"),
        ("*rows 1", "x.sum(-1) * y.squeeze(-1)", "*rows"),
        ("*rows", "x.sum(-1) * y", "*rows"),
        ("*rows", "x.softmax(-1) * y[..., None]", "*rows n"),
        ("()", "x.softmax(-1) * y * y", "*rows n"),
        ("()", "x.sum(-1) * (y * y)", "*rows"),
        ("1", "x.sum(-1, keepdim=True) * y", "*rows 1"),
    ],
)
def test_shapes_of_values_for_each_row_and_of_one_number(shape, expression, result, define):
    def source(annotation):
        return f"def f(x: Tensor, y: {annotation}) -> Tensor:\n    return {expression}"

    head = f"{HEAD}from typing import Annotated\n"
    line = f"*rows n, {shape} -> {result}"
    said = planned(read(define(source(f'Annotated[Tensor, "{shape}"]'), head=head)))
    given = planned(read(define(source("Tensor")), line.replace(" -> ", "  -> ")))
    for plan in (said, given):
        written, statistics, _ = plan.own.line.partition(", *rows:sum")
        assert written == line, statistics
        results = plan.backwards[0].line.partition(" -> ")[2]
        assert results == f"*rows n, {shape if '*' in shape else '*rows:sum'}"
        assert ("one_number(y)" if "*" not in shape else "per_row(y)") in texts(plan)["f.cpp"]


def test_a_shape_in_an_annotation_goes_before_a_name(define):
    head = f"{HEAD}from typing import Annotated\n"
    source = 'def f(x: Tensor, weight: Annotated[Tensor, "*rows n"], y: Annotated[Tensor, "n"])'
    place = define(f"{source}:\n    return x.softmax(-1) * weight * y", head=head)
    assert planned(read(place)).own.line.startswith("*rows n, *rows n, n -> *rows n")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "def f(x: Tensor, w: Tensor) -> Tensor:\n    return x.sum(-1) * w",
            'or say that it has a value for each row, w: Annotated[Tensor, "*rows"]',
        ),
        (
            'def f(x: Annotated[Tensor, "*rows"], y: Tensor) -> Tensor:\n    return x * y.sum(-1)',
            "'x' has the shape *rows, and the first tensor that has no dtype of its own says what the rows are",
        ),
        (
            'def f(x: Tensor, y: Annotated[Tensor, "*rows 1"]) -> Tensor:\n    return x * y',
            "it is elementwise, of tensors that broadcast as they are given; a shape in an annotation",
        ),
        (
            'def f(x: Tensor, y: Annotated[Tensor, "*rows 1"]) -> Tensor:\n'
            "    return x.sum(-1) * y.sum(-1)",
            "sum is of what has no value of its own for each element of a row",
        ),
        (
            'def f(x: Tensor, y: Annotated[Tensor, "*rows 1"] | None = None) -> Tensor:\n'
            "    y = x if y is None else y\n    return x.sum(-1, keepdim=True) * y",
            "an optional tensor is a parameter for each column",
        ),
    ],
)
def test_values_for_each_row_that_are_refused(source, reason, define):
    head = f"{HEAD}from typing import Annotated\n"
    with pytest.raises(NotDerived, match=re.escape(reason)):
        planned(read(define(source, head=head)))


def test_a_shape_in_an_annotation_with_a_template(define):
    head = f"{HEAD}from typing import Annotated\n"
    source = 'def f(x: Tensor, y: Annotated[Tensor, "*rows 1"]) -> Tensor:\n    return x * y'
    definition = read(define(source, head=head))
    with pytest.raises(NotDerived, match="say all of them by --shapes"):
        with_template(definition, "kernel", Options())
    line = "*rows n, *rows 1 -> *rows n"
    assert any(
        line in text for text in with_template(definition, "kernel", Options(shapes=line)).values()
    )


def test_a_value_for_each_row_in_cpp():
    scale_norm = printed("scale_norm", "scale_norm.cpp")
    assert "  T* grad_x;   // [rows, cols]\n  A* grad_g;   // [rows]\n" in scale_norm
    assert "  const T* g;  // [1]\n" in scale_norm
    assert "row_values(int64_t /*row*/) const { return {static_cast<A>(*g)}; }" in scale_norm
    # Of a row without elements the sum is 0.
    assert "const A grad_choice = cols == A(0) ? A(0) : sums[1] / sum;" in scale_norm
    # Written by the step that has the whole row, and not kept for the other.
    norm = printed("scaled_rms_norm", "scaled_rms_norm.cpp").partition("HOST_DEVICE RowValues")[2]
    of_row, _, write = norm.partition("HOST_DEVICE void write(")
    assert of_row.count("write_per_row(row, grad_") == 2
    assert "write_per_row" not in write
    loss = printed("weighted_loss", "weighted_loss.cpp")
    assert "per_row(grad_output), logits, target, per_row(weight)" in loss


def test_the_gradient_of_one_number_is_a_sum_over_rows():
    of_contrastive, of_norm = (printed(n, "ops.py") for n in ("contrastive", "scaled_rms_norm"))
    assert "grad_temperature.sum().to(grad_output.dtype).reshape(1)" in of_contrastive
    assert "return grad_x, grad_scale, grad_gain.sum().to(grad_output.dtype), grad_wei" in of_norm


def test_a_wrong_gradient_of_a_row_is_noticed(define, monkeypatch):
    head = f"{HEAD}from typing import Annotated\n"
    source = 'def f(x: Tensor, y: Annotated[Tensor, "*rows 1"]) -> Tensor:\n'
    place = define(f"{source}    return x.softmax(-1) * torch.tanh(y)", head=head)
    planned(read(place))
    tanh = operations.OPERATIONS["tanh"]
    wrong = {**vars(tanh), "derivative": lambda g, out, x: (g,)}
    monkeypatch.setitem(operations.OPERATIONS, "tanh", operations.Operation(**wrong))
    with pytest.raises(NotDerived, match="does not agree with the definition: the gradient of y"):
        planned(read(place))


@pytest.mark.parametrize(
    "shapes", ["n -> n", "*rows n, n -> *rows", "... -> ...", "*rows -> *rows"]
)
def test_shapes_that_are_refused(shapes, define):
    source = "def f(x: Tensor) -> Tensor:\n    return x.square().sum(-1)"
    with pytest.raises(NotDerived, match=r'give "[*]rows n" for a tensor that has the rows'):
        derive(read(define(source), shapes))


def test_a_result_of_another_shape_than_is_said(define):
    source = "def f(x: Tensor) -> Tensor:\n    return x.square().sum(-1)"
    with pytest.raises(NotDerived, match=r"--shapes says .* the result has the shape [*]rows$"):
        derive(read(define(source), "*rows n -> *rows n"))


def test_shapes_of_an_elementwise_function(define):
    source = "def f(x: Tensor, y: Tensor) -> Tensor:\n    return x * y"
    with pytest.raises(NotDerived, match=r"--shapes is for .* whole rows: leave it out$"):
        derive(read(define(source), "*rows n, n -> *rows n"))


# ----- tensors of several dtypes

ANNOTATED = [
    *("torch.BoolTensor", "Annotated[Tensor, torch.bool]", '"torch.BoolTensor"'),
    *('Annotated[Tensor, "b n", torch.bool]', "Annotated[torch.BoolTensor, 'b n']", "Mask"),
]


@pytest.mark.parametrize("annotation", ANNOTATED)
@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_a_dtype_is_said_by_the_annotation(annotation, future, define):
    head = f"{future}{HEAD}from typing import Annotated\nMask = Annotated[Tensor, torch.bool]\n"
    source = f"def f(x: Tensor, mask: {annotation}) -> Tensor:\n    return x * mask"
    definition = read(define(source, head=head))
    assert definition.dtypes == {"mask": "bool"}
    written = texts(planned(definition))
    assert (
        "operator()(A x, bool mask) const { return x * (mask ? A(1) : A(0)); }" in written["f.cpp"]
    )
    # Where it is carried to, the annotation evaluates.
    exec(written["spec.py"].partition("spec = ")[0], {})


@pytest.mark.parametrize(
    "annotation",
    [
        *("torch.BoolTensor | None", "Annotated[Tensor, torch.bool] | None"),
        *("Optional[torch.BoolTensor]", "Annotated[Tensor | None, torch.bool]"),
    ],
)
def test_a_dtype_of_what_is_optional(annotation, define):
    head = f"{HEAD}from typing import Annotated, Optional\n"
    source = f"def f(x: Tensor, mask: {annotation} = None) -> Tensor:\n"
    source += "    return x if mask is None else x * mask"
    plan = planned(read(define(source, head=head)))
    assert plan.own.schema == "f(Tensor x, Tensor? mask=None) -> Tensor"
    assert plan.own.line == "..., ...:bool -> ..."
    assert [variant.dtypes for variant in plan.variants] == [{"mask": "bool"}, {}]


def test_what_else_an_annotation_says_is_passed_over(define):
    head = f"{HEAD}from typing import Annotated\n"
    source = 'def f(x: Annotated[Tensor, "b n"], a: Annotated[float, torch.bool]) -> Tensor:\n'
    plan = planned(read(define(f"{source}    return x * a", head=head)))
    assert plan.own.line == "*shape -> *shape"
    assert plan.own.schema == "f(Tensor x, float a) -> Tensor"


@pytest.mark.parametrize(
    ("expression", "formula"),
    [
        ("x * mask", "mul(x, to_real(mask))"),
        ("mask * x", "mul(to_real(mask), x)"),
        ("x.masked_fill(~mask, 2)", "where(not(mask), 2.0, x)"),
        ("torch.where(mask & (x > 0), x, 0)", "where(and(mask, gt(x, 0.0)), x, 0.0)"),
        ("x.where(mask | other, 0)", "where(or(mask, other), x, 0.0)"),
        ("x.where(mask ^ other, 0)", "where(ne(mask, other), x, 0.0)"),
        ("x.where(torch.logical_not(mask), 0)", "where(not(mask), x, 0.0)"),
        ("x.where(mask == False, 0)", "where(not(mask), x, 0.0)"),
        ("x.where(mask != False, 0)", "where(mask, x, 0.0)"),
        ("x.where(True == mask, 0)", "where(mask, x, 0.0)"),
        ("x * mask.to(x.dtype)", "mul(x, to_real(mask))"),
        ("x - mask.type_as(x)", "sub(x, to_real(mask))"),
        ("x * (1 - mask.float()).to(x.dtype)", "mul(x, sub(1.0, to_real(mask)))"),
        ("x.where(mask.to(mask.dtype), 0)", "where(mask, x, 0.0)"),
        # Integers, as they are.
        ("x.where(k == 3, 0)", "where(eq(k, 3), x, 0.0)"),
        ("x.where(-1 < k, 0)", "where(gt(k, -1), x, 0.0)"),
        ("x.where(k.ne(n), 0)", "where(ne(k, n), x, 0.0)"),
        ("x.where(n > k, 0)", "where(lt(k, n), x, 0.0)"),
        ("x.where(torch.less(k, torch.tensor(3)), 0)", "where(lt(k, 3), x, 0.0)"),
        ("x.where(j != n, 0)", "where(ne(j, to_int32(n)), x, 0.0)"),
        ("x.where(k == j, 0)", "where(eq(k, j), x, 0.0)"),
        ("x.where(j.to(torch.int64) == n, 0)", "where(eq(to_int64(j), n), x, 0.0)"),
        ("x.where(k.bool(), 0)", "where(ne(k, 0), x, 0.0)"),
        ("x.where(torch.logical_and(k, mask), 0)", "where(and(ne(k, 0), mask), x, 0.0)"),
        ("x * torch.where(mask, k, n)", "mul(x, from_integer(where(mask, k, n)))"),
        ("x * j.masked_fill(mask, 7)", "mul(x, from_integer(where(mask, to_int32(7), j)))"),
        ("x * k.to(torch.uint8)", "mul(x, from_integer(to_uint8(k)))"),
        ("x * k.to(k.dtype)", "mul(x, from_integer(k))"),
        # Converted, where they meet floating tensors.
        ("x * k", "mul(x, from_integer(k))"),
        ("x.where(k > x, n)", "where(gt(from_integer(k), x), x, n)"),
        ("x.where(mask, k)", "where(mask, x, from_integer(k))"),
        ("x * (k.to(x.dtype) / 3)", "mul(x, div(from_integer(k), 3.0))"),
        ("x * k.type_as(x)", "mul(x, from_integer(k))"),
        ("(x * k.float()).to(x.dtype)", "mul(x, from_integer(k))"),
        ("x * k.to(torch.float32).to(x.dtype)", "mul(x, from_integer(k))"),
        ("x.long() * x", "mul(from_integer(to_int64(x)), x)"),
        # Of codes nothing is computed as they are.
        ("x * q.to(x.dtype)", "mul(x, from_float8(q))"),
        (
            "x.where(q.bool(), q.float()).to(x.dtype)",
            "where(ne(from_float8(q), 0.0), x, from_float8(q))",
        ),
        ("x * q.int()", "mul(x, from_integer(to_int32(from_float8(q))))"),
        ("x * q.to(q.dtype).type_as(x)", "mul(x, from_float8(q))"),
    ],
)
def test_formulas_of_several_dtypes(expression, formula, formulas):
    arguments = {
        "mask": "torch.BoolTensor",
        "other": "torch.BoolTensor",
        "k": "torch.LongTensor",
        "j": "torch.IntTensor",
        "n": "int",
        "q": "Annotated[Tensor, torch.float8_e4m3fn]",
    }
    used = [f"{a}: {of}" for a, of in arguments.items() if re.search(rf"\b{a}\b", expression)]
    head = "from typing import Annotated\n" if "q: " in ", ".join(used) else ""
    source = f"{head}def f(x: Tensor, {', '.join(used)}) -> Tensor:\n    return {expression}"
    assert formulas(source).startswith(f"({formula}, ")


@pytest.mark.parametrize(
    ("expression", "line"),
    [
        ("x > 0", "*shape -> *shape:bool"),
        ("x.to(torch.int8)", "*shape -> *shape:int8"),
        ("x.short()", "*shape -> *shape:int16"),
        ("(x > 0).to(torch.uint8)", "*shape -> *shape:uint8"),
        ("(x > 0).int()", "*shape -> *shape:int32"),
        ("x.to(torch.float8_e4m3fn)", "*shape -> *shape:float8_e4m3fn"),
        ("(x > 0).type(torch.float8_e5m2)", "*shape -> *shape:float8_e5m2"),
        ("(x > 0).int().to(torch.int64)", "*shape -> *shape:int64"),
        ("(x > 0).int().to(x.dtype)", "*shape -> *shape"),
        ("(x, x.isnan())", "*shape -> *shape, *shape:bool"),
    ],
)
def test_results_of_other_dtypes(expression, line, define):
    returned = "tuple[Tensor, Tensor]" if "(x, " in expression else "Tensor"
    plan = planned(read(define(f"def f(x: Tensor) -> {returned}:\n    return {expression}")))
    assert plan.own.line == line


def test_what_has_no_floating_result_has_no_derivative(define):
    written = texts(planned(read(FUNCTIONS["codes"])))
    assert 'registration.register_no_autograd("extension_cpp::codes")' in written["ops.py"]
    assert "_backward" not in written["ops.py"] + written["codes.cpp"]
    assert "It is int8 and has no derivative; values beyond int8 may become any." in (
        " ".join(written["ops.py"].split())
    )
    options = "tolerances={torch.int8: (0, 1)}, differentiable=False"
    assert options in " ".join(written["spec.py"].split())


def test_codes_of_float8_have_no_gradient():
    written = texts(planned(read(FUNCTIONS["norm_and_codes"])))
    assert "ctx.mark_non_differentiable(row_rsqrt, output[1])" in written["ops.py"]
    assert "The second is float8_e4m3fn and has no derivative." in " ".join(
        written["ops.py"].split()
    )
    assert "tolerances" not in written["spec.py"]
    cpp = written["norm_and_codes.cpp"]
    assert re.search(r"  Float8_e4m3fn\* output1; +// \[rows, cols\]\n", cpp)
    assert "static_cast<Float8_e4m3fn>(" in cpp
    cpp = texts(planned(read(FUNCTIONS["softmax_of_codes"])))["softmax_of_codes.cpp"]
    assert "[](A x, A q) { return x * static_cast<A>(q); }, row.elements(q)" in cpp
    of_codes = texts(planned(read(FUNCTIONS["of_small_codes"])))
    assert (
        "operator()(Float8_e5m2 q, A scale) const { return static_cast<A>(q) * scale; }"
        in (of_codes["of_small_codes.cpp"])
    )
    assert 'spec = OpSpec(name="of_small_codes", reference=of_small_codes)' in of_codes["spec.py"]


@pytest.mark.parametrize(
    "body",
    [
        "return x * x.detach().to(torch.float8_e4m3fn).to(x.dtype)",
        "return x * x.to(torch.float8_e4m3fn).to(x.dtype).detach()",
        "return x * x.to(torch.float8_e4m3fn).detach().to(x.dtype)",
        "q = x.detach().to(torch.float8_e4m3fn).to(x.dtype)\n    return x + (q - x.detach())",
        "with torch.no_grad():\n        q = x.to(torch.float8_e4m3fn)\n    return q.to(x.dtype) * x",
    ],
)
def test_codes_of_what_is_detached_are_computed_with(body, define):
    plan = planned(read(define(f"def f(x: Tensor) -> Tensor:\n    {body}")))
    assert plan.stops_gradients


def test_a_code_that_is_another_is_noticed(monkeypatch):
    other = {"python": operations.Form("({0} * 1.2).to(torch.float8_e4m3fn)")}
    wrong = operations.Operation(**{**vars(operations.OPERATIONS["to_float8_e4m3fn"]), **other})
    definition = read(FUNCTIONS["small_codes"])
    monkeypatch.setitem(operations.OPERATIONS, "to_float8_e4m3fn", wrong)
    with pytest.raises(NotDerived, match="does not agree with the definition: the value at x="):
        verify.verify(definition, derive(definition))


def test_what_is_no_rounded_value_has_no_tolerance():
    for name in ("positive", "clamped_and_inside", "same_labels"):
        written = texts(planned(read(FUNCTIONS[name])))
        assert "tolerances" not in written["spec.py"]
        assert "may become any" not in written["ops.py"]


def test_gradients_of_several_results_beside_others(define):
    source = """
def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    is_larger = x > y
    return is_larger, x * y, torch.sin(x)
"""
    ops = texts(planned(read(define(source))))["ops.py"]
    assert "def _backward(ctx, _grad_is_larger, grad_output1, grad_output2):" in ops
    assert "ctx.mark_non_differentiable(output[0])" in ops
    # Of those that are not used they are zeros.
    assert "set_materialize_grads" not in ops


def test_what_integers_are_compared_with_is_among_them_in_samples():
    spec = texts(planned(read(FUNCTIONS["weighted_labels"])))["spec.py"]
    assert "Sample(make(shape), make(shape, dtype=torch.int64), 3)" in spec


def test_samples_of_integers_keep_to_where_a_definition_is_defined():
    spec = texts(planned(read(FUNCTIONS["power_of_labels"])))["spec.py"]
    assert "make(shape, dtype=torch.int16, low=1)" in spec


def test_a_number_is_an_integer_and_one_of_the_arithmetic():
    cpp = texts(planned(read(FUNCTIONS["same_labels"])))["same_labels.cpp"]
    assert "  A ignore;\n  int64_t ignore_exactly;  // ignore\n" in cpp
    assert "const bool both = k == j && k != ignore_exactly;" in cpp
    assert "both ? x * ignore : static_cast<A>(k)" in cpp
    assert "elementwise<SameLabels>(kSameLabels, x, k, j, ignore, ignore)" in cpp


def test_a_number_is_compared_with_as_what_a_dtype_holds_of_it(define):
    source = (
        "def f(x: Tensor, c: torch.ByteTensor, n: int) -> Tensor:\n    return x.where(c == n, 0)"
    )
    plan = planned(read(define(source)))
    assert "return c == static_cast<uint8_t>(n) ? x : A(0);" in texts(plan)["f.cpp"]
    (variant,) = plan.variants
    for n in (-1, 255, 256 + 7, 2**40):
        case = verify.Checked(plan.definition, variant, {}, {"n": n})
        c = torch.arange(256).to(torch.uint8)
        case.agree({"x": torch.ones(256, dtype=torch.float64), "c": c})


@pytest.mark.parametrize("value", [2**24, 2**53])
def test_integers_that_are_compared_as_floats_are_noticed(value, define, monkeypatch):
    place = define(
        "def f(x: Tensor, k: torch.LongTensor) -> Tensor:\n"
        f"    return torch.where(k == {value}, x, 0)"
    )
    definition = read(place)
    verify.verify(definition, derive(definition))
    in_floats = {"python": operations.Form("{0}.float() == {1}", operations.COMPARE)}
    wrong = operations.Operation(**{**vars(operations.OPERATIONS["eq"]), **in_floats})
    monkeypatch.setitem(operations.OPERATIONS, "eq", wrong)
    with pytest.raises(NotDerived, match="does not agree with the definition: the value at x="):
        verify.verify(definition, derive(definition))


def test_a_mask_that_is_taken_for_another_is_noticed(define, monkeypatch):
    place = define(
        "def f(x: Tensor, mask: torch.BoolTensor, other: torch.BoolTensor) -> Tensor:\n"
        "    return x * (mask & other)"
    )
    definition = read(place)
    both = vars(operations.OPERATIONS["and"])
    wrong = operations.Operation(**{**both, "python": operations.Form("{0} | {1}", operations.OR)})
    monkeypatch.setitem(operations.OPERATIONS, "and", wrong)
    with pytest.raises(NotDerived, match="does not agree with the definition: the value at x="):
        verify.verify(definition, derive(definition))


def test_what_integers_hold_no_value_of_is_not_compared(define, monkeypatch):
    """NaN and infinities become any."""
    limited = "torch.clamp({0}.nan_to_num(1.0), -128, 127).to(torch.int8)"
    other = {"python": operations.Form(limited)}
    other = operations.Operation(**{**vars(operations.OPERATIONS["to_int8"]), **other})
    monkeypatch.setitem(operations.OPERATIONS, "to_int8", other)
    definition = read(define("def f(x: Tensor) -> Tensor:\n    return x * x.to(torch.int8)"))
    (variant,) = derive(definition)
    case = verify.Checked(definition, variant, {}, {})
    x = torch.tensor([0.0, -128.9, 127.9, -129, 128, math.nan, math.inf], dtype=torch.float64)
    assert case.fits({"x": x}).tolist() == [True, True, True, False, False, False, False]
    case.agree({"x": x})


@pytest.mark.parametrize(
    "expression",
    [
        "x.masked_fill(mask, float('-inf'))",
        "torch.where(mask, x, -torch.inf)",
        "torch.where(mask, math.inf, x * 2) - 1",
        "x.masked_fill(mask, -math.inf).log_softmax(-1)",
        "x.masked_fill(mask, -math.inf).softmax(-1)",
        "torch.where(mask, x, -math.inf).logsumexp(-1)",
    ],
)
def test_infinities_that_masks_choose(expression, define):
    """They are equal to themselves, and say nothing of where the definition is defined."""
    source = f"def f(x: Tensor, mask: torch.BoolTensor) -> Tensor:\n    return {expression}"
    verified = planned(read(define(source))).verified
    assert verified.ranges["x"] == verify.RANGES[0]
    wanted = (
        {"mask": [expression.startswith("torch.where(mask, x")]} if "(-1)" in expression else {}
    )
    assert verified.needed == wanted


def test_infinities_of_values_are_none_of_a_constant(define):
    source = "def f(x: Tensor, mask: torch.BoolTensor) -> Tensor:\n"
    log = "    return torch.where(mask, x.floor().clamp(min=0).log(), -torch.inf)"
    with pytest.raises(NotDerived, match="make its infinity an argument of type float, or start"):
        planned(read(define(source + log.replace("x.floor()", "(x * 0)"))))


def test_what_is_infinite_otherwise_disagrees(monkeypatch, define):
    """In float32, too, where all else is compared up to rounding."""
    other = verify.torch.tensor([-math.inf, 1.0])
    same = verify.torch.tensor([-math.inf, 2.0])
    found, true = verify.alike(other, same)
    assert found.tolist() == [0.0, 1.0]
    assert true.tolist() == [0.0, 2.0]
    found, true = verify.alike(other, -same)
    assert found.tolist() == [-math.inf, 1.0]


# ----- what is refused

TENSOR = "def f(x: Tensor) -> Tensor:\n    return "
REFUSED = {
    "over everything": (TENSOR + "x - x.amax()", "amax over everything is not derived, as sums"),
    "another dimension": (TENSOR + "torch.softmax(x, 0)", "softmax over dim=0 is not known to be"),
    "two dimensions": (TENSOR + "x.sum((-1, -2))", "sum over dim=(-1, -2) is not known"),
    "arithmetic in float8": (
        "from typing import Annotated\n"
        "def f(x: Tensor, q: Annotated[Tensor, torch.float8_e5m2]) -> Tensor:\n    return x + q",
        "add of float8 is no function of PyTorch's; convert it first, as codes.to(x.dtype) does",
    ),
    "the largest code": (
        "from typing import Annotated\n"
        "def f(x: Tensor, q: Annotated[Tensor, torch.float8_e5m2]) -> Tensor:\n"
        "    return x * q.amax(-1, keepdim=True)",
        "'return x * q.amax(-1, keepdim=True)': amax of float8 is no function of PyTorch's; convert",
    ),
    "a gradient through float8": (
        TENSOR + "x.to(torch.float8_e5m2).to(x.dtype)",
        "'return x.to(torch.float8_e5m2).to(x.dtype)': what was converted to float8 is computed with: PyTorch rounds its gradient to float8; "
        "detach what is converted, x.detach()",
    ),
    "codes as another dtype": (
        "from typing import Annotated\n"
        "def f(x: Tensor, q: Annotated[Tensor, torch.float8_e5m2]) -> Tensor:\n"
        "    return x + q.to(torch.float16)",
        "to converts float8 to another dtype; convert them first, as k.to(x.dtype) does",
    ),
    "a float that may be None": (
        "def f(x: Tensor, a: float | None = None) -> Tensor:\n    return x",
        "the argument 'a' has the type float | None; there are Tensor, Tensor | None, float, int "
        "and bool; give it a number for its default, a: float = 1.0, or add a switch, a bool",
    ),
    "a float by None": (
        "def f(x: Tensor, k: int = None) -> Tensor:\n    return x",
        "the default of 'k' is None, which is no number; give it a number for its default, k: int",
    ),
    "a list of numbers": (
        "def f(x: Tensor, a: list[float]) -> Tensor:\n    return x",
        "has the type list[float]; there are Tensor, Tensor | None, float, int and bool; write a "
        "value that is always the same in the function, a choice of two as a bool, and each number",
    ),
    "no result": (
        "def f(x: Tensor):\n    x.relu()",
        "the definition returns NoneType; what is derived returns a tensor or a tuple of tensors; "
        "return the new values, or annotate it with -> None",
    ),
    "written to": (
        "def f(x: Tensor):\n    x.relu_()",
        "this writes to an argument; give the result a name of its own and return it; what writes",
    ),
    "a function of autograd": (
        "class f(torch.autograd.Function):\n    pass",
        "that is of a class, not a function; write what it computes as a def with annotations: of a",
    ),
    "that of one": (
        "class Twice(torch.autograd.Function):\n    pass\nf = Twice.apply",
        "that is of a class, not a function; write what it computes as a def with annotations: of a",
    ),
    "without gradients": (
        "@torch.no_grad()\ndef f(x: Tensor) -> Tensor:\n    return x",
        "without a decorator; for @torch.no_grad() say `with torch.no_grad():` in it",
    ),
    "the least number of a dtype": (
        "def g(x):\n    return torch.finfo(x.dtype)\n\n\n"
        "def f(x: Tensor) -> Tensor:\n    y = x * 2\n    return x + torch.finfo(x.dtype).min",
        ":13: 'return x + torch.finfo(x.dtype).min': this is another number for each dtype; write "
        'the number itself, float("-inf") for what is masked out',
    ),
    **{
        f"made by {call}": (
            f"def f(x: Tensor) -> Tensor:\n    n = x.shape[-1]\n    return x.softmax(-1) + {call}",
            f":9: 'return x.softmax(-1) + {call}': {name} makes a tensor; write the number itself, "
            "torch.zeros_like(x), ones_like or full_like where it has the shape of a tensor, or",
        )
        for call, name in {
            "torch.ones(n, n, dtype=bool)": "ones",
            "torch.zeros(x.shape)": "zeros",
            "torch.zeros(n)": "zeros",
            "x.new_full(x.shape, 2)": "new_full",
        }.items()
    },
    **{
        f"a dimension by {index}": (
            f"def f(x: Tensor, y: Tensor) -> Tensor:\n    return x.softmax(-1) * y[{index}]",
            f":8: 'return x.softmax(-1) * y[{index}]': indexing with None changes a shape, and",
        )
        for index in ("..., None", ":, None", "None")
    },
    "its own default": (TENSOR + "F.normalize(x)", "normalize over dim=1 is not known to be"),
    "max": (
        TENSOR + "x / x.max()",
        "max without dim is that of all elements, which is not derived",
    ),
    "max of another dimension": (TENSOR + "x - x.max(0)[0]", "max over dim=0 is not known"),
    "gradient of max": (
        TENSOR + "x - x.max(-1, keepdim=True)[0]",
        ":8: 'return x - x.max(-1, keepdim=True)[0]': max with dim gives its gradient to one of "
        "several equal elements, by its index, which is not derived; say amax, which shares it",
    ),
    "gradient of min": (TENSOR + "torch.min(x * x, -1).values", "not derived; say amin, which"),
    "index": (
        TENSOR + "x * (x.max(-1, keepdim=True)[1] + 1)",
        "the index that max gives besides is not derived; use amax alone",
    ),
    "index as it is": (
        "def f(x: Tensor) -> tuple[Tensor, Tensor]:\n    low, at = x.min(-1)\n    return low, at",
        ":8: 'low, at = x.min(-1)': the index that min gives besides is not derived; use amin",
    ),
    "cross_entropy": (
        "def f(x: Tensor, y: Tensor) -> Tensor:\n    return F.cross_entropy(x, y)",
        "or -(y * F.log_softmax(x, -1)).sum(-1) of a y of the rows' shape",
    ),
    "cumsum": (TENSOR + "x.cumsum(-1)", "cumsum looks at more than one element, in a way that"),
    "prod": (TENSOR + "x.prod(-1)", "prod looks at more than one element, in a way that"),
    "sort": (TENSOR + "x.sort(-1)", "sort looks at more than one element, in a way that"),
    "without keepdim": (TENSOR + "x - x.mean(-1)", "reduce with keepdim=True"),
    "twice": (
        TENSOR + "x.sum(-1, keepdim=True).sum(-1)",
        "sum is of what has no value of its own for each element of a row",
    ),
    "squeezed": (TENSOR + "x.sum(-1).sum(-1)", "sum is of what has a value for each row alone"),
    "of a parameter": (
        "def f(x: Tensor, weight: Tensor) -> Tensor:\n    return x * weight.sum(-1, keepdim=True)",
        "sum is of what has no value of its own for each element of a row",
    ),
    "p": (TENSOR + "x.norm(p=3, dim=-1)", "a norm with p=3 is not derived; there are 1, 2 and"),
    "no eps": (TENSOR + "F.rms_norm(x, x.shape[-1:])", "rms_norm without eps depends on the dtype"),
    "features": (
        TENSOR + "F.layer_norm(x, (3, 4))",
        "layer_norm of other dimensions than the last",
    ),
    "optional parameter": (
        "def f(x: Tensor, y: Tensor | None = None) -> Tensor:\n"
        "    return x.sum(-1) if y is None else (x * y).sum(-1)",
        "counts as 1 or 0 where it is None, which 'y' is not; write a function for each case",
    ),
    "optional weight that is not 1": (
        "def f(x: Tensor, weight: Tensor | None = None) -> Tensor:\n"
        "    y = x.softmax(-1)\n    return 2 * y if weight is None else y * weight",
        "counts as 1 or 0 where it is None, which 'weight' is not; write a function for each case",
    ),
    "optional weights that depend on each other": (
        "def f(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:\n"
        "    y = x.softmax(-1)\n    if weight is None and bias is None:\n        return -y\n"
        "    return (y if weight is None else y * weight) + (0 if bias is None else bias)",
        "without weight and bias it is another function than with ones and zeros for them",
    ),
    "a switch": (
        "def f(x: Tensor, up: bool) -> Tensor:\n    return x.sum(-1) if up else x",
        "the shape or dtype of a result depends on a switch, or on whether a tensor is None",
    ),
    "matmul": (TENSOR + "x @ x", "matmul is a product of matrices"),
    "indexing": (TENSOR + "x[0]", "getitem picks elements out"),
    "a mask as an index": (TENSOR + "x[x > 0]", "getitem picks elements out"),
    "of heads": (
        TENSOR + "x * x[:, None, ...]",
        "indexing with None changes a shape, and tensors broadcast",
    ),
    "expanded": (
        "def f(x: Tensor, mask: torch.BoolTensor) -> Tensor:\n"
        "    return x.masked_fill(mask.expand_as(x), -1e9).softmax(-1)",
        "passed: y.expand_as(x), for a function of rows, copies nothing",
    ),
    "random": (TENSOR + "F.dropout(x, 0.5)", "dropout draws random numbers"),
    "rand": (TENSOR + "x + torch.rand(3)", "rand draws random numbers"),
    "special": (TENSOR + "torch.special.i0e(x)", "special_i0e has no counterpart in C++"),
    "unknown": (TENSOR + "torch.bucketize(x, x)", "bucketize is not among the functions"),
    "branch": (TENSOR + "x if x > 0 else -x", "bool looks at the values of a tensor"),
    "item": (TENSOR + "x * x.item()", "item looks at the values of a tensor"),
    "shape": (TENSOR + "x / x.shape[0]", "of a tensor's sizes rows know the last one alone"),
    "shapes": (TENSOR + "x.sum(-1) / len(x.shape)", "of a tensor's sizes rows know the last one"),
    "size": (TENSOR + "x * x.size(0)", "of a tensor's sizes rows know the last one alone"),
    "len": (TENSOR + "x / len(x)", "len asks for a tensor's sizes, which no element knows"),
    "iteration": (TENSOR + "sum(x)", "iter picks elements out, and each result is made of the"),
    "a check of values": (
        "def f(x: Tensor) -> Tensor:\n    assert (x > 0).all()\n    return x.log()",
        "leave it out where it checks what is given, or start from --template rowwise, or --templ",
    ),
    "reshape": (TENSOR + "x.reshape(-1)", "reshape changes a shape"),
    "double": (TENSOR + "x.double().to(x.dtype)", "double depends on or changes a dtype"),
    "to": (TENSOR + "x.to(torch.bfloat16).to(x.dtype)", "to depends on or changes a dtype"),
    "dtype": (
        TENSOR + "x * (2 if x.dtype == torch.float64 else 3)",
        "what it computes depends on a dtype or a device, or on what",
    ),
    "a copy in some dtypes": (
        "def f(x: Tensor) -> Tensor:\n    y = x * 2\n    z = y.float()\n    y += 1\n"
        "    return z.to(x.dtype) * y",
        "what it computes depends on a dtype or a device, or on what",
    ),
    "dtype of halves": (
        TENSOR + "x.clamp(max=65504) if x.dtype == torch.float16 else x",
        "x here and clamp_max(x, 65504.0) there; write what holds for every dtype",
    ),
    "largest number of a dtype": (
        TENSOR + "x.clamp(max=torch.finfo(x.dtype).max)",
        "this is another number for each dtype; write the number itself, float",
    ),
    "float32 of a condition": (
        TENSOR + "torch.where(x > 0, 1.0, -1.0)",
        "of torch.float64 the result is torch.float32; an operator's has the dtype",
    ),
    "writes": (
        "def f(x: Tensor) -> Tensor:\n    x += 1\n    return x",
        "this writes to an argument",
    ),
    **{
        f"writes to what shares its memory: {sharing}": (
            f"def f(x: Tensor) -> Tensor:\n    y = x * x.sum(-1, keepdim=True)\n    {sharing}\n"
            "    return y * z",
            "as by y.detach(), and what is written under no_grad has the gradients of before: give",
        )
        for sharing in (
            "z = y.detach()\n    y += 1",
            "y = y.sum(-1, keepdim=True)\n    z = y.squeeze(-1)\n    y *= x.amax(-1, keepdim=True)\n"
            "    y = y.squeeze(-1)",
            "z = x\n    with torch.no_grad():\n        y *= 2",
        )
    },
    "writes elements to rows": (
        "def f(x: Tensor) -> Tensor:\n    y = x.sum(-1, keepdim=True)\n    y += x\n    return y",
        "'y += x': this writes elements to a value for each row; give the result a name of its own",
    ),
    "writes to a constant": (
        "def f(x: Tensor) -> Tensor:\n    y = torch.tensor(0.0)\n    y += x\n    return y",
        "'y += x': this writes to a constant; give the result a name of its own",
    ),
    **{
        f"a mask that is an argument: {expression}": (
            f"def f(x: Tensor, mask: Tensor) -> Tensor:\n    return {expression}",
            "a mask is of bools, and a Tensor has a floating dtype; annotate the argument, "
            "mask: Annotated[Tensor, torch.bool] or torch.BoolTensor, or pass it as zeros and ones",
        )
        for expression in (
            *("torch.where(mask, x, 0)", "x.masked_fill(~mask, 0)", "x.masked_fill(mask, 0)"),
            *("x * (mask & (x > 0))", "x.where(mask, 0)"),
        )
    },
    "a choice by Python": (
        TENSOR + "max(x, 0)",
        "max is not of tensors; say torch.maximum, or torch.clamp where the other is a number",
    ),
    "zeros without a dimension": (
        TENSOR + "torch.zeros_like(x) + x.sum(-1)",
        "a value for each row without a dimension for the columns meets one that has it; reduce",
    ),
    "rows of zeros": (
        TENSOR + "torch.zeros_like(x).softmax(-1) * x",
        "softmax is of what has no value of its own for each element of a row; reduce what is made",
    ),
    "a function of math": (TENSOR + "math.tanh(x)", "math.tanh is not of tensors; say torch.tanh"),
    "a function of NumPy": (
        "import numpy as np\n" + TENSOR + "np.tanh(x)",
        "array leaves PyTorch, and what it computes elsewhere is not followed; say it in functions",
    ),
    "whether gradients are asked for": (
        TENSOR + "x if x.requires_grad else x * 2",
        "requires_grad is not of what is computed, and differs from call to call; leave it out",
    ),
    "an assertion": (
        "def f(x: Tensor) -> Tensor:\n    assert x.dim() == 2\n    return x * 2",
        "make it an argument, a number, or leave the assertion out",
    ),
    "an empty tensor": (
        "def f(x: Tensor) -> Tensor:\n    y = torch.empty_like(x)\n    return y.copy_(x)",
        "empty_like makes a tensor to be written to; assign the result to a name",
    ),
    "a tensor of a number": (
        "def f(x: Tensor, a: float) -> Tensor:\n    return x * torch.sqrt(torch.tensor(a))",
        "torch.tensor(a) is float32, and so is what is made of it alone: compute with the numbers",
    ),
    "a function that numbers have not": (
        "def f(x: Tensor, a: float) -> Tensor:\n    return x * F.softplus(torch.tensor(a))",
        "softplus of number arguments alone is not derived; make its value an argument, a number",
    ),
    "without an annotation": (
        "def f(x: Tensor):\n    return x, x",
        "without an annotation it would be 1; write -> tuple[Tensor, Tensor]",
    ),
    "data": (TENSOR + "x + (torch.round(x) - x).data", "data is not followed; say x.detach()"),
    "some elements": (
        "def f(x: Tensor) -> Tensor:\n    y = x.clone()\n    y[x > 0] = 0\n    return y",
        "setitem writes to some elements; say it with torch.where",
    ),
    "compares shapes": (
        "def f(x: Tensor, y: Tensor) -> Tensor:\n    assert x.shape == y.shape\n    return x * y",
        "leave it out: the operator checks shapes by itself",
    ),
    "device": (
        TENSOR + "x * (2 if x.device.type == 'cpu' else 3)",
        "what it computes depends on a dtype or a device",
    ),
    "device of a GPU": (
        TENSOR + "x * (2 if x.device.type == 'cuda' else 3)",
        "what it computes depends on a dtype or a device",
    ),
    **{
        call: (
            TENSOR + f"x * (2 if torch.{call} else 3)",
            f"what {name} says is asked once, when the operator is made",
        )
        for call, name in (
            ("is_autocast_enabled('cuda')", "is_autocast_enabled"),
            ("is_grad_enabled()", "is_grad_enabled"),
            ("cuda.is_available()", "is_available"),
            ("get_default_dtype().is_complex", "get_default_dtype"),
        )
    },
    "a program": ("import sys\nsys.exit(0)", "ends the program when it is imported; put what does"),
    "what PyTorch's derivative needs is overwritten": (
        TENSOR + "x / x.abs().amax(-1, keepdim=True).clamp_(min=1e-5)",
        "is at version 1; expected version 0 instead.); do not write in place, clamp instead of",
    ),
    "out": (TENSOR + "torch.add(x, 1, out=x)", "out= writes to a tensor"),
    "a branch on a number that gives masks": (
        "def f(x: Tensor, a: float) -> Tensor:\n    return x > 0 if a > 1 else x < 0",
        "is taken both ways, and gives masks, integers or other shapes, of which none is chosen",
    ),
    "a branch on a number that gives other shapes": (
        "def f(x: Tensor, a: float) -> Tensor:\n"
        "    return x.sum(-1) if a > 1 else x.sum(-1, keepdim=True)",
        "is taken both ways, and gives masks, integers or other shapes, of which none is chosen",
    ),
    "a branch on a number that refuses some": (
        "def f(x: Tensor, a: float) -> Tensor:\n    assert a > 0\n    return x * a",
        "'assert a > 0': the definition does not run: AssertionError; where that is for some numbers",
    ),
    "branches without an end": (
        "def f(x: Tensor, k: int) -> Tensor:\n"
        "    while k > 0:\n        x = x + 1\n        k -= 1\n    return x",
        "'while k > 0:': a branch on a number is taken both ways, and there are more than 5 of them",
    ),
    "a loop that ends for numbers alone": (
        "def f(x: Tensor, a: float) -> Tensor:\n"
        "    while True:\n        x = x + 0\n        if a > 9: break\n        if a <= 9: break\n"
        "    return x * a",
        "a branch on a number is taken both ways, and one of these has no end",
    ),
    "a comparison of numbers that is True": (
        "def f(x: Tensor, a: float) -> Tensor:\n    return x * a if (a > 9) is True else x.sin() * a",
        "'(a > 9) is True' asks whether two objects are one",
    ),
    "constant": (
        "def f(x: Tensor, a: float) -> Tensor:\n    return x * float(a)",
        "a number argument would become a constant",
    ),
    **{
        f"a number: {expression}": (
            "def f(x: Tensor, a: float = 1.0, k: int = 4) -> Tensor:\n"
            f"    return x * a * k * ({expression})",
            "a number argument would become a constant here; leave it out, or compute with +, -",
        )
        for expression in (
            *(
                "1 if k & 1 == 0 else -1",
                "1 | k",
                "k ^ 1",
                "~k",
                "k << 1",
                "8 >> k",
                "divmod(k, 2)",
            ),
            *("int(a > 0)", "float(k > 1)", "~(a > 0)", "(a > 0) & 1", "{1: 2}[a > 0]"),
            *("round(a)", "k.bit_length()", "a.is_integer()", "a.real", "k.numerator", "hash(a)"),
            *("{4: 2}.get(k, 1)", "2 if k in {1} else 1", "len(f'{k}')", "2 if str(a) else 1"),
            *("len(range(k % 2))", "[1, 2][k % 2]", "complex(a)", "2 if repr(k) == '4' else 1"),
            *("len('%d' % k)", "float(k)", "int(a)", "type(a)(k)", "type(k)(a)"),
        )
    },
    "a comparison of numbers": (
        "def f(x: Tensor, a: float) -> Tensor:\n    return torch.where(a > 0, x, -x)",
        "a comparison of numbers is no tensor; compare a tensor, torch.tensor(a) > 0",
    ),
    **{
        f"a number that is looked at: {expression}": (
            f"def f(x: Tensor, k: int = 4) -> Tensor:\n    return x * k * {expression}",
            "the number argument 'k' becomes a constant on the way, as the length of a loop does",
        )
        for expression in (
            *("([1.0, 2.0] * 20)[k]", "(1, 2, 3, 4, 5)[k]", "sum(range(k))", "len('a' * k)"),
            *("len([1.0] * k)", "len(bin(k))"),
        )
    },
    **{
        f"a number that is none to a method of int: {expression}": (
            f"def f(x: Tensor, k: int = 4) -> Tensor:\n    return x.sum(-1) * k * {expression}",
            "the definition does not run: TypeError: descriptor '__",
        )
        for expression in (
            *("(-1 if int.__and__(k, 1) else 1)", "(-1 if int.__lt__(k, 0) else 1)"),
            "int.__and__(x.shape[-1], 1)",
        )
    },
    **{
        f"a number that is used as none: {expression}": (
            f"def f(x: Tensor, a: float, k: int) -> Tensor:\n    return x * a * k * ({expression})",
            f"the definition does not run: {error}",
        )
        for expression, error in {
            "k + 's'": "TypeError: unsupported operand type(s) for +: 'int' and 'str'",
            "None * a": "TypeError: unsupported operand type(s) for *: 'NoneType' and 'float'",
            "a < 's'": "TypeError: '<' not supported between instances of 'float' and 'str'",
            "k.scale": "AttributeError: 'int' object has no attribute 'scale'",
            "(a > 0).scale": "AttributeError: 'bool' object has no attribute 'scale'",
            "x.shape + 1": "TypeError: unsupported operand type(s) for +: 'torch.Size' and 'int'",
        }.items()
    },
    "a modulus": (
        "def f(x: Tensor, k: int) -> Tensor:\n    return x * pow(k, 2, 5)",
        "'return x * pow(k, 2, 5)': pow with a modulus is not derived; say a**b % c",
    ),
    "complex numbers": (
        "def f(x: Tensor, a: float) -> Tensor:\n    return x * (a * 1j)",
        "mul is called in a way that is not derived",
    ),
    "range": (
        "def f(x: Tensor, a: float, k: int) -> Tensor:\n    for _ in range(k):\n"
        "        x = -a * x\n    return x",
        "the number argument 'k' becomes a constant on the way, as the length of a loop does",
    ),
    "math": (
        "def f(x: Tensor, a: float) -> Tensor:\n    return x * math.lgamma(a)",
        "math.lgamma of a number argument is not derived; make its value an argument",
    ),
    "a dimension that is an argument": (
        "def f(x: Tensor, dim: int = -1) -> Tensor:\n    return x.softmax(dim)",
        "to be over the last one; say dim=-1 and leave the argument out, or start from --template",
    ),
    "positional": (
        "def f(x: Tensor, /, y: Tensor) -> Tensor:\n    return x * y",
        "'x' cannot be passed by keyword, as operators' arguments can: leave out the '/'",
    ),
    "None": (
        "def f(x: Tensor, y: Tensor = None) -> Tensor:\n    return x if y is None else x * y",
        "write y: Tensor | None = None",
    ),
    "a decorator": (
        "@torch.jit.script\ndef f(x: Tensor) -> Tensor:\n    return x * 2",
        "that is a ScriptFunction, not a function itself; take its decorator off",
    ),
    "too inexact for float32": (
        "def f(x: Tensor, y: Tensor) -> Tensor:\n    d = (x - y).square().sum(-1)\n"
        "    a = (1 - x.square().sum(-1)) * (1 - y.square().sum(-1))\n"
        "    return torch.acosh(1 + 2 * d / a)",
        "what was derived does not agree with the definition: the value in float32",
    ),
    **{
        f"integers: {expression}": (
            "def f(x: Tensor, k: torch.LongTensor, j: torch.IntTensor, c: torch.CharTensor, "
            f"mask: torch.BoolTensor, n: int, a: float) -> Tensor:\n    return {expression}",
            message,
        )
        for expression, message in {
            "x * (k + 1)": "add of integers is not derived; convert them first, as k.to(x.dtype)",
            "x * (1 - k)": "rsub of integers is not derived; convert them first, as k.to(x.dtype)",
            "x * (k // 2)": "floordiv of integers is not derived; convert them first",
            "x * (k % 2 == 0)": "remainder of integers is not derived; convert them first",
            "x * (k & 1)": "and of integers is of their bits, and not derived; pass what they are",
            "x * (1 | k)": "or of integers is of their bits, and not derived",
            "x * ~k": "invert of integers is of their bits, and not derived",
            "x * (k << 1)": "lshift of integers is of their bits, and not derived",
            "x.gather(-1, k.unsqueeze(-1))": "these integers have that of the rows; say that there",
            "x * (k * j)": "mul of integers is not derived; convert them first",
            "x * (k * mask)": "mul of integers is not derived; convert them first",
            "x * (k * 0.5)": "mul of integers is not derived; convert them first",
            "x * k.clamp(0.5)": "integers meet a number that is no integer; convert them first",
            "x * torch.zeros_like(k)": "zeros_like of integers is not derived; convert them",
            "x * (k > 0.5)": "integers meet a number that is no integer; convert them first",
            "x * (k > a)": "integers meet a number that is no integer; convert them first",
            "x * (k == n + 1)": "integers meet a number that is no integer; convert them first",
            "x * (k == mask)": "integers meet bools; convert them first",
            "x * (c == 128)": "128 is beyond what int8 holds; give it another",
            "x * torch.where(mask, c, n)": "a number may be none that int8 holds; convert the tensor",
            "x * torch.where(mask, k, j)": "where of int32 and int64; convert one, by .to()",
            "x * torch.where(mask, k, 0.5)": "integers meet a number that is no integer",
            "torch.where(k, x, 0)": "a mask is of bools, and this is of integers; compare it, k != 0",
            "x * k.double()": "double converts integers to another dtype; convert them first",
            "x * k.to(torch.bfloat16)": "to converts integers to another dtype; convert them first",
        }.items()
    },
    "writes to integers": (
        "def f(x: Tensor, k: torch.LongTensor) -> Tensor:\n    k = k.clone()\n"
        "    k.masked_fill_(x > 0, x)\n    return x * k",
        "this writes values of another dtype to integers; give the result a name of its own",
    ),
    **{
        f"a floating dtype: {annotation}": (
            "from typing import Annotated\n"
            f"def f(x: Tensor, y: {annotation}) -> Tensor:\n    return x * y",
            f"'y' is annotated as {dtype}; what is floating has the dtype of the call, any of the "
            "four: write Tensor",
        )
        for annotation, dtype in {
            "torch.FloatTensor": "torch.float32",
            "torch.HalfTensor": "torch.float16",
            "torch.DoubleTensor | None": "torch.float64",
            "torch.BFloat16Tensor": "torch.bfloat16",
            "Annotated[Tensor, torch.float64]": "torch.float64",
        }.items()
    },
    "a type for a dtype": (
        "from typing import Annotated\n"
        "def f(x: Tensor, y: Annotated[Tensor, bool]) -> Tensor:\n    return x * y",
        "'y' is annotated with bool, which is no dtype: write torch.bool, or one of torch.uint8",
    ),
    "a dtype that no tensor has here": (
        "from typing import Annotated\n"
        "def f(x: Tensor, y: Annotated[Tensor, torch.complex64]) -> Tensor:\n    return x * y",
        "'y' is annotated as torch.complex64; beside Tensor there are bool, uint8, int8, int16, int32",
    ),
    "a floating dtype of a result": (
        "def f(x: Tensor) -> torch.FloatTensor:\n    return x * 2",
        "a result is annotated as torch.float32; what is floating has the dtype of the call",
    ),
    "no floating tensor of rows": (
        "def f(mask: torch.BoolTensor) -> Tensor:\n    return mask.any(-1)",
        "no argument is a Tensor of any floating dtype, for which an operator's formula is compiled",
    ),
    "no floating tensor": (
        "def f(k: torch.LongTensor) -> Tensor:\n    return k == 2",
        "no argument is a Tensor of any floating dtype, for which an operator's formula is compiled",
    ),
    "a result of another dtype than is said": (
        "def f(x: Tensor) -> tuple[Tensor, torch.BoolTensor]:\n    return x, x.to(torch.int8)",
        "the annotation says that result 1 is bool, and it is int8; write what it is",
    ),
    "a floating result where bools are said": (
        "def f(x: Tensor) -> torch.BoolTensor:\n    return x * 2",
        "the annotation says that result 0 is bool, and it is floating; write what it is",
    ),
    "a dtype that depends on a switch": (
        "def f(x: Tensor, flag: bool) -> Tensor:\n    return x > 0 if flag else x",
        "the shape or dtype of a result depends on a switch",
    ),
    **{
        f"{expression} of integers": (
            f"def f(x: Tensor, k: torch.LongTensor) -> Tensor:\n    return x * k.{expression}",
            f"{expression.partition('(')[0]} of integers is not derived; convert them first, as "
            "k.to(x.dtype) does",
        )
        for expression in ("sum(-1, keepdim=True)", "amax(-1, keepdim=True)", "softmax(-1)")
    },
    "integers that count": (
        TENSOR + "(x > 0).sum(-1)",
        "of torch.float64 the result is torch.int64; an operator's has the dtype of its tensors",
    ),
    "an optional mask of rows": (
        "def f(x: Tensor, mask: torch.BoolTensor | None = None) -> Tensor:\n"
        "    return (x if mask is None else x.masked_fill(mask, -1e9)).softmax(-1)",
        "an optional tensor is a parameter for each column that counts as 1 or 0 where it is None",
    ),
    "integers where PyTorch derives in integers": (
        "def f(x: Tensor, k: torch.LongTensor) -> Tensor:\n    return torch.atan2(x, k)",
        "PyTorch may compute in integers where they meet floating tensors: convert them first",
    ),
    "several": (
        TENSOR + "(x, x)",
        "the definition returns 2 results, and its annotation says 1",
    ),
    "one of two": (
        "def f(x: Tensor) -> tuple[Tensor, Tensor]:\n    return x",
        "the definition returns 1 results, and its annotation says 2",
    ),
    "a list": (TENSOR + "[x, x]", "the definition returns list; what is derived returns a tensor"),
    "results of any number": (
        "def f(x: Tensor) -> tuple[Tensor, ...]:\n    return x, x",
        "there are Tensor and tuple[Tensor, Tensor], of any length",
    ),
    "nothing": ("def f(x: Tensor) -> Tensor:\n    x * 2", "the definition returns NoneType"),
    "unused": ("def f(x: Tensor, a: float) -> Tensor:\n    return x * 2", "does not depend on the"),
    "constants": (TENSOR + "x * torch.tensor([1.0, 2.0])", "a tensor that is no argument"),
    "constants of arguments": (
        "def f(x: Tensor, a: float, k: int) -> Tensor:\n    return x * torch.tensor([a, k])",
        "a tensor that is no argument",
    ),
    **{
        f"a constant that has dimensions: {constant}": (
            "HALF = torch.ones(1, 1) / 2\n"
            f"def f(x: Tensor, a: float, k: int) -> Tensor:\n    return a * k * x * {constant}",
            "a tensor of one number that has dimensions is part of the formula, and what is made of "
            "tensors without them would have them; write it as a number, or without dimensions, as torch.tensor(0.5)",
        )
        for constant in (
            *("torch.tensor([0.5], dtype=x.dtype)", "torch.tensor([[0.5]])", "HALF"),
            *("x.new_tensor([0.5])", "torch.tensor([a])", "torch.as_tensor([k], dtype=x.dtype)"),
        )
    },
    "reduction": (
        "def f(x: Tensor, y: Tensor) -> Tensor:\n    return F.kl_div(x, y, reduction='batchmean')",
        'reduction="batchmean" is a reduction; say "mean" or "sum", or "none" and reduce what it',
    ),
    "does not run": (
        TENSOR + "x * undefined",
        "'return x * undefined': the definition does not run: NameError",
    ),
    **{
        f"what PyTorch refuses: {expression}": (
            f"def f(x: Tensor, y: Tensor) -> Tensor:\n    return y.exp() * ({expression})",
            f":f: the definition does not run: {error}",
        )
        for expression, error in {
            "x * 10**30": "OverflowError: ",
            "x.sum(-1, keepdim=True) * 10**30": "OverflowError: ",
            "x * -(x > 0)": "RuntimeError: Negation, the `-` operator, on a bool tensor",
            "x * ((x > 0) - (x > 1))": "RuntimeError: Subtraction, the `-` operator, with two bool",
            "torch.where(x > 0, 3, 2) ** -1 * x": "RuntimeError: Integers to negative integer",
            "x.add(y, alpha=True)": "RuntimeError: Boolean alpha only supported for Boolean",
        }.items()
    },
    "no method": (TENSOR + "x.undefined()", "'Tensor' object has no attribute 'undefined'"),
    "type": ("def f(x: Tensor, s: str) -> Tensor:\n    return x", "the argument 's' has the type"),
    "annotation": (
        "def f(x) -> Tensor:\n    return x",
        "'x' has no annotation: of Tensor, Tensor | None, float, int and bool say which, as in "
        "def f(x: Tensor) -> Tensor",
    ),
    "annotations": (
        "def f(x, weight=None, *, eps=1e-6, n=2, flag=True, y: Tensor):\n    return x",
        "'x' and 'weight' and 'eps' and 'n' and 'flag' have no annotation: of Tensor, Tensor | "
        "None, float, int and bool say which, as in def f(x: Tensor, weight: Tensor | None = "
        "None, *, eps: float = 1e-06, n: int = 2, flag: bool = True, y: Tensor)",
    ),
    "default": (
        "def f(x: Tensor, a: float = '1') -> Tensor:\n    return x * a",
        "the default of 'a' is '1', which is no literal",
    ),
    **{
        f"a default that is {default}": (
            f"def f(x: Tensor, a: {kind} = {default}) -> Tensor:\n    return x * a",
            "the default of 'a' is none that a schema can hold, a finite float or an integer of 64",
        )
        for kind, default in (
            *(("float", "math.inf"), ("float", "-math.inf"), ("float", "math.nan")),
            *(("float", "10**400"), ("float", "-(10**5000)"), ("int", "10**5000")),
            *(("int", "2**63"), ("int", "-(2**63) - 1")),
        )
    },
    "lambda": ("f = lambda x: x", "that is a lambda"),
    "module": ("f = torch.nn.ReLU()", "that is a torch.nn.Module"),
    "class": ("f = torch.nn.ReLU", "that is a torch.nn.Module"),
    "object": ("f = 3", "that is a int, not a function"),
    "variadic": ("def f(*x: Tensor) -> Tensor:\n    return x[0]", "'*x: torch.Tensor' is not"),
    "keyword": (
        "def f(x: Tensor, *, y: Tensor) -> Tensor:\n    return x * y",
        "y is a tensor that can only be passed by keyword",
    ),
    "weight of a loss": (
        "def f(x: Tensor, y: Tensor, z: Tensor) -> Tensor:\n"
        '    return F.binary_cross_entropy_with_logits(x, y, z, reduction="none")',
        "the argument weight is not derived; multiply the loss by it",
    ),
    "weight of the positive": (
        "def f(x: Tensor, y: Tensor, z: Tensor) -> Tensor:\n    return "
        'F.binary_cross_entropy_with_logits(x, y, reduction="none", pos_weight=z)',
        "by pos_weight PyTorch has no derivative; make it a number, torch.tensor(w)",
    ),
    "optional first": (
        "def f(y: Tensor | None, x: Tensor) -> Tensor:\n    return x if y is None else x * y",
        "'y' may be None, and the first tensor says what the result is like",
    ),
    "no tensor": (
        "def f(a: float) -> Tensor:\n    return torch.full((), a)",
        "no argument of type",
    ),
    "a name of a gradient": (
        "def f(x: Tensor, grad_output1: Tensor) -> Tensor:\n    return x * grad_output1",
        "'grad_output1' is used",
    ),
    "a name of ours": (
        "def f(x: Tensor, ctx: float) -> Tensor:\n    return x * ctx",
        "'ctx' is used",
    ),
    **{
        f"an argument that is called as what formulas call: {name}": (
            "from torch.nn import functional as nnf\nimport math as m\n"
            f"def f(x: Tensor, {name}: float) -> Tensor:\n    return {body}",
            f"the argument's name '{name}' is used by the generated code: choose another name",
        )
        for name, body in {
            "F": "nnf.softplus(x * F)",
            "math": "x * m.erf(math)",
            "real_math": "x * m.exp(real_math)",
            "float": "(torch.tensor(float) > 0).to(x.dtype) * x",
            "max": "x.mean(-1, keepdim=True) * x * max",
            "stand_in": "x * stand_in",
            "keyword_only_inputs": "x * keyword_only_inputs",
        }.items()
    },
    **{
        f"a helper that is called as what spec.py calls: {name}": (
            f"def {name}(x):\n    return x.log()\n"
            f"def f(x: Tensor, y: Tensor) -> Tensor:\n    return {name}(x) * torch.heaviside(x, y)",
            f"the name '{name}' in ",
        )
        for name in ("spec", "samples", "composed", "OpSpec", "Sample")
    },
    "another F": (
        "from torch.nn import functional as nnf\nF = 2.0\n"
        "def f(x: Tensor, y: Tensor) -> Tensor:\n"
        "    return nnf.softplus(x * F) * torch.heaviside(x, y)",
        "the name 'F' in ",
    ),
    "not carried": (
        """
globals()["scale"] = 2.0
def f(x: Tensor) -> Tensor:
    return x * scale
""",
        "'scale' is not defined by a statement of its own",
    ),
    "beside": (
        "import helpers\ndef f(x: Tensor) -> Tensor:\n    return helpers.twice(x)",
        "'import helpers' is found beside the file alone",
    ),
    "another value in spec.py": (
        """
values = [2.0]
same = values
same.append(3.0)
def f(x: Tensor) -> Tensor:
    return x * sum(values)
""",
        "is not the same where it is taken along into spec.py, 5.0 here and 2.0 there",
    ),
    "no value in spec.py": (
        """
def fill():
    values.append(3.0)
values = []
fill()
scale = values[0]
def f(x: Tensor) -> Tensor:
    return x * scale
""",
        "taken along into spec.py, does not run there: IndexError: list index out of range",
    ),
    "a name of spec.py": (
        """
def spec(x):
    return x * 2
def f(x: Tensor) -> Tensor:
    return spec(x)
""",
        "the name 'spec' in ",
    ),
    "another meaning in spec.py": (
        """
soft = F.soft_margin_loss
F = 0.5
def f(x: Tensor, y: Tensor) -> Tensor:
    return soft(x, y, reduction="none") * F
""",
        "the name 'F' in ",
    ),
    "beside, in a block": (
        """
try:
    import helpers
except ImportError:
    helpers = None
def f(x: Tensor) -> Tensor:
    return helpers.twice(x)
""",
        "'import helpers' is found beside the file alone",
    ),
    "state": (
        "seen = []\ndef f(x: Tensor) -> Tensor:\n    seen.append(1)\n    return x * len(seen)",
        "what the function keeps outside of itself",
    ),
    "own gradient": (
        """
class Odd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, g):
        return g * 3
def f(x: Tensor) -> Tensor:
    return Odd.apply(x)
""",
        "a torch.autograd.Function in it has a derivative of its own, which cannot be derived: ",
    ),
    "by keyword": (
        "def f(x: Tensor, y: Tensor) -> Tensor:\n    return x.where(condition=x > 0, other=y)",
        "where is called in a way that is not derived; pass its tensors by position, or start from",
    ),
    "float64": (TENSOR + "torch.float_power(x, 2)", "float_power computes in float64"),
    "softmax in float64": (
        TENSOR + "torch.softmax(x, -1, dtype=torch.float64)",
        "leave it out: the operator computes half types in float32 by itself",
    ),
    "a base of 0": (
        TENSOR + "0.0**x",
        "of 0 to the power of a tensor PyTorch's second derivative is NaN; say it with torch.where",
    ),
    "decimals": (
        "def f(x: Tensor, k: int) -> Tensor:\n    return torch.round(x, decimals=k)",
        "say torch.round(x * a) / a",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, define, tmp_path):
    source, message = REFUSED[case]
    (tmp_path / "helpers.py").write_text("def twice(x):\n    return x * 2\n")
    with pytest.raises(Refusal) as refused:
        assemble(read(define(source)))
    text = str(refused.value)
    assert message in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def f(x: Tensor) -> Tensor:\n    x * 2", "the definition returns NoneType; "),
        ("def f(x: Tensor) -> Tensor:\n    return 2", "the definition returns int; "),
        ("def f(x: Tensor, a: float) -> Tensor:\n    return a", "the definition returns float; "),
        ("def f(x: Tensor, k: int) -> Tensor:\n    return k", "the definition returns int; "),
        ("def f(x: Tensor, k: int) -> Tensor:\n    return k > 1", "the definition returns bool; "),
        ("def f(x: Tensor) -> Tensor:\n    return x.shape", "the definition returns torch.Size; "),
        ("def f(x: Tensor) -> Tensor:\n    yield x", "that is a generator or a coroutine, "),
        ("async def f(x: Tensor) -> Tensor:\n    return x", "that is a generator or a coroutine, "),
        ("async def f(x: Tensor) -> Tensor:\n    yield x", "that is a generator or a coroutine, "),
    ],
)
def test_the_definition_is_named_where_it_returns_no_tensor(source, reason, define):
    place = define(source)
    with pytest.raises(NotDerived) as refused:
        assemble(read(place))
    assert f"{place}: {reason}" in str(refused.value)


def test_the_line_of_the_definition_is_named(define):
    place = define("def f(x: Tensor) -> Tensor:\n    y = x * 2\n    return torch.cumsum(y, 0)\n")
    with pytest.raises(NotDerived) as refused:
        derive(read(place))
    file = place.rpartition(":")[0]
    assert str(refused.value) == (
        f"{file}:9: 'return torch.cumsum(y, 0)': cumsum looks at more than one element, in "
        "a way that is not derived; start from --template scan, a state that goes along each row"
    )


def test_the_reference_takes_along_what_it_uses(define):
    source = """
UNUSED = 1
SCALE = 2.0


# Twice as much.
def twice(x: Tensor) -> Tensor:
    return x * SCALE


def f(x: "Tensor") -> Tensor:
    return twice(x) + math.pi
"""
    assert_expected_inline(
        read(define(source)).source,
        """\
import math
from torch import Tensor


SCALE = 2.0


# Twice as much.
def twice(x: Tensor) -> Tensor:
    return x * SCALE


def f(x: "Tensor") -> Tensor:
    return twice(x) + math.pi
""",
    )


# ----- what authors say

DOCSTRINGS = {
    "LaTeX": r'''r"""Computes $x \, \tanh(x) / \nu$, \N{x} and \u.

    Args:
        x: of $\mathbb{R}$ and \x.
    """''',
    "a backslash at an end": '''r"""Computes $x$ \\  \n\n    and more.\n    """''',
    "backslashes at the end": '''r"""Computes $x$ \\\\\\\\\n    """''',
    "backslashes at words' ends": 'r"""Computes ' + "a word\\ " * 40 + '"""',
    "quotes": """'''Computes \"\"\"twice\"\"\" as much.'''""",
    "a quote at the end": """'''Computes "twice as much"'''""",
    "a backslash and quotes": """r'''Computes \\tanh as in a docstring, \"\"\"'''""",
    "control characters": r'''"""Computes $\x00 x \tanh(x) \r / \nu$ \x0c\x1b \ud800."""''',
}


@pytest.mark.parametrize("case", DOCSTRINGS)
@pytest.mark.parametrize("template", ["", "kernel"])
@pytest.mark.filterwarnings("error")
def test_docstrings_stay_what_they_say(case, template, define):
    source = f"def f(x: Tensor) -> Tensor:\n    {DOCSTRINGS[case]}\n    return torch.tanh(x)\n"
    definition = read(define(source))
    if template:
        files = with_template(definition, template, Options())
    else:
        files = assemble(definition).files
    module = ast.parse(files["ops.py"])
    said, _ = summary(definition)
    (function,) = [node for node in module.body if getattr(node, "name", "") == "f"]
    # Formatters leave no spaces at the ends of lines.
    assert ast.get_docstring(function).split()[: len(said.split())] == said.split()
    first = said.splitlines()[0].removeprefix("Computes ").rstrip(".")
    if not template:
        assert ast.get_docstring(module).split() == f"f: {first}.".split()
        text = files["f.cpp"]
        assert text.startswith("// ")
        assert not re.search(r"\\\s*\n", text)
        assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("statements", "value"),
    [
        ("C = [1.0, 0.5]\nC.append(0.25)", "sum(C)"),
        ("C = [2.0, 1.0]\nheapq.heapify(C)", "C[0]"),
        ("C = 2.0\nC = C * 3", "C"),
        ("C = 2.0; C = C * 3", "C"),
        ("B = [1.0]; C = 2.0; B.append(C)", "sum(B)"),
        ("C = 2.0\nC *= 3", "C"),
        ("C: float = 2.0\nC += 1", "C"),
        ('P = {}\nP["a"] = 0.5', 'P["a"]'),
        ('P = {"a": 0.5, "b": 2.0}\ndel P["a"]', "sum(P.values())"),
        ("class P:\n    a = 0.5\nP.a = 0.25", "P.a"),
        ("if math.pi > 3:\n    C = 2.0\nelse:\n    C = 3.0", "C"),
        ("C = 1.0\nfor k in range(3):\n    C = C + k", "C"),
        ("C = []\nfor k in range(3):\n    C.append(k + 0.5)", "sum(C)"),
        ("try:\n    C = math.nothing\nexcept AttributeError:\n    C = 2.0", "C"),
        ("with torch.no_grad():\n    C = 2.0", "C"),
        ("A, *B = 1.0, 2.0, 3.0\nB[0] = A", "sum(B)"),
    ],
)
def test_what_changes_a_value_is_taken_along(statements, value, define):
    after = "if __name__ == '__main__':\n    C = B = P = None\nx = y = 3.0\nprint(x)\n"
    body = f"def f(x: Tensor) -> Tensor:\n    y = x * ({value})\n    return y\n"
    definition = read(define(f"import heapq\n{statements}\n{body}{after}"))
    scope: dict[str, Any] = {}
    exec(definition.source, scope)
    x = torch.ones(())
    assert scope["f"](x).item() == definition.carried(x).item() == definition.function(x).item()
    assert "3.0\nprint" not in definition.source
    assert "__main__" not in definition.source
    assert definition.source.count(statements.splitlines()[-1]) == 1
    assert derive(definition)


def test_lines_are_those_that_python_counts(define):
    """Form feeds, and separators of lines in Unicode, end none."""
    source = """
# One line:\u2028of a comment.\x0c
SCALE = {"\u2028\x85": 2.0}


def f(x: Tensor) -> Tensor:\x0c
    return x * sum(SCALE.values())  # \u2028 here, too
"""
    definition = read(define(source))
    assert definition.source == f"from torch import Tensor\n\n\n{source[1:]}"
    assert derive(definition)


def test_statements_that_stand_together_are_taken_along_so(define):
    source = """
# Of which there are two.
C = [1.0]
C.append(2.0)
def f(x: Tensor) -> Tensor:
    return x * sum(C)
"""
    assert read(define(source)).source == f"from torch import Tensor\n\n\n{source[1:]}"


# ----- the command


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the repository under git, which every test leaves as it was."""
    return checkout_of(tmp_path_factory.mktemp("checkout"))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("softcap.py", "give a file and a function in it, softcap.py:softcap"),
        ("nowhere.py:softcap", "there is no file nowhere.py"),
        ("{file}:other", "has no function 'other'"),
        ("{broken}:f", "does not run: ValueError: no"),
        ("{taken}:fused_op", "the operator 'fused_op' exists"),
    ],
)
def test_refused_requests(place, message, define, checkout):
    files = {
        "file": define("def f(x: Tensor) -> Tensor:\n    return x"),
        "broken": define("raise ValueError('no')"),
        "taken": define("def fused_op(x: Tensor) -> Tensor:\n    return x * 2"),
    }
    place = place.format(**{name: value.rpartition(":")[0] for name, value in files.items()})
    with pytest.raises(SystemExit) as stopped, redirect_stderr(io.StringIO()) as written:
        new_op.main(["--from", place], checkout)
    assert stopped.value.code == 2
    (line,) = written.getvalue().splitlines()
    assert message in line
    assert git(checkout, "status", "--porcelain", "--ignored") == ""


def test_an_operator_is_written_and_taken_out(checkout, capsys):
    place = f"{derived_functions.__file__}:softcap"
    new_op.main(["--from", place, "--dry-run"], checkout)
    assert git(checkout, "status", "--porcelain") == ""
    new_op.main(["--from", place], checkout)
    folder = checkout / "extension_cpp" / "operators" / "softcap"
    names = {path.name for path in folder.iterdir()}
    assert names == {"__init__.py", "softcap.cpp", "ops.py", "spec.py"}
    assert "EDIT:" not in "".join(path.read_text() for path in folder.iterdir())
    assert "import softcap as softcap" in (checkout / "extension_cpp/ops.py").read_text()
    new_op.main(["--remove", "softcap"], checkout)
    assert git(checkout, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("signature", "result", "shapes", "said"),
    [
        ("x: Tensor", "x.amax(-1)", None, ""),
        ("x: Tensor, weight: Tensor", "x * weight", None, "Shapes: `x` and `weight` broadcast.\n"),
        ("x: Tensor, mask: torch.BoolTensor", "(x, mask)", None, "`mask` have one shape.\n"),
        (
            "x: Tensor, weight: Tensor, scale: Tensor",
            "x.softmax(-1) * weight * scale",
            None,
            "Shapes: `x` and `scale` have the shape of the rows, `weight` has a value for each "
            "column. Where that is not so, say the shapes, as this line does, or the annotation of "
            'one, Annotated[Tensor, "*rows 1"]:\n    --shapes "*rows n, n, *rows n -> *rows n"\n',
        ),
        (
            "x: Tensor, mask: torch.BoolTensor, bias: Tensor, scale: Tensor",
            "torch.where(mask, x.softmax(-1), 0) * scale + bias",
            "*rows n, *rows n, n, n -> *rows n",
            "`x` and `mask` have the shape of the rows, `bias` and `scale` have a value for each "
            "column.",
        ),
        (
            "x: Tensor, y: Tensor, g: Tensor",
            "x.softmax(-1) * y * g",
            "*rows n, *rows 1, () -> *rows n",
            "`x` has the shape of the rows, `y` has a value for each row, `g` has one number.",
        ),
    ],
)
def test_the_closing_words_say_the_shapes(
    signature, result, shapes, said, define, checkout, capsys
):
    returned = "tuple[Tensor, torch.BoolTensor]" if result.startswith("(") else "Tensor"
    place = define(f"def f({signature}) -> {returned}:\n    return {result}\n")
    new_op.main(["--from", place, *(["--shapes", shapes] if shapes else [])], checkout)
    new_op.main(["--remove", "f"], checkout)
    closing = capsys.readouterr().out
    assert said in closing
    assert ("Shapes:" in closing) == bool(said)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--no-grad"], "takes --shapes and --dry-run alone"),
        (["--template", "kernel", "--backward", "torch"], "the derivative is the function's"),
    ],
)
def test_options_that_do_not_go_with_from(options, message, capsys):
    with pytest.raises(SystemExit):
        new_op.parse_arguments(["--from", "a.py:f", *options])
    assert message in capsys.readouterr().err


# ----- all but the kernel


GRAM = """
def gram(x: Tensor, y: Tensor, *, scale: float = 1.0) -> Tensor:
    \"\"\"Products of all pairs of rows.\"\"\"
    return scale * torch.matmul(x, y)
"""


def test_a_definition_as_a_schema_alone(define, checkout):
    """Of what no formula is derived of."""
    place = define(GRAM, "gram")
    with pytest.raises(NotDerived, match="matmul is a product of matrices"):
        derive(read(place))
    options = ["--template", "kernel", "--shapes", "*b m k, *b k n -> *b m n"]
    new_op.main(["--from", place, *options], checkout)
    folder = checkout / "extension_cpp" / "operators" / "gram"
    files = {path.name: path.read_text() for path in folder.iterdir()}
    assert {*files} == {
        *("__init__.py", "ops.py", "spec.py", "definition.py"),
        *("gram.h", "gram_cpu.cpp", "gram_cuda.cu"),
    }
    assert '"gram(Tensor x, Tensor y, *, float scale=1.0) -> Tensor", "*b m k' in files["gram.h"]
    for file in ("gram_cpu.cpp", "gram_cuda.cu"):
        assert "EDIT: the kernel" in files[file]
        # Of these shapes the template's kernel would read what is not there.
        text = " ".join(files[file].split())
        assert "y.numel() == x.numel() && output.numel() == x.numel()" in text
        assert "gram: its kernel is the template's, for tensors of one shape" in text
    assert files["definition.py"].endswith(GRAM.lstrip())
    new_op.main(["--remove", "gram"], checkout)
    assert git(checkout, "status", "--porcelain") == ""
    assert_expected_inline(
        files["ops.py"],
        """\
\"\"\"gram: products of all pairs of rows.\"\"\"

import torch
from torch import Tensor

from extension_cpp import checks, registration
from extension_cpp.operators.gram.definition import gram as _definition

_ops = torch.ops.extension_cpp


def gram(x: Tensor, y: Tensor, *, scale: float = 1.0) -> Tensor:
    \"\"\"Products of all pairs of rows.

    Args:
        x: of shape `(..., m, k)` and any layout, on CPU or CUDA; float64, float32, float16 or
            bfloat16.
        y: of shape `(..., k, n)`, dtype and device of `x`.
        scale: a number.

    Returns:
        A contiguous tensor of shape `(..., m, n)` with the dtype of `x`.
        Differentiable to any order, in reverse and forward mode.

    Raises:
        RuntimeError: a dtype, device or shape other than the above.
    \"\"\"
    checks.check_number("gram", "scale", scale)
    return _ops.gram(x, y, scale=scale)


registration.register_fake("extension_cpp::gram")
# EDIT: the definition's derivative. The definition is computed besides the kernel for it; a formula
# saves that: _setup_context and _backward, as in templates/kernel/ops.py.
registration.register_autograd("extension_cpp::gram", reference=_definition)
registration.register_vmap("extension_cpp::gram")
# EDIT: under autocast half and float32 meet in float32; or "lower_precision", "float32".
registration.register_autocast("extension_cpp::gram", "promote")
""",
    )
    assert_expected_inline(
        files["spec.py"],
        """\
from extension_cpp.operators.gram.definition import gram
from extension_cpp.testing import OpSpec

spec = OpSpec(name="gram", reference=gram, autocast="promote")
""",
    )


@pytest.mark.parametrize("kind", ["elementwise", "rowwise", "reduction", "scan"])
def test_a_schema_alone_of_other_shapes_checks_them_in_every_template(kind, define):
    definition = read(define(GRAM, "gram"), "*b m k, *b k n -> *b m n")
    options = Options(shapes=definition.shapes)
    text = " ".join(with_template(definition, kind, options)["gram.cpp"].split())
    assert "const CheckedInputs checked = kGram.check(x, y); check( " in text
    assert "gram: its formula is the template's, for tensors of one shape" in text


@pytest.mark.parametrize("kind", ["elementwise", "rowwise", "reduction"])
def test_a_schema_alone_with_another_template(kind, checkout):
    place = f"{derived_functions.__file__}:scaled_exp"
    new_op.main(["--from", place, "--template", kind], checkout)
    folder = checkout / "extension_cpp" / "operators" / "scaled_exp"
    assert "EDIT:" in (folder / "scaled_exp.cpp").read_text()
    assert "reference=_definition)" in (folder / "ops.py").read_text()
    spec = (folder / "spec.py").read_text()
    assert 'reference=scaled_exp, autocast="promote")' in " ".join(spec.split())
    new_op.main(["--remove", "scaled_exp"], checkout)
    assert git(checkout, "status", "--porcelain") == ""


@pytest.mark.parametrize(("body", "is_said"), [("x * x.detach()", True), ("x * x", False)])
def test_a_schema_alone_of_a_definition_that_stops_gradients(body, is_said, define, checkout):
    place = define(f"def f(x: Tensor) -> Tensor:\n    return {body}\n")
    new_op.main(["--from", place, "--template", "kernel"], checkout)
    spec = (checkout / "extension_cpp" / "operators" / "f" / "spec.py").read_text()
    new_op.main(["--remove", "f"], checkout)
    assert ("reference=f, stops_gradients=True" in " ".join(spec.split())) == is_said


def test_a_schema_alone_without_derivatives(define, checkout):
    new_op.main(["--from", define(GRAM, "gram"), "--template", "kernel", "--no-grad"], checkout)
    folder = checkout / "extension_cpp" / "operators" / "gram"
    assert "register_no_autograd(" in (folder / "ops.py").read_text()
    assert "differentiable=False" in (folder / "spec.py").read_text()
    new_op.main(["--remove", "gram"], checkout)


def test_a_result_without_a_batch(define):
    definition = read(define(GRAM, "gram"), "n, n -> ()")
    ops = with_template(definition, "kernel", Options(shapes=definition.shapes))["ops.py"]
    rule = 'register_vmap("extension_cpp::gram", by_example("extension_cpp::gram"))'
    assert rule in ops


def test_a_schema_alone_of_several_dtypes(define):
    """What annotations say stands in the line; without a floating result there is no derivative."""
    definition = read(FUNCTIONS["chosen"])
    files = with_template(definition, "kernel", Options())
    assert '"*rows n:bool, *rows n, *rows n -> *rows n"' in files["chosen.h"]
    assert "const bool* __restrict__ mask," in files["chosen_cpu.cpp"]
    files = with_template(definition, "elementwise", Options())
    assert '"*shape:bool, *shape, *shape -> *shape"' in files["chosen.cpp"]
    files = with_template(definition, "kernel", Options(shapes="n:bool, *rows n, n -> *rows n"))
    assert '"n:bool, *rows n, n -> *rows n"' in files["chosen.h"]
    source = "def f(x: Tensor) -> tuple[Tensor, torch.BoolTensor]:\n    return x, x > 0"
    files = with_template(read(define(source)), "multi_output_kernel", Options())
    assert '"*rows n -> *rows n, *rows:bool"' in files["f.h"]
    source = "def f(x: Tensor) -> torch.CharTensor:\n    return x.to(torch.int8)"
    files = with_template(read(define(source)), "kernel", Options())
    assert '"*rows n -> *rows n:int8"' in files["f.h"]
    assert "register_no_autograd" in files["ops.py"]


SOFTMAX = """
def soft(x: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    \"\"\"Softmax of each row, and its logsumexp.\"\"\"
    lse = torch.logsumexp(x * scale, -1)
    return torch.exp(x * scale - lse.unsqueeze(-1)), lse
"""


def test_a_schema_alone_of_several_results(define):
    """All of which are for users."""
    place = define(SOFTMAX, "soft")
    line = "*rows n -> *rows n, *rows:float32"
    options = Options(shapes=line)
    files = with_template(read(place, line), "multi_output_kernel", options)
    assert f'"soft(Tensor x, float scale=1.0) -> (Tensor, Tensor)", "{line}"' in files["soft.h"]
    assert "Backward" not in files["soft.h"]
    assert "float* __restrict__ mean," in files["soft_cpu.cpp"]
    assert_expected_inline(
        f"{files['ops.py']}\n{files['spec.py']}",
        """\
\"\"\"soft: softmax of each row, and its logsumexp.\"\"\"

import torch
from torch import Tensor

from extension_cpp import checks, registration
from extension_cpp.operators.soft.definition import soft as _definition

_ops = torch.ops.extension_cpp


def soft(x: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    \"\"\"Softmax of each row, and its logsumexp.

    Args:
        x: of shape `(..., n)` and any layout, on CPU or CUDA; float64, float32, float16 or
            bfloat16.
        scale: a number.

    Returns:
        A contiguous tensor of shape `(..., n)` with the dtype of `x`; a contiguous tensor of
        shape `(...)` in float32.
        Differentiable to any order, in reverse and forward mode.

    Raises:
        RuntimeError: a dtype, device or shape other than the above.
    \"\"\"
    checks.check_number("soft", "scale", scale)
    return _ops.soft(x, scale)


registration.register_fake("extension_cpp::soft")
# EDIT: the definition's derivative. The definition is computed besides the kernel for it; a formula
# saves that: _setup_context and _backward, as in templates/multi_output_kernel/ops.py.
registration.register_autograd("extension_cpp::soft", reference=_definition)
registration.register_vmap("extension_cpp::soft")

from extension_cpp.operators.soft.definition import soft
from extension_cpp.testing import OpSpec

spec = OpSpec(name="soft", reference=soft)
""",
    )
    # In plain PyTorch what is of a row has the dtype of the row.
    files = with_template(read(place), "multi_output_kernel", Options())
    assert '"*rows n -> *rows n, *rows"' in files["soft.h"]


@pytest.mark.parametrize(
    ("kind", "source", "message"),
    [
        ("multi_output", GRAM, "what the template returns besides its result no definition says"),
        ("inplace", GRAM, "the function writes to no argument; start from the schema"),
        ("inplace_kernel", GRAM, "the function writes to no argument; start from the schema"),
        (
            "kernel",
            "def gram(x: Tensor) -> tuple[Tensor, Tensor]:\n    return x, x",
            "the template 'kernel' is for operators that return one new tensor, which gram is not",
        ),
        (
            *("multi_output_kernel", GRAM),
            "the template 'multi_output_kernel' is for operators that return several new tensors,",
        ),
    ],
)
def test_templates_that_do_not_fit(kind, source, message, define, checkout, capsys):
    with pytest.raises(SystemExit):
        new_op.main(["--from", define(source, "gram"), "--template", kind], checkout)
    assert message in capsys.readouterr().err


def test_names_that_mean_something_else_in_cpp(define):
    source = "def exp(x: Tensor, double: float, errno: float) -> Tensor:\n"
    source += "    std = torch.exp(x * double)\n    return std * std + errno\n"
    files = assemble(read(define(source, "exp"))).files
    assert_expected_inline(
        files["exp.cpp"].partition("Tensor exp(")[0],
        """\
// exp of each element
#include "elementwise.h"

namespace extension_cpp::op_exp {

const Operator kExp{"exp(Tensor x, float double, float errno) -> Tensor", "*shape -> *shape"};
const Operator kExpBackward{
    "exp_backward(Tensor grad_output, Tensor x, float double) -> Tensor", "*shape, *shape -> *shape"};

template <class A>
struct Exp {
  A double_;
  A errno_;

  HOST_DEVICE A operator()(A x) const {
    const A std2 = math::exp(x * double_);
    return std2 * std2 + errno_;
  }
};

template <class A>
struct ExpBackward {
  A double_;

  HOST_DEVICE A operator()(A grad_output, A x) const {
    const A std2 = math::exp(x * double_);
    return A(2) * grad_output * std2 * std2 * double_;
  }
};

Tensor op_exp(const Tensor& x, double double_, double errno_) { return elementwise<Exp>(kExp, x, double_, errno_); }

Tensor exp_backward(const Tensor& grad_output, const Tensor& x, double double_) {
  return elementwise<ExpBackward>(kExpBackward, grad_output, x, double_);
}

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {
  m.def(kExp.schema());
  m.def(kExpBackward.schema());
}

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {
  m.impl("exp", TORCH_BOX(&op_exp));
  m.impl("exp_backward", TORCH_BOX(&exp_backward));
}

}  // namespace extension_cpp::op_exp
""",
    )


def test_an_operator_called_as_the_library_that_it_is_registered_in(define):
    source = "def m(x: Tensor) -> Tensor:\n    return torch.exp(x)\n"
    text = assemble(read(define(source, "m"))).files["m.cpp"]
    assert 'm.impl("m", TORCH_BOX(&op_m));' in text


@pytest.mark.parametrize("name", ["double", "operator", "errno", "c10"])
def test_an_operator_called_as_a_word_of_cpp(name, define):
    source = f"def {name}(x: Tensor) -> Tensor:\n    return x.exp()\n"
    text = assemble(read(define(source, name))).files[f"{name}.cpp"]
    assert f"Tensor op_{name}(const Tensor& x) {{" in text
    assert f'm.impl("{name}", TORCH_BOX(&op_{name}));' in text


@pytest.mark.parametrize("name", ["checks", "registration", "math", "real_math", "torch"])
def test_an_operator_called_as_what_its_functions_call(name, define):
    source = "import math as m\n"
    source += f"def {name}(x: Tensor, a: float) -> Tensor:\n    return x.exp() * m.exp(m.erf(a))"
    with pytest.raises(NotDerived, match=f"the operator's name '{name}' is used by the generated"):
        assemble(read(define(source, name)))


@pytest.mark.parametrize(
    "name", ["F", "math", "abs", "Tensor", "make", "samples", "inputs", "grad_x"]
)
def test_an_argument_called_as_what_nothing_calls(name, define):
    source = f"def f(x: Tensor, {name}: float) -> Tensor:\n    return torch.log(x) * {name}"
    files = assemble(read(define(source))).files
    assert f"\ndef f(x: Tensor, {name}: float) -> Tensor:\n" in files["ops.py"]
    assert "yield Sample(make(shape, low=" in files["spec.py"]


@pytest.mark.parametrize("name", ["shapes", "has_y"])
def test_numbers_lie_beside_what_is_kept_of_tensors(name, define):
    source = (
        f"def f(x: Tensor, y: Tensor | None, {name}: float) -> Tensor:\n"
        f"    return x * {name} if y is None else x * {name} + y"
    )
    ops = assemble(read(define(source))).files["ops.py"]
    assert ops.count(f"    x, y, ctx.{name}_ = inputs\n") == 1
    assert f"    ctx.{name} = " in ops


# ----- what is printed


def printed(name, file):
    """A file of the operator, the same whatever the package is called."""
    text = texts(planned(read(FUNCTIONS[name])))[file]
    return format_text(file, text.replace(repository.PACKAGE, "package"))


def test_softcap_cpp():
    assert_expected_inline(
        printed("softcap", "softcap.cpp"),
        """\
// Limits x smoothly to (-cap, cap)
#include "elementwise.h"

namespace package::softcap {

const Operator kSoftcap{"softcap(Tensor x, float cap=30.0) -> Tensor", "*shape -> *shape"};
const Operator kSoftcapBackward{
    "softcap_backward(Tensor grad_output, Tensor x, float cap) -> Tensor", "*shape, *shape -> *shape"};

template <class A>
struct Softcap {
  static constexpr int kWork = 16;  // instructions for an element

  Divisor<A> cap;

  HOST_DEVICE A operator()(A x) const { return cap * math::tanh(x / cap); }
};

template <class A>
struct SoftcapBackward {
  Divisor<A> cap;

  HOST_DEVICE A operator()(A grad_output, A x) const {
    const A tanh = math::tanh(x / cap);
    return grad_output * (A(1) - tanh * tanh);
  }
};

Tensor softcap(const Tensor& x, double cap) { return elementwise<Softcap>(kSoftcap, x, cap); }

Tensor softcap_backward(const Tensor& grad_output, const Tensor& x, double cap) {
  return elementwise<SoftcapBackward>(kSoftcapBackward, grad_output, x, cap);
}

TORCH_LIBRARY_FRAGMENT(package, m) {
  m.def(kSoftcap.schema());
  m.def(kSoftcapBackward.schema());
}

TORCH_LIBRARY_IMPL(package, BACKEND, m) {
  m.impl("softcap", TORCH_BOX(&softcap));
  m.impl("softcap_backward", TORCH_BOX(&softcap_backward));
}

}  // namespace package::softcap
""",
    )


def test_softcap_ops():
    assert_expected_inline(
        printed("softcap", "ops.py"),
        """\
\"\"\"softcap: limits `x` smoothly to (-cap, cap).\"\"\"

import torch
from package import checks, registration
from torch import Tensor

_ops = torch.ops.package


def softcap(x: Tensor, cap: float = 30.0) -> Tensor:
    \"\"\"Limits `x` smoothly to (-cap, cap).

    Half types are computed in float32 and rounded once.

    Args:
        x: logits; of any shape and layout, float64, float32, float16 or bfloat16, on CPU or CUDA.
        cap: the bound; a number; not differentiable.

    Returns:
        A tensor with the shape and dtype of `x`, and its layout where it is dense. Differentiable
        to any order, in reverse and forward mode.

    Raises:
        RuntimeError: another dtype.
        TypeError: a tensor for `cap` whose derivative would be lost.
    \"\"\"
    checks.check_number("softcap", "cap", cap)
    return _ops.softcap(x, cap)


def _setup_context(ctx, inputs, output):
    x, ctx.cap = inputs
    ctx.save_for_backward(x)


def _backward(ctx, grad_output):
    (x,) = ctx.saved_tensors
    return _ops.softcap_backward(grad_output, x, ctx.cap), None


def _backward_in_torch(grad_output, x, cap):
    tanh = torch.tanh(x / cap)
    return grad_output * (1 - tanh * tanh)


registration.register_fake("package::softcap", "package::softcap_backward")
registration.register_autograd("package::softcap", _backward, setup_context=_setup_context)
registration.register_autograd("package::softcap_backward", reference=_backward_in_torch)
registration.register_vmap("package::softcap", "package::softcap_backward")
""",
    )


def test_softcap_spec():
    assert_expected_inline(
        printed("softcap", "spec.py"),
        """\
import torch
from package.testing import OpSpec
from torch import Tensor


def softcap(x: Tensor, cap: float = 30.0) -> Tensor:
    \"\"\"Limits `x` smoothly to (-cap, cap).

    Args:
        x: logits.
        cap: the bound.
    \"\"\"
    return cap * torch.tanh(x / cap)


spec = OpSpec(name="softcap", reference=softcap)
""",
    )


def test_tanh_gelu_cpp():
    assert_expected_inline(
        printed("tanh_gelu", "tanh_gelu.cpp"),
        """\
// tanh_gelu of each element
#include "elementwise.h"

namespace package::tanh_gelu {

const Operator kTanhGelu{"tanh_gelu(Tensor x) -> Tensor", "*shape -> *shape"};
const Operator kTanhGeluBackward{
    "tanh_gelu_backward(Tensor grad_output, Tensor x) -> Tensor", "*shape, *shape -> *shape"};

template <class A>
struct TanhGelu {
  static constexpr int kWork = 21;  // instructions for an element

  HOST_DEVICE A operator()(A x) const {
    const A inner = A(0.7978845608028654) * (x + A(0.044715) * (x * x * x));
    return A(0.5) * x * (A(1) + math::tanh(inner));
  }
};

template <class A>
struct TanhGeluBackward {
  static constexpr int kWork = 29;  // instructions for an element

  HOST_DEVICE A operator()(A grad_output, A x) const {
    const A x_squared = x * x;
    const A inner = A(0.7978845608028654) * (x + A(0.044715) * (x_squared * x));
    const A tanh = math::tanh(inner);
    const A sum = A(0.7978845608028654) + A(0.10703222440890037) * x_squared;
    return grad_output * (A(0.5) * x * (A(1) - tanh * tanh) * sum + A(0.5) * (A(1) + tanh));
  }
};

Tensor tanh_gelu(const Tensor& x) { return elementwise<TanhGelu>(kTanhGelu, x); }

Tensor tanh_gelu_backward(const Tensor& grad_output, const Tensor& x) {
  return elementwise<TanhGeluBackward>(kTanhGeluBackward, grad_output, x);
}

TORCH_LIBRARY_FRAGMENT(package, m) {
  m.def(kTanhGelu.schema());
  m.def(kTanhGeluBackward.schema());
}

TORCH_LIBRARY_IMPL(package, BACKEND, m) {
  m.impl("tanh_gelu", TORCH_BOX(&tanh_gelu));
  m.impl("tanh_gelu_backward", TORCH_BOX(&tanh_gelu_backward));
}

}  // namespace package::tanh_gelu
""",
    )


def test_gate_cpp():
    assert_expected_inline(
        printed("swish_gate", "swish_gate.cpp"),
        """\
// silu(gate) * up
#include "elementwise.h"
#include "sums.h"

namespace package::swish_gate {

const Operator kSwishGate{"swish_gate(Tensor gate, Tensor up) -> Tensor", "..., ... -> ..."};
const Operator kSwishGateBackward{
    "swish_gate_backward(Tensor grad_output, Tensor gate, Tensor up) -> (Tensor, Tensor)",
    "..., ..., ... -> =gate, =up"};

template <class A>
struct SwishGate {
  HOST_DEVICE A operator()(A gate, A up) const { return gate * math::sigmoid(gate) * up; }
};

// The gradients of gate and up.
template <class A>
struct SwishGateBackward {
  HOST_DEVICE Values<A, 2> operator()(A grad_output, A gate, A up) const {
    const A sigmoid = math::sigmoid(gate);
    return {grad_output * up * sigmoid * (A(1) + gate * (A(1) - sigmoid)), grad_output * (gate * sigmoid)};
  }
};

Tensor swish_gate(const Tensor& gate, const Tensor& up) { return elementwise<SwishGate>(kSwishGate, gate, up); }

std::tuple<Tensor, Tensor> swish_gate_backward(const Tensor& grad_output, const Tensor& gate, const Tensor& up) {
  return elementwise_with_sums<SwishGateBackward, 2>(kSwishGateBackward, grad_output, gate, up);
}

TORCH_LIBRARY_FRAGMENT(package, m) {
  m.def(kSwishGate.schema());
  m.def(kSwishGateBackward.schema());
}

TORCH_LIBRARY_IMPL(package, BACKEND, m) {
  m.impl("swish_gate", TORCH_BOX(&swish_gate));
  m.impl("swish_gate_backward", TORCH_BOX(&swish_gate_backward));
}

}  // namespace package::swish_gate
""",
    )


def test_gate_ops():
    assert_expected_inline(
        printed("swish_gate", "ops.py"),
        """\
\"\"\"swish_gate: `silu(gate) * up`.\"\"\"

import torch
from package import registration
from torch import Tensor

_ops = torch.ops.package


def swish_gate(gate: Tensor, up: Tensor) -> Tensor:
    \"\"\"Computes `silu(gate) * up`.

    Half types are computed in float32 and rounded once.

    Args:
        gate: of any shape and layout, float64, float32, float16 or bfloat16, on CPU or CUDA.
        up: a shape that broadcasts with that of `gate`; dtype and device of `gate`.

    Returns:
        A tensor of the common shape, in the layout on which the dense inputs of that shape agree,
        else contiguous. Differentiable to any order, in reverse and forward mode. The gradient of
        an input that was broadcast is a deterministic sum, accumulated in float32 (float64 for
        float64).

    Raises:
        RuntimeError: a dtype, device or shape other than the above.
    \"\"\"
    return _ops.swish_gate(gate, up)


def _setup_context(ctx, inputs, output):
    gate, up = inputs
    ctx.save_for_backward(gate, up)


def _backward(ctx, grad_output):
    gate, up = ctx.saved_tensors
    return _ops.swish_gate_backward(grad_output, gate, up)


def _backward_in_torch(grad_output, gate, up):
    sigmoid = torch.sigmoid(gate)
    grad_gate = grad_output * up * sigmoid * (1 + gate * (1 - sigmoid))
    grad_up = grad_output * (gate * sigmoid)
    return grad_gate.sum_to_size(gate.shape), grad_up.sum_to_size(up.shape)


registration.register_fake("package::swish_gate", "package::swish_gate_backward")
registration.register_autograd("package::swish_gate", _backward, setup_context=_setup_context)
registration.register_autograd("package::swish_gate_backward", reference=_backward_in_torch)
registration.register_vmap("package::swish_gate", "package::swish_gate_backward")
# As PyTorch's arithmetic, which promotes: under autocast half and float32 meet in float32.
registration.register_autocast("package::swish_gate", "promote")
""",
    )


def test_several_dtypes_cpp():
    assert_expected_inline(
        printed("kept_scores", "kept_scores.cpp"),
        """\
// Scores, weighted where they are to be kept, and where that is
#include "elementwise.h"
#include "sums.h"

namespace package::kept_scores {

const Operator kKeptScores{
    "kept_scores(Tensor scores, Tensor weight, Tensor mask, Tensor k, int ignore=-1) -> (Tensor, Tensor)",
    "..., ..., ...:bool, ...:int64 -> ..., ...:bool"};
const Operator kKeptScoresBackward{
    "kept_scores_backward(Tensor grad_output0, Tensor scores, Tensor weight, Tensor mask, Tensor k, int ignore) -> "
    "(Tensor, Tensor)",
    "..., ..., ..., ...:bool, ...:int64 -> =scores, =weight"};

template <class A>
struct KeptScores {
  int64_t ignore;

  HOST_DEVICE Results<A, bool> operator()(A scores, A weight, bool mask, int64_t k) const {
    const bool kept = (mask && k != ignore) && scores > weight;
    return {kept ? scores * weight * static_cast<A>(k) : scores, kept};
  }
};

// The gradients of scores and weight.
template <class A>
struct KeptScoresBackward {
  int64_t ignore;

  HOST_DEVICE Values<A, 2> operator()(A grad_output0, A scores, A weight, bool mask, int64_t k) const {
    const bool kept = (mask && k != ignore) && scores > weight;
    const A grad_choice = kept ? A(0) : grad_output0;
    const A grad_choice2 = kept ? grad_output0 : A(0);
    const A grad_product = grad_choice2 * static_cast<A>(k);
    return {grad_choice + grad_product * weight, grad_product * scores};
  }
};

std::tuple<Tensor, Tensor> kept_scores(
    const Tensor& scores, const Tensor& weight, const Tensor& mask, const Tensor& k, int64_t ignore) {
  return elementwise<KeptScores>(kKeptScores, scores, weight, mask, k, ignore);
}

std::tuple<Tensor, Tensor> kept_scores_backward(
    const Tensor& grad_output0, const Tensor& scores, const Tensor& weight, const Tensor& mask, const Tensor& k,
    int64_t ignore) {
  return elementwise_with_sums<KeptScoresBackward, 2>(
      kKeptScoresBackward, grad_output0, scores, weight, mask, k, ignore);
}

TORCH_LIBRARY_FRAGMENT(package, m) {
  m.def(kKeptScores.schema());
  m.def(kKeptScoresBackward.schema());
}

TORCH_LIBRARY_IMPL(package, BACKEND, m) {
  m.impl("kept_scores", TORCH_BOX(&kept_scores));
  m.impl("kept_scores_backward", TORCH_BOX(&kept_scores_backward));
}

}  // namespace package::kept_scores
""",
    )


def test_several_dtypes_ops():
    assert_expected_inline(
        printed("kept_scores", "ops.py"),
        """\
\"\"\"kept_scores: scores, weighted where they are to be kept, and where that is.\"\"\"

import torch
from package import checks, registration
from torch import Tensor

_ops = torch.ops.package


def kept_scores(
    scores: Tensor, weight: Tensor, mask: Tensor, k: Tensor, ignore: int = -1
) -> tuple[Tensor, Tensor]:
    \"\"\"Scores, weighted where they are to be kept, and where that is.

    Half types are computed in float32 and rounded once.

    Args:
        scores: of any shape and layout, float64, float32, float16 or bfloat16, on CPU or CUDA.
        weight: a shape that broadcasts with those of the others; dtype and device of `scores`.
        mask: bool, of a shape that broadcasts with those of the others, on the device of `scores`.
        k: int64, of a shape that broadcasts with those of the others, on the device of `scores`.
        ignore: an integer; not differentiable.

    Returns:
        Two tensors, each of the common shape, in the layout on which the dense inputs of that shape
        agree, else contiguous. `kept` is bool and has no derivative. The rest has the dtype of
        `scores` and is differentiable to any order, in reverse and forward mode. The gradient of an
        input that was broadcast is a deterministic sum, accumulated in float32 (float64 for
        float64).

    Raises:
        RuntimeError: a dtype, device or shape other than the above.
        TypeError: a tensor for `ignore` whose derivative would be lost.
    \"\"\"
    checks.check_number("kept_scores", "ignore", ignore)
    return _ops.kept_scores(scores, weight, mask, k, ignore)


def _setup_context(ctx, inputs, output):
    scores, weight, mask, k, ctx.ignore = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(scores, weight, mask, k)


def _backward(ctx, grad_output0, *_):
    scores, weight, mask, k = ctx.saved_tensors
    if grad_output0 is None:
        return None, None, None, None, None
    grad_scores, grad_weight = _ops.kept_scores_backward(
        grad_output0, scores, weight, mask, k, ctx.ignore
    )
    return grad_scores, grad_weight, None, None, None


def _backward_in_torch(grad_output0, scores, weight, mask, k, ignore):
    kept = (mask & (k != ignore)) & (scores > weight)
    grad_choice = torch.where(kept, 0, grad_output0)
    grad_choice2 = torch.where(kept, grad_output0, 0)
    grad_product = grad_choice2 * k.to(grad_output0.dtype)
    grad_scores = grad_choice + grad_product * weight
    grad_weight = grad_product * scores
    return grad_scores.sum_to_size(scores.shape), grad_weight.sum_to_size(weight.shape)


registration.register_fake("package::kept_scores", "package::kept_scores_backward")
registration.register_autograd("package::kept_scores", _backward, setup_context=_setup_context)
registration.register_autograd("package::kept_scores_backward", reference=_backward_in_torch)
registration.register_vmap("package::kept_scores", "package::kept_scores_backward")
# As PyTorch's arithmetic, which promotes: under autocast half and float32 meet in float32.
registration.register_autocast("package::kept_scores", "promote")
""",
    )


def test_several_dtypes_spec():
    assert_expected_inline(
        printed("kept_scores", "spec.py"),
        """\
from typing import Annotated

import torch
from package.testing import OpSpec, Sample
from torch import Tensor

Mask = Annotated[Tensor, torch.bool]
Labels = Annotated[Tensor, torch.int64]


def kept_scores(
    scores: Tensor, weight: Tensor, mask: Mask, k: Labels, ignore: int = -1
) -> tuple[Tensor, Tensor]:
    \"\"\"Scores, weighted where they are to be kept, and where that is.\"\"\"
    kept = mask & (k != ignore) & (scores > weight)
    return torch.where(kept, scores * weight * k, scores), kept


# A value for each number.
def samples(make, shape):
    yield Sample(
        make(shape), make(shape), make(shape, dtype=torch.bool), make(shape, dtype=torch.int64), 3
    )
    yield Sample(
        make(shape),
        make(shape[1:]),
        make(shape, dtype=torch.bool),
        make(shape, dtype=torch.int64),
        3,
    )
    yield Sample(
        make(shape),
        make(shape),
        make(shape, dtype=torch.bool),
        make(shape[1:], dtype=torch.int64),
        3,
    )


spec = OpSpec(name="kept_scores", reference=kept_scores, samples=samples, autocast="promote")
""",
    )


def test_integers_of_values_cpp():
    text = printed("codes", "codes.cpp")
    functor = text[text.index("template") : text.index("TORCH_LIBRARY")]
    assert_expected_inline(
        functor,
        """\
template <class A>
struct Codes {
  HOST_DEVICE int8_t operator()(A x, A scale) const {
    const A round = std::nearbyint(x / scale);
    const A choice = round < A(-128) ? A(-128) : round;
    const A clamped = choice > A(127) ? A(127) : choice;
    return static_cast<int8_t>(clamped);
  }
};

Tensor codes(const Tensor& x, const Tensor& scale) { return elementwise<Codes>(kCodes, x, scale); }

""",
    )


def functors(name):
    text = printed(name, f"{name}.cpp")
    return text[text.index("template") : text.index("TORCH_LIBRARY")]


def test_a_mask_of_rows_cpp():
    assert_expected_inline(
        functors("masked_softmax"),
        """\
template <class T>
struct MaskedSoftmax {
  using A = acc_t<T>;

  T* output;              // [rows, cols]
  PerElement<bool> mask;  // [rows, cols]
  A fill;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const auto choices = row.keep([fill = fill](A x, bool mask) { return mask ? fill : x; }, row.elements(mask));
    const A max = row.max([](A /*x*/, A choice) { return choice; }, choices);
    const auto exps = row.keep([=](A /*x*/, A choice) { return math::exp(choice - max); }, choices);
    const Divisor<A> sum = row.sum([](A /*x*/, A exp) { return exp; }, exps);
    row.write(output, [=](A /*x*/, A exp) { return exp / sum; }, exps);
  }
};

template <class T>
struct MaskedSoftmaxBackward {
  using A = acc_t<T>;

  T* grad_x;              // [rows, cols]
  PerElement<bool> mask;  // [rows, cols]

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A sum = row.sum([](A grad_output, A output) { return grad_output * output; });
    row.write(
        grad_x, [=](A grad_output, A output, bool mask) { return mask ? A(0) : (grad_output - sum) * output; },
        row.elements(mask));
  }
};

Tensor masked_softmax(const Tensor& x, const Tensor& mask, double fill) {
  return rowwise<MaskedSoftmax>(kMaskedSoftmax, x, per_element(mask), fill);
}

Tensor masked_softmax_backward(const Tensor& grad_output, const Tensor& mask, const Tensor& output) {
  return rowwise<MaskedSoftmaxBackward>(kMaskedSoftmaxBackward, grad_output, per_element(mask), output);
}

""",
    )


def test_several_dtypes_of_rows_cpp():
    assert_expected_inline(
        printed("kept_codes", "kept_codes.cpp"),
        """\
// A norm of what is kept, codes of it, and whether there is anything
#include "rows.h"

namespace package::kept_codes {

const Operator kKeptCodes{
    "kept_codes(Tensor x, Tensor weight, Tensor mask, Tensor k, int none=-1) -> (Tensor, Tensor, Tensor)",
    "*rows n, n, *rows n:bool, *rows n:int8 -> *rows n, *rows n:int8, *rows 1:bool"};
const Operator kKeptCodesBackward{
    "kept_codes_backward(Tensor grad_y, Tensor x, Tensor weight, Tensor mask, Tensor k, int none) -> (Tensor, Tensor)",
    "*rows n, *rows n, n, *rows n:bool, *rows n:int8 -> *rows n, n"};

template <class T>
struct KeptCodes {
  using A = acc_t<T>;

  T* y_output;                   // [rows, cols]
  int8_t* output1;               // [rows, cols]
  bool* output2;                 // [rows]
  backend::Parameter<T> weight;  // [cols]
  PerElement<bool> mask;         // [rows, cols]
  PerElement<int8_t> k;          // [rows, cols]
  int64_t none;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A cols = static_cast<A>(row.cols());
    const auto ys = row.keep(
        [none = none](A x, bool mask, int8_t k) {
          const bool kept = mask && k != static_cast<int8_t>(none);
          return kept ? x : A(0);
        },
        row.elements(mask), row.elements(k));
    const A max = row.max(
        [none = none](A /*x*/, bool mask, int8_t k) {
          const bool kept = mask && k != static_cast<int8_t>(none);
          return kept ? A(1) : A(0);
        },
        row.elements(mask), row.elements(k));
    const A sum = row.sum([](A /*x*/, A y) { return y * y; }, ys);
    const A rsqrt = math::rsqrt(sum / cols + A(0.1));
    const bool above = max > A(0);
    write_per_row(row, output2, above);
    row.write(
        Outputs{y_output, output1},
        [=](A /*x*/, A weight, int8_t k, A y) {
          const A y2 = y * rsqrt * weight;
          const A product = y2 * static_cast<A>(k);
          const A choice = product < A(-100) ? A(-100) : product;
          const A choice2 = choice > A(100) ? A(100) : choice;
          return Results<A, int8_t>{y2, static_cast<int8_t>(choice2)};
        },
        weight, row.elements(k), ys);
  }
};

template <class T>
struct KeptCodesBackward {
  using A = acc_t<T>;
  using RowValues = Values<A, 2>;

  T* grad_x;                     // [rows, cols]
  backend::Parameter<T> weight;  // [cols]
  PerElement<bool> mask;         // [rows, cols]
  PerElement<int8_t> k;          // [rows, cols]
  int64_t none;

  HOST_DEVICE RowColumns<backend::Parameter<T>, 1> row_columns() const { return {{&weight}}; }

  HOST_DEVICE RowElements<bool, int8_t> row_elements() const { return {&mask, &k}; }

  // What the results of a row are made of besides its elements.
  template <class Row>
  HOST_DEVICE RowValues of_row(Row& row) const {
    const A cols = static_cast<A>(row.cols());
    const auto sums = row.sum(
        [none = none](A grad_y, A x, A weight, bool mask, int8_t k) {
          const bool kept = mask && k != static_cast<int8_t>(none);
          const A y = kept ? x : A(0);
          return Values<A, 2>{y * y, grad_y * weight * y};
        },
        weight, row.elements(mask), row.elements(k));
    const A rsqrt = math::rsqrt(sums[0] / cols + A(0.1));
    const A quotient = sums[1] * (rsqrt * rsqrt * rsqrt) / cols;
    return {rsqrt, quotient};
  }

  template <class Row>
  HOST_DEVICE void write(Row& row, const RowValues& values) const {
    const A rsqrt = values[0];
    const A quotient = values[1];
    row.write(
        grad_x,
        [=, none = none](A grad_y, A x, A weight, bool mask, int8_t k) {
          const bool kept = mask && k != static_cast<int8_t>(none);
          const A y = kept ? x : A(0);
          return WithSums<A, 1, 1>{{kept ? grad_y * weight * rsqrt - y * quotient : A(0)}, {grad_y * (y * rsqrt)}};
        },
        weight, row.elements(mask), row.elements(k));
  }
};

std::tuple<Tensor, Tensor, Tensor> kept_codes(
    const Tensor& x, const Tensor& weight, const Tensor& mask, const Tensor& k, int64_t none) {
  return rowwise<KeptCodes, 3>(kKeptCodes, x, per_column(weight), per_element(mask), per_element(k), none);
}

std::tuple<Tensor, Tensor> kept_codes_backward(
    const Tensor& grad_y, const Tensor& x, const Tensor& weight, const Tensor& mask, const Tensor& k, int64_t none) {
  return rowwise_with_column_sums<KeptCodesBackward, 1, 1>(
      kKeptCodesBackward, grad_y, x, per_column(weight), per_element(mask), per_element(k), none);
}

TORCH_LIBRARY_FRAGMENT(package, m) {
  m.def(kKeptCodes.schema());
  m.def(kKeptCodesBackward.schema());
}

TORCH_LIBRARY_IMPL(package, BACKEND, m) {
  m.impl("kept_codes", TORCH_BOX(&kept_codes));
  m.impl("kept_codes_backward", TORCH_BOX(&kept_codes_backward));
}

}  // namespace package::kept_codes
""",
    )


def test_several_dtypes_of_rows_ops():
    assert_expected_inline(
        printed("kept_codes", "ops.py"),
        """\
\"\"\"kept_codes: A norm of what is kept, codes of it, and whether there is anything.\"\"\"

import math

import torch
import torch.nn.functional as F
from package import checks, registration
from package.batching import with_columns
from torch import Tensor

_ops = torch.ops.package


def kept_codes(
    x: Tensor, weight: Tensor, mask: Tensor, k: Tensor, none: int = -1
) -> tuple[Tensor, Tensor, Tensor]:
    \"\"\"A norm of what is kept, codes of it, and whether there is anything.

    Half types are computed in float32 and rounded once.

    Args:
        x: `(..., columns)`, of any layout, float64, float32, float16 or bfloat16, on CPU or CUDA.
        weight: a value for each column, `(columns,)`; dtype and device of `x`.
        mask: bool, of the shape and on the device of `x`.
        k: int8, of the shape and on the device of `x`.
        none: an integer; not differentiable.

    Returns:
        Three contiguous tensors: `y` with the shape and dtype of `x`; `output1` with the shape of
        `x`; `output2` with the shape `(*x.shape[:-1], 1)`. The second is int8 and has no
        derivative; values beyond int8 may become any. The third is bool and has no derivative. The
        rest has the dtype of `x` and is differentiable to any order, in reverse and forward mode.
        The gradient of `weight` is a deterministic sum over the rows, accumulated in float32
        (float64 for float64).

    Raises:
        RuntimeError: a dtype, device or shape other than the above.
        TypeError: a tensor for `none` whose derivative would be lost.
    \"\"\"
    checks.check_number("kept_codes", "none", none)
    return _ops.kept_codes(x, weight, mask, k, none)


def _setup_context(ctx, inputs, output):
    x, weight, mask, k, ctx.none = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.save_for_backward(x, weight, mask, k)


def _backward(ctx, grad_y, *_):
    x, weight, mask, k = ctx.saved_tensors
    if grad_y is None:
        return None, None, None, None, None
    grad_x, grad_weight = _ops.kept_codes_backward(grad_y, x, weight, mask, k, ctx.none)
    return grad_x, grad_weight, None, None, None


def _in_torch(x, weight, mask, k, none):
    kept = mask & (k != (none))
    y = torch.where(kept, x, 0)
    y2 = y * torch.rsqrt((y**2).mean(-1, keepdim=True) + 0.1) * weight
    return (
        y2,
        torch.clamp(y2 * k.to(x.dtype), -100, 100).to(torch.int8),
        F.pad(kept.to(x.dtype), (0, 1), value=-math.inf).amax(-1, keepdim=True) > 0,
    )


def _backward_in_torch(grad_y, x, weight, mask, k, none, columns=None):
    columns = columns or grad_y.shape[-1:]
    cols = max(1, grad_y.shape[-1])
    kept = mask & (k != (none))
    grad_product = grad_y * weight
    y = torch.where(kept, x, 0)
    rsqrt = torch.rsqrt((y**2).mean(-1, keepdim=True) + 0.1)
    grad_product2 = y * ((grad_product * y).sum(-1, keepdim=True) * (rsqrt * rsqrt * rsqrt) / cols)
    return torch.where(kept, grad_product * rsqrt - grad_product2, 0), (
        grad_y * (y * rsqrt)
    ).sum_to_size(columns)


registration.register_fake("package::kept_codes", "package::kept_codes_backward")
registration.register_autograd("package::kept_codes", _backward, setup_context=_setup_context)
registration.register_autograd("package::kept_codes_backward", reference=_backward_in_torch)
registration.register_vmap("package::kept_codes", with_columns("package::kept_codes", _in_torch))
registration.register_vmap(
    "package::kept_codes_backward", with_columns("package::kept_codes_backward", _backward_in_torch)
)
# As PyTorch's arithmetic, which promotes: under autocast half and float32 meet in float32.
registration.register_autocast("package::kept_codes", "promote")
""",
    )


def test_several_dtypes_of_rows_spec():
    assert_expected_inline(
        printed("mean_of_two_masks", "spec.py"),
        """\
from typing import Annotated

import torch
from package.testing import OpSpec, Sample
from torch import Tensor

Mask = Annotated[Tensor, torch.bool]


def mean_of_two_masks(x: Tensor, padding: Mask, keep: Mask) -> Tensor:
    there = keep & ~padding
    return (x * there).sum(-1, keepdim=True) / there.sum(-1, keepdim=True)


# What it returns besides is for the backward.
def op_reference(x, padding, keep):
    there = keep & ~padding
    flag = there.to(x.dtype)
    sum = flag.sum(-1, keepdim=True)
    return (x * flag).sum(-1, keepdim=True) / sum, sum.squeeze(-1).detach()


# Of rows that have columns.
def samples(make, shape):
    if shape and shape[-1] >= 1:
        padding = make(shape, dtype=torch.bool)
        padding[..., :1] = False  # of a row without one there is no result
        keep = make(shape, dtype=torch.bool)
        keep[..., :1] = True  # of a row without one there is no result
        yield Sample(make(shape), padding, keep)


spec = OpSpec(
    name="mean_of_two_masks",
    reference=mean_of_two_masks,
    samples=samples,
    op_reference=op_reference,
)
""",
    )


def test_statistics_beside_integers_ops():
    text = printed("row_codes", "ops.py")
    function = text[text.index("# What is returned") : text.index("# What the forward")]
    assert_expected_inline(
        function,
        """\
# What is returned for the backward is constant: it gets no gradients of zeros.
def _setup_context(ctx, inputs, output):
    (x,) = inputs
    _, _, row_max = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(row_max, output[0])
    ctx.save_for_backward(x, row_max)


def _backward(ctx, _grad_output0, grad_scale, *_):
    x, row_max = ctx.saved_tensors
    if grad_scale is None:
        return None
    return _ops.row_codes_backward(grad_scale, x, row_max)


""",
    )


@pytest.mark.parametrize(
    ("expression", "passes"),
    [
        # Three passes would read the mask, and one does.
        ("x.masked_fill(mask, a).softmax(-1)", ["keep"]),
        ("x.masked_fill(mask, a).logsumexp(-1)", ["keep"]),
        ("(x * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True) + x * mask * a", ["keep"]),
        # The sums need the mask itself, and no fewer passes would read it.
        (
            "torch.where(mask, x, 0).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True) "
            "+ a * torch.where(mask, x, 0)",
            ["sum", "write"],
        ),
        ("torch.where(mask, x, a) / x.sum(-1, keepdim=True)", ["write"]),
        # Not of what the row has kept, but where that saves reading a mask.
        ("torch.softmax(x * mask, -1).square().softmax(-1) * a", ["keep"]),
    ],
)
def test_a_mask_is_read_as_rarely_as_may_be(expression, passes, define):
    source = (
        f"def f(x: Tensor, mask: torch.BoolTensor, a: float) -> Tensor:\n    return {expression}"
    )
    text = texts(planned(read(define(source))))["f.cpp"]
    forward = text[text.index("struct F {") : text.index("struct FBackward")]
    calls = re.findall(
        r"row[.](sum|max|keep|write)\(((?:(?!row[.](?:sum|max|keep|write)).)*)", forward, re.S
    )
    assert [name for name, given in calls if "row.elements(mask)" in given] == passes
    assert "columns" not in forward


@pytest.mark.parametrize(
    "name", ["masked_layer_norm", "gated_softmax", "residual_step", "counted_labels", "rms_norm"]
)
def test_a_row_is_written_in_one_pass(name):
    """Whatever the results and the sums over columns read."""
    structs = functors(name).split("template <class T>")[1:]
    counts = [len(re.findall(r"row[.](?:write|add_to_columns)\(", text)) for text in structs]
    assert counts == [1] * len(structs)
    assert "WithSums" in structs[-1]


@pytest.mark.parametrize(
    ("expression", "formula"),
    [
        ("mask.sum(-1) / 2 + x.sum(-1)", "add(div(row_sum(to_real(mask)), 2.0), row_sum(x))"),
        (
            "x.sum(-1).where(mask.any(-1), 0)",
            "where(gt(largest(to_real(mask)), 0.0), row_sum(x), 0.0)",
        ),
        (
            "x.sum(-1).where(torch.all(mask, dim=-1), 0)",
            "where(le(largest(to_real(not(mask))), 0.0), row_sum(x), 0.0)",
        ),
        (
            "x.where((x > 1).any(-1, keepdim=True), 0)",
            "where(gt(largest(to_real(gt(x, 1.0))), 0.0), x, 0.0)",
        ),
    ],
)
def test_masks_of_whole_rows(expression, formula, define):
    source = f"def f(x: Tensor, mask: torch.BoolTensor) -> Tensor:\n    return {expression}"
    results, _ = traced(read(define(source)), ["x", "mask"], {})
    assert repr(results[0].node) == formula


@pytest.mark.parametrize(
    ("arguments", "result", "promotes"),
    [
        ("x: Tensor, y: Tensor", "x * y", True),
        ("x: Tensor, weight: Tensor", "x / x.sum(-1, keepdim=True) * weight", True),
        ("x: Tensor, y: Tensor | None", "x if y is None else x * y", True),
        ("x: Tensor, a: float", "x * a", False),
        ("x: Tensor, mask: torch.BoolTensor", "x * mask", False),
        ("x: Tensor, k: torch.IntTensor", "(x * k).sum(-1)", False),
    ],
)
def test_floating_tensors_promote_under_autocast(arguments, result, promotes, define):
    made = texts(planned(read(define(f"def f({arguments}) -> Tensor:\n    return {result}\n"))))
    assert ('register_autocast("extension_cpp::f", "promote")' in made["ops.py"]) == promotes
    assert ('autocast="promote"' in made["spec.py"]) == promotes


def test_what_is_a_constant_keeps_its_dtype(define):
    source = "def f(x: Tensor, k: torch.LongTensor) -> Tensor:\n"
    source += "    with torch.no_grad():\n        j = torch.where(k > 0, k, 1)\n"
    source += "    return torch.where(j == k.detach(), x, 0)"
    (variant,) = derive(read(define(source)))
    assert repr(variant.forward) == "(where(eq(where(gt(k, 0), k, to_int64(1)), k), x, 0.0),)"


def test_a_bool_of_a_row_in_the_shape_of_its_elements(define):
    source = TENSOR + "torch.zeros_like(x) > x.sum(-1, keepdim=True)"
    files = assemble(read(define(source.replace("-> Tensor", "-> torch.BoolTensor")))).files
    assert '"*rows n -> *rows n:bool"' in files["f.cpp"]
    assert "row.write(output, [=](A /*x*/) { return above; });" in files["f.cpp"]


def test_shapes_of_several_dtypes(define):
    source = "def f(x: Tensor, mask: torch.BoolTensor, s: Tensor) -> torch.BoolTensor:\n"
    place = define(source + "    return (x * s).softmax(-1) * mask > 0.1")
    for line in (
        *("*rows n, *rows n:bool, n -> *rows n:bool", "*rows n, *rows n, n -> *rows n"),
        "*rows n, *rows n:bool, n",
    ):
        text = texts(planned(read(place, line)))["f.cpp"]
        assert '"*rows n, *rows n:bool, n -> *rows n:bool"' in text
        assert "rowwise<F>(kF, x, per_element(mask), per_column(s))" in text
    with pytest.raises(NotDerived, match=r"the result has the shape [*]rows n:bool$"):
        planned(read(place, "*rows n, *rows n:bool, n -> *rows n:int8"))
    with pytest.raises(NotDerived, match=r'give "[*]rows n" for a tensor'):
        planned(read(place, "*rows n, *rows n:int8, n"))
    text = texts(planned(read(place, "*rows n, n:bool, n")))["f.cpp"]
    assert "rowwise<F>(kF, x, per_column(mask), per_column(s))" in text


def test_integers_of_which_a_row_has_no_result(define):
    """Its samples have one of which it has."""
    spec = texts(planned(read(FUNCTIONS["loss_of_labels"])))["spec.py"]
    assert "k[..., :1] = 4  # of a row without one there is no result" in spec
    source = "def f(x: Tensor, mask: torch.BoolTensor) -> Tensor:\n"
    source += "    return (x * mask).sum(-1) / mask.sum(-1) + (x * ~mask).sum(-1) / (~mask).sum(-1)"
    spec = texts(planned(read(define(source))))["spec.py"]
    assert "shape[-1] >= 2" in spec
    assert "mask[..., :1] = True" in spec
    assert "mask[..., 1:2] = False" in spec


def test_wrong_values_of_rows_that_are_masked_whole_are_found(monkeypatch, define):
    source = "def f(x: Tensor, mask: torch.BoolTensor) -> Tensor:\n"
    source += "    return torch.where(mask.all(-1, keepdim=True), 2 * x, x)"
    planned(read(define(source)))

    def never(x, dim, keepdim):
        return make("gt", make("row_sum", make("to_real", x)), const(1e9)), not keepdim

    monkeypatch.setitem(rows_vocabulary.ROWS, "all", never)
    with pytest.raises(NotDerived, match="what was derived does not agree"):
        planned(read(define(source)))


def test_rows_that_integers_do_not_hold_are_not_compared(monkeypatch, define):
    """NaN and infinities become any."""
    definition = read(define(TENSOR + "(x - x.mean(-1, keepdim=True)).to(torch.int8)"))
    limited = "torch.clamp({0}.nan_to_num(1.0), -128, 127).to(torch.int8)"
    other = {"python": operations.Form(limited)}
    other = operations.Operation(**{**vars(operations.OPERATIONS["to_int8"]), **other})
    monkeypatch.setitem(operations.OPERATIONS, "to_int8", other)
    planned(definition)
    wrong = {"python": operations.Form("(2 * {0}).to(torch.int8)")}
    monkeypatch.setitem(
        operations.OPERATIONS, "to_int8", operations.Operation(**{**vars(other), **wrong})
    )
    with pytest.raises(NotDerived, match="what was derived does not agree"):
        planned(definition)


def test_optional_tensor_and_switch_cpp():
    assert_expected_inline(
        printed("scaled_exp", "scaled_exp.cpp"),
        """\
// scaled_exp of each element
#include "elementwise.h"
#include "sums.h"

namespace package::scaled_exp {

const Operator kScaledExp{"scaled_exp(Tensor x, Tensor? scale=None, bool negative=False) -> Tensor", "..., ... -> ..."};
const Operator kScaledExpBackward{
    "scaled_exp_backward(Tensor grad_output, Tensor x, Tensor scale, bool negative) -> (Tensor, Tensor)",
    "..., ..., ... -> =x, =scale"};
const Operator kScaledExpWithoutScaleBackward{
    "scaled_exp_without_scale_backward(Tensor grad_output, Tensor x, bool negative) -> Tensor",
    "*shape, *shape -> *shape"};

template <class A>
struct ScaledExp {
  bool negative;

  HOST_DEVICE A operator()(A x, A scale) const {
    if (negative) {
      const A y = math::exp(-x);
      return y * scale;
    }
    const A y = math::exp(x);
    return y * scale;
  }
};

template <class A>
struct ScaledExpWithoutScale {
  bool negative;

  HOST_DEVICE A operator()(A x) const {
    if (negative) {
      return math::exp(-x);
    }
    return math::exp(x);
  }
};

// The gradients of x and scale.
template <class A>
struct ScaledExpBackward {
  bool negative;

  HOST_DEVICE Values<A, 2> operator()(A grad_output, A x, A scale) const {
    if (negative) {
      const A y = math::exp(-x);
      return {-(grad_output * scale * y), grad_output * y};
    }
    const A y = math::exp(x);
    return {grad_output * scale * y, grad_output * y};
  }
};

template <class A>
struct ScaledExpWithoutScaleBackward {
  bool negative;

  HOST_DEVICE A operator()(A grad_output, A x) const {
    if (negative) {
      const A y = math::exp(-x);
      return -(grad_output * y);
    }
    const A y = math::exp(x);
    return grad_output * y;
  }
};

Tensor scaled_exp(const Tensor& x, const std::optional<Tensor>& scale, bool negative) {
  const CheckedInputs inputs = kScaledExp.check(x, scale);
  Tensor output = inputs.new_output();
  if (scale.has_value()) {
    elementwise_into<ScaledExp>(output, x, *scale, negative);
  } else {
    elementwise_into<ScaledExpWithoutScale>(output, x, negative);
  }
  return output;
}

std::tuple<Tensor, Tensor> scaled_exp_backward(
    const Tensor& grad_output, const Tensor& x, const Tensor& scale, bool negative) {
  return elementwise_with_sums<ScaledExpBackward, 2>(kScaledExpBackward, grad_output, x, scale, negative);
}

Tensor scaled_exp_without_scale_backward(const Tensor& grad_output, const Tensor& x, bool negative) {
  return elementwise<ScaledExpWithoutScaleBackward>(kScaledExpWithoutScaleBackward, grad_output, x, negative);
}

TORCH_LIBRARY_FRAGMENT(package, m) {
  m.def(kScaledExp.schema());
  m.def(kScaledExpBackward.schema());
  m.def(kScaledExpWithoutScaleBackward.schema());
}

TORCH_LIBRARY_IMPL(package, BACKEND, m) {
  m.impl("scaled_exp", TORCH_BOX(&scaled_exp));
  m.impl("scaled_exp_backward", TORCH_BOX(&scaled_exp_backward));
  m.impl("scaled_exp_without_scale_backward", TORCH_BOX(&scaled_exp_without_scale_backward));
}

}  // namespace package::scaled_exp
""",
    )


def test_optional_tensor_and_switch_ops():
    assert_expected_inline(
        printed("scaled_exp", "ops.py"),
        """\
\"\"\"scaled_exp: scaled_exp of each element.\"\"\"

import torch
from package import registration
from torch import Tensor

_ops = torch.ops.package


def scaled_exp(x: Tensor, scale: Tensor | None = None, negative: bool = False) -> Tensor:
    \"\"\"Computes scaled_exp of each element.

    Half types are computed in float32 and rounded once.

    Args:
        x: of any shape and layout, float64, float32, float16 or bfloat16, on CPU or CUDA.
        scale: a shape that broadcasts with that of `x`; dtype and device of `x`, or None.
        negative: a switch.

    Returns:
        A tensor of the common shape, in the layout on which the dense inputs of that shape agree,
        else contiguous. Differentiable to any order, in reverse and forward mode. The gradient of
        an input that was broadcast is a deterministic sum, accumulated in float32 (float64 for
        float64).

    Raises:
        RuntimeError: a dtype, device or shape other than the above.
    \"\"\"
    return _ops.scaled_exp(x, scale, negative)


def _setup_context(ctx, inputs, output):
    x, scale, ctx.negative = inputs
    ctx.save_for_backward(x, scale)
    ctx.has_scale = scale is not None


def _backward(ctx, grad_output):
    x, scale = ctx.saved_tensors
    if not ctx.has_scale:
        return _ops.scaled_exp_without_scale_backward(grad_output, x, ctx.negative), None, None
    grad_x, grad_scale = _ops.scaled_exp_backward(grad_output, x, scale, ctx.negative)
    return grad_x, grad_scale, None


def _backward_in_torch(grad_output, x, scale, negative):
    if negative:
        y = torch.exp(-x)
        grad_x = -(grad_output * scale * y)
        grad_scale = grad_output * y
        return grad_x.sum_to_size(x.shape), grad_scale.sum_to_size(scale.shape)
    y = torch.exp(x)
    grad_x = grad_output * scale * y
    grad_scale = grad_output * y
    return grad_x.sum_to_size(x.shape), grad_scale.sum_to_size(scale.shape)


def _backward_without_scale_in_torch(grad_output, x, negative):
    if negative:
        y = torch.exp(-x)
        return -(grad_output * y)
    y = torch.exp(x)
    return grad_output * y


registration.register_fake(
    "package::scaled_exp",
    "package::scaled_exp_backward",
    "package::scaled_exp_without_scale_backward",
)
registration.register_autograd("package::scaled_exp", _backward, setup_context=_setup_context)
registration.register_autograd("package::scaled_exp_backward", reference=_backward_in_torch)
registration.register_autograd(
    "package::scaled_exp_without_scale_backward", reference=_backward_without_scale_in_torch
)
registration.register_vmap(
    "package::scaled_exp",
    "package::scaled_exp_backward",
    "package::scaled_exp_without_scale_backward",
)
# As PyTorch's arithmetic, which promotes: under autocast half and float32 meet in float32.
registration.register_autocast("package::scaled_exp", "promote")
""",
    )


def test_rms_norm_cpp():
    assert_expected_inline(
        printed("rms_norm", "rms_norm.cpp"),
        """\
// Divides each row by its root mean square
#include "rows.h"

namespace package::rms_norm {

const Operator kRmsNorm{"rms_norm(Tensor x, Tensor weight, float eps=1e-06) -> Tensor", "*rows n, n -> *rows n"};
const Operator kRmsNormBackward{
    "rms_norm_backward(Tensor grad_output, Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)",
    "*rows n, *rows n, n -> *rows n, n"};

template <class T>
struct RmsNorm {
  using A = acc_t<T>;

  T* output;                     // [rows, cols]
  backend::Parameter<T> weight;  // [cols]
  A eps;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A cols = static_cast<A>(row.cols());
    const A sum = row.sum([](A x) { return x * x; });
    const A rsqrt = math::rsqrt(sum / cols + eps);
    row.write(output, [=](A x, A weight) { return x * rsqrt * weight; }, weight);
  }
};

template <class T>
struct RmsNormBackward {
  using A = acc_t<T>;
  using RowValues = Values<A, 2>;

  T* grad_x;                     // [rows, cols]
  backend::Parameter<T> weight;  // [cols]
  A eps;

  HOST_DEVICE RowColumns<backend::Parameter<T>, 1> row_columns() const { return {{&weight}}; }

  // What the results of a row are made of besides its elements.
  template <class Row>
  HOST_DEVICE RowValues of_row(Row& row) const {
    const A cols = static_cast<A>(row.cols());
    const auto sums =
        row.sum([](A grad_output, A x, A weight) { return Values<A, 2>{x * x, grad_output * weight * x}; }, weight);
    const A rsqrt = math::rsqrt(sums[0] / cols + eps);
    const A quotient = sums[1] * (rsqrt * rsqrt * rsqrt) / cols;
    return {rsqrt, quotient};
  }

  template <class Row>
  HOST_DEVICE void write(Row& row, const RowValues& values) const {
    const A rsqrt = values[0];
    const A quotient = values[1];
    row.write(
        grad_x,
        [=](A grad_output, A x, A weight) {
          return WithSums<A, 1, 1>{{grad_output * weight * rsqrt - x * quotient}, {grad_output * (x * rsqrt)}};
        },
        weight);
  }
};

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return rowwise<RmsNorm>(kRmsNorm, x, per_column(weight), eps);
}

std::tuple<Tensor, Tensor> rms_norm_backward(
    const Tensor& grad_output, const Tensor& x, const Tensor& weight, double eps) {
  return rowwise_with_column_sums<RmsNormBackward, 1, 1>(kRmsNormBackward, grad_output, x, per_column(weight), eps);
}

TORCH_LIBRARY_FRAGMENT(package, m) {
  m.def(kRmsNorm.schema());
  m.def(kRmsNormBackward.schema());
}

TORCH_LIBRARY_IMPL(package, BACKEND, m) {
  m.impl("rms_norm", TORCH_BOX(&rms_norm));
  m.impl("rms_norm_backward", TORCH_BOX(&rms_norm_backward));
}

}  // namespace package::rms_norm
""",
    )


def test_rms_norm_ops():
    assert_expected_inline(
        printed("rms_norm", "ops.py"),
        """\
\"\"\"rms_norm: divides each row by its root mean square.\"\"\"

import torch
from package import checks, registration
from package.batching import with_columns
from torch import Tensor

_ops = torch.ops.package


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-06) -> Tensor:
    \"\"\"Divides each row by its root mean square.

    Half types are computed in float32 and rounded once.

    Args:
        x: the rows; `(..., columns)`, of any layout, float64, float32, float16 or bfloat16, on CPU
            or CUDA.
        weight: of the features; a value for each column, `(columns,)`; dtype and device of `x`.
        eps: keeps rows of zeros from being divided by zero; a number; not differentiable.

    Returns:
        A contiguous tensor with the shape and dtype of `x`. Differentiable to any order, in reverse
        and forward mode. The gradient of `weight` is a deterministic sum over the rows, accumulated
        in float32 (float64 for float64).

    Raises:
        RuntimeError: a dtype, device or shape other than the above.
        TypeError: a tensor for `eps` whose derivative would be lost.
    \"\"\"
    checks.check_number("rms_norm", "eps", eps)
    return _ops.rms_norm(x, weight, eps)


def _setup_context(ctx, inputs, output):
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx, grad_output):
    x, weight = ctx.saved_tensors
    grad_x, grad_weight = _ops.rms_norm_backward(grad_output, x, weight, ctx.eps)
    return grad_x, grad_weight, None


def _in_torch(x, weight, eps):
    return x * torch.rsqrt((x**2).mean(-1, keepdim=True) + eps) * weight


def _backward_in_torch(grad_output, x, weight, eps, columns=None):
    columns = columns or grad_output.shape[-1:]
    cols = max(1, grad_output.shape[-1])
    grad_product = grad_output * weight
    rsqrt = torch.rsqrt((x**2).mean(-1, keepdim=True) + eps)
    grad_product2 = x * ((grad_product * x).sum(-1, keepdim=True) * (rsqrt * rsqrt * rsqrt) / cols)
    return grad_product * rsqrt - grad_product2, (grad_output * (x * rsqrt)).sum_to_size(columns)


registration.register_fake("package::rms_norm", "package::rms_norm_backward")
registration.register_autograd("package::rms_norm", _backward, setup_context=_setup_context)
registration.register_autograd("package::rms_norm_backward", reference=_backward_in_torch)
registration.register_vmap("package::rms_norm", with_columns("package::rms_norm", _in_torch))
registration.register_vmap(
    "package::rms_norm_backward", with_columns("package::rms_norm_backward", _backward_in_torch)
)
# As PyTorch's arithmetic, which promotes: under autocast half and float32 meet in float32.
registration.register_autocast("package::rms_norm", "promote")
""",
    )


@pytest.mark.parametrize(
    "scaled",
    [
        "d * torch.rsqrt((d * d).mean(-1, keepdim=True) + 0.1)",
        "d / torch.sqrt(d.square().mean(-1, keepdim=True) + 0.1)",
        "d / ((d**2).mean(-1, keepdim=True) + 0.1).sqrt()",
        "d / torch.sqrt(x.var(-1, keepdim=True, correction=0) + 0.1)",
        "F.layer_norm(x, x.shape[-1:])",
    ],
)
def test_deviations_take_one_pass(scaled, define):
    """Mean and variance are the forward's; deviations add up to 0."""
    source = "def f(x: Tensor) -> Tensor:\n    d = x - x.mean(-1, keepdim=True)\n"
    text = assemble(read(define(source + f"    return {scaled}"))).files["f.cpp"]
    _, backward = text.split("struct FBackward")
    assert backward.count("row.sum(") == 1
    assert "const A* row_mean;" in backward
    assert "return Values<A, 2>" in backward


@pytest.mark.parametrize(
    "of",
    [
        "e / e.sum(-1, keepdim=True)",
        "x / x.abs().sum(-1, keepdim=True)",
        "e.exp() / e.exp().sum(-1, keepdim=True)",
    ],
)
def test_sums_are_divided_by_before_the_pass(of, define):
    """A gradient of 65536 times an exponential of 80 is more than float32 holds."""
    source = f"def f(x: Tensor) -> Tensor:\n    e = torch.exp(x)\n    return {of}"
    text = assemble(read(define(source))).files["f.cpp"]
    _, backward = text.split("struct FBackward")
    assert re.search(r"row[.]sum\(\s*\[=\].* return grad_output \* \(\w+ / sum\);", backward)


def test_a_sum_does_not_open_a_pass(define):
    """Four sums are a pass: the fifth stays in the one before."""
    source = """
def f(x: Tensor, y: Tensor, is_scaled: bool) -> Tensor:
    d, e = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    a, b = (d * d).mean(-1, keepdim=True), (e * e).mean(-1, keepdim=True)
    return d * torch.rsqrt(a + 0.1) + e * torch.rsqrt(b + 0.1) if is_scaled else x * y
"""
    text = assemble(read(define(source))).files["f.cpp"]
    _, backward, _ = re.split(r"struct FBackward\w*", text)
    assert backward.count("row.sum(") == 2


def test_a_norm_is_divided_by_after_the_pass(define):
    text = assemble(read(define(TENSOR + "F.normalize(x, dim=-1)"))).files["f.cpp"]
    _, backward = text.split("struct FBackward")
    assert backward.count("row.sum(") == 1


def test_the_layer_norm_of_pytorch_is_no_reference():
    """Its second derivatives are wrong in forward mode: `torch.func.hessian` mixes them up."""
    spec = printed("layer_norm_of_torch", "spec.py")
    assert "def composed(x, weight, bias, eps=1e-05):\n    difference = x - x.mean(" in spec
    assert (
        "reference=composed,\n    samples=samples,\n    counterpart=layer_norm_of_torch,\n" in spec
    )
    assert "composed" not in printed("layer_norm", "spec.py")


def test_rms_norm_spec():
    assert_expected_inline(
        printed("rms_norm", "spec.py"),
        """\
import torch
from package.testing import OpSpec, Sample
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    \"\"\"Divides each row by its root mean square.

    Args:
        x: the rows
        weight: of the features
        eps: keeps rows of zeros from being divided by zero
    \"\"\"
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


# Of rows of one column nothing is left but rounding.
def samples(make, shape):
    if shape and shape[-1] >= 2:
        yield Sample(make(shape), make(shape[-1:]), 1e-06)


spec = OpSpec(name="rms_norm", reference=rms_norm, samples=samples, autocast="promote")
""",
    )


def test_tempered_softmax_cpp():
    assert_expected_inline(
        printed("tempered_softmax", "tempered_softmax.cpp"),
        """\
// softmax(x / temperature, dim=-1)
#include "rows.h"

namespace package::tempered_softmax {

const Operator kTemperedSoftmax{"tempered_softmax(Tensor x, float temperature=2.0) -> Tensor", "*rows n -> *rows n"};
const Operator kTemperedSoftmaxBackward{
    "tempered_softmax_backward(Tensor grad_output, Tensor output, float temperature) -> Tensor",
    "*rows n, *rows n -> *rows n"};

template <class T>
struct TemperedSoftmax {
  using A = acc_t<T>;

  T* output;  // [rows, cols]
  Divisor<A> temperature;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A max = row.max([temperature = temperature](A x) { return x / temperature; });
    const auto exps = row.keep([=, temperature = temperature](A x) { return math::exp(x / temperature - max); });
    const Divisor<A> sum = row.sum([](A /*x*/, A exp) { return exp; }, exps);
    row.write(output, [=](A /*x*/, A exp) { return exp / sum; }, exps);
  }
};

template <class T>
struct TemperedSoftmaxBackward {
  using A = acc_t<T>;

  T* grad_x;  // [rows, cols]
  Divisor<A> temperature;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A sum = row.sum([](A grad_output, A output) { return grad_output * output; });
    row.write(grad_x, [=, temperature = temperature](A grad_output, A output) {
      return (grad_output - sum) * output / temperature;
    });
  }
};

Tensor tempered_softmax(const Tensor& x, double temperature) {
  return rowwise<TemperedSoftmax>(kTemperedSoftmax, x, temperature);
}

Tensor tempered_softmax_backward(const Tensor& grad_output, const Tensor& output, double temperature) {
  return rowwise<TemperedSoftmaxBackward>(kTemperedSoftmaxBackward, grad_output, output, temperature);
}

TORCH_LIBRARY_FRAGMENT(package, m) {
  m.def(kTemperedSoftmax.schema());
  m.def(kTemperedSoftmaxBackward.schema());
}

TORCH_LIBRARY_IMPL(package, BACKEND, m) {
  m.impl("tempered_softmax", TORCH_BOX(&tempered_softmax));
  m.impl("tempered_softmax_backward", TORCH_BOX(&tempered_softmax_backward));
}

}  // namespace package::tempered_softmax
""",
    )


def test_logsumexp_ops():
    assert_expected_inline(
        printed("logsumexp", "ops.py"),
        """\
\"\"\"logsumexp: `logsumexp(x, -1)`.\"\"\"

import torch
from package import registration
from torch import Tensor

_ops = torch.ops.package


def logsumexp(x: Tensor) -> Tensor:
    \"\"\"Computes `logsumexp(x, -1)`.

    Half types are computed in float32 and rounded once.

    `torch.ops.package.logsumexp` returns `row_logsumexp` of each row besides, for the
    backward: constants of the shape `x.shape[:-1]`, in float32 (float64 for float64).

    Args:
        x: `(..., columns)`, of any layout, float64, float32, float16 or bfloat16, on CPU or CUDA.

    Returns:
        A contiguous tensor with the shape `x.shape[:-1]` and the dtype of `x`. Differentiable to
        any order, in reverse and forward mode.

    Raises:
        RuntimeError: another dtype.
    \"\"\"
    return _ops.logsumexp(x)[0]


# What is returned for the backward is constant: it gets no gradients of zeros.
def _setup_context(ctx, inputs, output):
    (x,) = inputs
    _, row_logsumexp = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(row_logsumexp)
    ctx.save_for_backward(x, row_logsumexp)


def _backward(ctx, grad_output, *_):
    x, row_logsumexp = ctx.saved_tensors
    if grad_output is None:
        return None
    return _ops.logsumexp_backward(grad_output, x, row_logsumexp)


# What the forward found is found again, for derivatives by the inputs.
def _backward_in_torch(grad_output, x, row_logsumexp):
    grad_output = grad_output.unsqueeze(-1)
    return torch.exp(x - torch.logsumexp(x, -1, keepdim=True)) * grad_output


registration.register_fake("package::logsumexp", "package::logsumexp_backward")
registration.register_autograd("package::logsumexp", _backward, setup_context=_setup_context)
registration.register_autograd("package::logsumexp_backward", reference=_backward_in_torch)
registration.register_vmap("package::logsumexp", "package::logsumexp_backward")
""",
    )


def test_rotary_ops():
    assert_expected_inline(
        printed("rotary", "ops.py"),
        """\
\"\"\"rotary: rotates pairs of numbers.\"\"\"

import torch
from package import registration
from torch import Tensor

_ops = torch.ops.package


def rotary(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    \"\"\"Rotates pairs of numbers.

    Half types are computed in float32 and rounded once.

    Args:
        x: of any shape and layout, float64, float32, float16 or bfloat16, on CPU or CUDA.
        y: a shape that broadcasts with those of the others; dtype and device of `x`.
        cos: a shape that broadcasts with those of the others; dtype and device of `x`.
        sin: a shape that broadcasts with those of the others; dtype and device of `x`.

    Returns:
        Two tensors `turned_x` and `turned_y`, each of the common shape, in the layout on which the
        dense inputs of that shape agree, else contiguous. Differentiable to any order, in reverse
        and forward mode. The gradient of an input that was broadcast is a deterministic sum,
        accumulated in float32 (float64 for float64).

    Raises:
        RuntimeError: a dtype, device or shape other than the above.
    \"\"\"
    return _ops.rotary(x, y, cos, sin)


def _setup_context(ctx, inputs, output):
    x, y, cos, sin = inputs
    ctx.save_for_backward(x, y, cos, sin)


def _backward(ctx, grad_turned_x, grad_turned_y):
    x, y, cos, sin = ctx.saved_tensors
    return _ops.rotary_backward(grad_turned_x, grad_turned_y, x, y, cos, sin)


def _backward_in_torch(grad_turned_x, grad_turned_y, x, y, cos, sin):
    grad_x = grad_turned_x * cos + grad_turned_y * sin
    grad_y = grad_turned_y * cos - grad_turned_x * sin
    grad_cos = grad_turned_x * x + grad_turned_y * y
    grad_sin = grad_turned_y * x - grad_turned_x * y
    return (
        grad_x.sum_to_size(x.shape),
        grad_y.sum_to_size(y.shape),
        grad_cos.sum_to_size(cos.shape),
        grad_sin.sum_to_size(sin.shape),
    )


registration.register_fake("package::rotary", "package::rotary_backward")
registration.register_autograd("package::rotary", _backward, setup_context=_setup_context)
registration.register_autograd("package::rotary_backward", reference=_backward_in_torch)
registration.register_vmap("package::rotary", "package::rotary_backward")
# As PyTorch's arithmetic, which promotes: under autocast half and float32 meet in float32.
registration.register_autocast("package::rotary", "promote")
""",
    )


def test_offset_rms_norm_cpp():
    assert_expected_inline(
        printed("offset_rms_norm", "offset_rms_norm.cpp"),
        """\
// Scales by one more than a weight, or does not
#include "rows.h"

namespace package::offset_rms_norm {

const Operator kOffsetRmsNorm{
    "offset_rms_norm(Tensor x, Tensor? weight=None, *, bool plain=False, float eps=0.01) -> (Tensor, Tensor)",
    "*rows n, n -> *rows n, *rows 1"};
const Operator kOffsetRmsNormBackward{
    "offset_rms_norm_backward(Tensor grad_y, Tensor grad_rstd, Tensor x, Tensor? weight, bool plain, float eps) -> "
    "(Tensor, Tensor)",
    "*rows n, *rows 1, *rows n, n -> *rows n, n"};

template <class T>
struct OffsetRmsNormWithPlain {
  using A = acc_t<T>;

  T* y_output;                   // [rows, cols]
  T* rstd_output;                // [rows]
  backend::Parameter<T> weight;  // [cols]
  A eps;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A cols = static_cast<A>(row.cols());
    const A sum = row.sum([](A x) { return x * x; });
    const A rstd = math::rsqrt(sum / cols + eps);
    write_per_row(row, rstd_output, rstd);
    row.write(y_output, [](A x, A weight) { return x * (A(1) + weight); }, weight);
  }
};

template <class T>
struct OffsetRmsNorm {
  using A = acc_t<T>;

  T* y_output;                   // [rows, cols]
  T* rstd_output;                // [rows]
  backend::Parameter<T> weight;  // [cols]
  A eps;

  template <class Row>
  HOST_DEVICE void operator()(Row& row) const {
    const A cols = static_cast<A>(row.cols());
    const A sum = row.sum([](A x) { return x * x; });
    const A rstd = math::rsqrt(sum / cols + eps);
    write_per_row(row, rstd_output, rstd);
    row.write(
        y_output,
        [=](A x, A weight) {
          const A y = x * rstd;
          return y * (A(1) + weight);
        },
        weight);
  }
};

template <class T>
struct OffsetRmsNormBackwardWithPlain {
  using A = acc_t<T>;
  using RowValues = Values<A, 1>;

  T* grad_x;                     // [rows, cols]
  const T* grad_rstd;            // [rows]
  backend::Parameter<T> weight;  // [cols]
  A eps;

  HOST_DEVICE RowColumns<backend::Parameter<T>, 1> row_columns() const { return {{&weight}}; }

  HOST_DEVICE Values<A, 1> row_values(int64_t row) const { return {static_cast<A>(grad_rstd[row])}; }

  // What the results of a row are made of besides its elements.
  template <class Row>
  HOST_DEVICE RowValues of_row(Row& row, const Values<A, 1>& known) const {
    const A row_grad_rstd = known[0];
    const A cols = static_cast<A>(row.cols());
    const A sum = row.sum([](A /*grad_y*/, A x) { return x * x; });
    const A rstd = math::rsqrt(sum / cols + eps);
    const A quotient = row_grad_rstd * (rstd * rstd * rstd) / cols;
    return {quotient};
  }

  template <class Row>
  HOST_DEVICE void write(Row& row, const RowValues& values) const {
    const A quotient = values[0];
    row.write(
        grad_x,
        [=](A grad_y, A x, A weight) {
          return WithSums<A, 1, 1>{{grad_y * (A(1) + weight) - x * quotient}, {grad_y * x}};
        },
        weight);
  }
};

template <class T>
struct OffsetRmsNormBackward {
  using A = acc_t<T>;
  using RowValues = Values<A, 2>;

  T* grad_x;                     // [rows, cols]
  const T* grad_rstd;            // [rows]
  backend::Parameter<T> weight;  // [cols]
  A eps;

  HOST_DEVICE RowColumns<backend::Parameter<T>, 1> row_columns() const { return {{&weight}}; }

  HOST_DEVICE Values<A, 1> row_values(int64_t row) const { return {static_cast<A>(grad_rstd[row])}; }

  // What the results of a row are made of besides its elements.
  template <class Row>
  HOST_DEVICE RowValues of_row(Row& row, const Values<A, 1>& known) const {
    const A cols = static_cast<A>(row.cols());
    const A row_grad_rstd = known[0];
    const auto sums =
        row.sum([](A grad_y, A x, A weight) { return Values<A, 2>{x * x, grad_y * (A(1) + weight) * x}; }, weight);
    const A rstd = math::rsqrt(sums[0] / cols + eps);
    const A quotient = (row_grad_rstd + sums[1]) * (rstd * rstd * rstd) / cols;
    return {rstd, quotient};
  }

  template <class Row>
  HOST_DEVICE void write(Row& row, const RowValues& values) const {
    const A rstd = values[0];
    const A quotient = values[1];
    row.write(
        grad_x,
        [=](A grad_y, A x, A weight) {
          const A y = x * rstd;
          return WithSums<A, 1, 1>{{grad_y * (A(1) + weight) * rstd - x * quotient}, {grad_y * y}};
        },
        weight);
  }
};

std::tuple<Tensor, Tensor> offset_rms_norm(
    const Tensor& x, const std::optional<Tensor>& weight, bool plain, double eps) {
  if (plain) {
    return rowwise<OffsetRmsNormWithPlain, 2>(kOffsetRmsNorm, x, per_column(weight), eps);
  }
  return rowwise<OffsetRmsNorm, 2>(kOffsetRmsNorm, x, per_column(weight), eps);
}

std::tuple<Tensor, Tensor> offset_rms_norm_backward(
    const Tensor& grad_y, const Tensor& grad_rstd, const Tensor& x, const std::optional<Tensor>& weight, bool plain,
    double eps) {
  if (plain) {
    return rowwise_with_column_sums<OffsetRmsNormBackwardWithPlain, 1, 1>(
        kOffsetRmsNormBackward, grad_y, per_row(grad_rstd), x, per_column(weight), eps);
  }
  return rowwise_with_column_sums<OffsetRmsNormBackward, 1, 1>(
      kOffsetRmsNormBackward, grad_y, per_row(grad_rstd), x, per_column(weight), eps);
}

TORCH_LIBRARY_FRAGMENT(package, m) {
  m.def(kOffsetRmsNorm.schema());
  m.def(kOffsetRmsNormBackward.schema());
}

TORCH_LIBRARY_IMPL(package, BACKEND, m) {
  m.impl("offset_rms_norm", TORCH_BOX(&offset_rms_norm));
  m.impl("offset_rms_norm_backward", TORCH_BOX(&offset_rms_norm_backward));
}

}  // namespace package::offset_rms_norm
""",
    )


def test_offset_rms_norm_ops():
    assert_expected_inline(
        printed("offset_rms_norm", "ops.py"),
        """\
\"\"\"offset_rms_norm: scales by one more than a weight, or does not.\"\"\"

import torch
from package import checks, registration
from package.batching import with_columns
from torch import Tensor

_ops = torch.ops.package


def offset_rms_norm(
    x: Tensor, weight: Tensor | None = None, *, plain: bool = False, eps: float = 0.01
) -> tuple[Tensor, Tensor]:
    \"\"\"Scales by one more than a weight, or does not.

    Half types are computed in float32 and rounded once.

    Args:
        x: `(..., columns)`, of any layout, float64, float32, float16 or bfloat16, on CPU or CUDA.
        weight: a value for each column, `(columns,)`; dtype and device of `x`; None counts as 0.
        plain: a switch.
        eps: a number; not differentiable.

    Returns:
        Two contiguous tensors: `y` with the shape and dtype of `x`; `rstd` with the shape
        `(*x.shape[:-1], 1)` and the dtype of `x`. Differentiable to any order, in reverse and
        forward mode. The gradient of `weight` is a deterministic sum over the rows, accumulated in
        float32 (float64 for float64).

    Raises:
        RuntimeError: a dtype, device or shape other than the above.
        TypeError: a tensor for `eps` whose derivative would be lost.
    \"\"\"
    checks.check_number("offset_rms_norm", "eps", eps)
    return _ops.offset_rms_norm(x, weight, plain=plain, eps=eps)


def _setup_context(ctx, inputs, keyword_only_inputs, output):
    x, weight = inputs
    ctx.plain = keyword_only_inputs["plain"]
    ctx.eps = keyword_only_inputs["eps"]
    ctx.save_for_backward(x, weight)
    ctx.has_weight = weight is not None


def _backward(ctx, grad_y, grad_rstd):
    x, weight = ctx.saved_tensors
    grad_x, grad_weight = _ops.offset_rms_norm_backward(
        grad_y, grad_rstd, x, weight, ctx.plain, ctx.eps
    )
    return grad_x, grad_weight if ctx.has_weight else None


def _in_torch(x, weight, plain, eps):
    weight = 0 if weight is None else weight
    if plain:
        return x * (1 + weight), torch.rsqrt((x**2).mean(-1, keepdim=True) + eps)
    rstd = torch.rsqrt((x**2).mean(-1, keepdim=True) + eps)
    y = x * rstd
    return y * (1 + weight), rstd


def _backward_in_torch(grad_y, grad_rstd, x, weight, plain, eps, columns=None):
    weight = 0 if weight is None else weight
    columns = columns or grad_y.shape[-1:]
    if plain:
        cols = max(1, grad_y.shape[-1])
        rstd = torch.rsqrt((x**2).mean(-1, keepdim=True) + eps)
        return grad_y * (1 + weight) - x * (grad_rstd * (rstd * rstd * rstd) / cols), (
            grad_y * x
        ).sum_to_size(columns)
    cols = max(1, grad_y.shape[-1])
    grad_product = grad_y * (1 + weight)
    rstd = torch.rsqrt((x**2).mean(-1, keepdim=True) + eps)
    y = x * rstd
    grad_product2 = (grad_rstd + (grad_product * x).sum(-1, keepdim=True)) * (rstd * rstd * rstd)
    return grad_product * rstd - x * (grad_product2 / cols), (grad_y * y).sum_to_size(columns)


registration.register_fake("package::offset_rms_norm", "package::offset_rms_norm_backward")
registration.register_autograd("package::offset_rms_norm", _backward, setup_context=_setup_context)
registration.register_autograd("package::offset_rms_norm_backward", reference=_backward_in_torch)
registration.register_vmap(
    "package::offset_rms_norm", with_columns("package::offset_rms_norm", _in_torch)
)
registration.register_vmap(
    "package::offset_rms_norm_backward",
    with_columns("package::offset_rms_norm_backward", _backward_in_torch),
)
# As PyTorch's arithmetic, which promotes: under autocast half and float32 meet in float32.
registration.register_autocast("package::offset_rms_norm", "promote")
""",
    )


def test_a_detached_part_in_ops_and_spec():
    """C++ computes what Python detaches: the second derivative has no part in it."""
    source = printed("straight_through", "straight_through.cpp")
    assert "A operator()(A x) const { return x * math::sigmoid(x); }" in source
    assert (
        "A operator()(A grad_output, A x) const { return grad_output * math::sigmoid(x); }"
        in source
    )
    ops, spec = printed("straight_through", "ops.py"), printed("straight_through", "spec.py")
    assert "return grad_output * torch.sigmoid(x).detach()" in ops
    assert "forward mode, but for what the definition detaches." in " ".join(ops.split())
    assert spec.endswith(
        'spec = OpSpec(name="straight_through", reference=straight_through, stops_gradients=True)\n'
    )
    assert "stops_gradients" not in printed("softcap", "spec.py")


def test_several_results_with_optional_tensors_cpp():
    source = printed("modulated", "modulated.cpp")
    host = source[source.index("std::tuple<Tensor, Tensor> modulated(") :]
    assert_expected_inline(
        host[: host.index("\n}\n") + 3],
        """\
std::tuple<Tensor, Tensor> modulated(
    const Tensor& x, const std::optional<Tensor>& scale, const std::optional<Tensor>& shift) {
  const CheckedInputs inputs = kModulated.check(x, scale, shift);
  std::array<Tensor, 2> output{inputs.new_output(0), inputs.new_output(1)};
  if (scale.has_value() && shift.has_value()) {
    elementwise_into<Modulated>(output, x, *scale, *shift);
  } else if (scale.has_value()) {
    elementwise_into<ModulatedWithoutShift>(output, x, *scale);
  } else if (shift.has_value()) {
    elementwise_into<ModulatedWithoutScale>(output, x, *shift);
  } else {
    elementwise_into<ModulatedWithoutScaleWithoutShift>(output, x);
  }
  return std::tuple_cat(output);
}
""",
    )


def test_a_reference_that_is_composed():
    spec = printed("weighted_huber", "spec.py")
    assert_expected_inline(
        spec[spec.index("# Of primitive") :],
        """\
# Of primitive operations: PyTorch's huber_loss has no derivative in forward mode.
def composed(x, y, weight=None, delta=1.0):
    if weight is not None:
        difference = x - y
        abs2 = torch.abs(difference)
        product = 0.5 * difference * difference
        loss = torch.where(abs2 < delta, product, delta * (abs2 - 0.5 * delta))
        return weight * loss
    difference = x - y
    abs2 = torch.abs(difference)
    product = 0.5 * difference * difference
    return torch.where(abs2 < delta, product, delta * (abs2 - 0.5 * delta))


spec = OpSpec(
    name="weighted_huber", reference=composed, counterpart=weighted_huber, autocast="promote"
)
""",
    )


def test_the_celu_of_pytorch_is_no_reference(define):
    text = assemble(read(define(TENSOR + "F.celu(x, 0.3)"))).files["spec.py"]
    assert "# Of primitive operations: PyTorch's celu rounds alpha to float32" in text
    assert "reference=composed, counterpart=f" in text


@pytest.mark.parametrize("factor", ["1 / k", "abs(k)", "(k // 2 + 1) ** -k"])
def test_a_reference_that_is_composed_imports_what_it_calls(factor, define):
    source = f"def f(x: Tensor, k: int) -> Tensor:\n    return torch.celu(x, 0.3) * ({factor})"
    text = assemble(read(define(source))).files["spec.py"]
    composed = text[text.index("def composed") :]
    names: dict[str, Any] = {}
    exec(text[: text.index("def f(")] + composed[: composed.index("\n\n\n")], names)
    assert names["composed"](torch.ones(2), 3).isfinite().all()
    assert ("real_math." in composed) == ("import real_math" in text)


def test_a_sum_is_zero_of_a_row_without_columns():
    # In the forward the quotient stays inside: outside it would be 0 / 0.
    source = printed("entropy", "entropy.cpp")
    forward, backward = source.split("struct EntropyBackward")
    assert "probabilities * (logits - max - log)" in forward
    assert "exp / sum" in forward
    assert "exp / sum" in backward


def test_a_mean_under_a_softmax_is_divided_after_the_pass(define):
    """Where nothing is kept of the forward, as of a function with switches: two sums, one pass."""
    source = """
def f(x: Tensor, is_entropy: bool) -> Tensor:
    if is_entropy:
        return (torch.softmax(x, -1) * torch.log_softmax(x, -1)).sum(-1)
    return x.sum(-1)
"""
    text = assemble(read(define(source))).files["f.cpp"]
    _, backward, *_ = re.split(r"struct FBackward\w*", text)
    assert "sums[1] / sum" in backward


# ----- what the backward is given of each row


def test_statistics_are_constants_that_the_public_function_leaves_out(define):
    files = assemble(read(define(TENSOR + "F.layer_norm(x, x.shape[-1:])"))).files
    assert (
        '"f(Tensor x) -> (Tensor, Tensor, Tensor)", "*rows n -> *rows n, *rows:sum, *rows:sum"'
        in (re.sub(r"\s+", " ", files["f.cpp"]))
    )
    assert "    return _ops.f(x)[0]\n" in files["ops.py"]
    assert "ctx.mark_non_differentiable(row_mean, row_rsqrt)" in files["ops.py"]
    assert files["spec.py"].count(".detach()") == 2


LARGEST = """
def f(x: Tensor, y: Tensor) -> Tensor:
    s = x * y
    top = s.amax(-1, keepdim=True)
    return torch.where({}, s, s * s)
"""


@pytest.mark.parametrize(
    ("source", "statistics"),
    [
        # The fewest, and of these the nearest to what they are used for.
        (TENSOR + "torch.logsumexp(x, -1, keepdim=True) * x", {"row_logsumexp"}),
        (TENSOR + "x / (x.std(-1, keepdim=True) + 1)", {"row_mean", "row_std"}),
        # By the names that the author has for them.
        (
            "def f(x: Tensor) -> Tensor:\n    low = x.amin(-1, keepdim=True)\n    return x.exp() * low",
            {"low"},
        ),
        # Where no pass is saved: the gradient's own sum goes over the row as well.
        (TENSOR + "F.normalize(x, dim=-1)", set()),
        (TENSOR + "F.rms_norm(x, x.shape[-1:], eps=1e-2)", set()),
        # Not a number that the forward would have to find for it.
        (TENSOR + "x.amax(-1)", {"row_max"}),
        # What an element is compared with is not what another kernel may have rounded otherwise.
        ("def f(x: Tensor, y: Tensor) -> Tensor:\n    return (x * y).amax(-1)", set()),
        (TENSOR + "(-x.abs()).amin(-1)", {"row_min"}),
        (LARGEST.format("s >= top"), set()),
        (LARGEST.format("s < top"), set()),
        (LARGEST.format("s == top.detach()"), set()),
        (LARGEST.format("s <= -(-top)"), set()),
        (LARGEST.format("s - top == 0"), set()),
        (LARGEST.format("torch.exp(s - top) > 0.5"), {"top"}),
        # A tensor of which the kernel would read nothing else is read, and so is all of it.
        (
            "def f(x: Tensor, y: Tensor) -> Tensor:\n    return x.exp() * y.sum(-1, keepdim=True)",
            set(),
        ),
        # Of several formulas each would have its own.
        (
            "def f(x: Tensor, k: bool) -> Tensor:\n    return x / (x.std(-1, keepdim=True) + k)",
            set(),
        ),
        # Elements have none.
        (TENSOR + "x.exp()", set()),
    ],
)
def test_statistics(source, statistics, define):
    (variant,) = derive(read(define(source)))
    assert variant.statistics.keys() == statistics


def test_of_several_results_those_that_are_not_used_have_gradients_of_zeros(define):
    source = """
def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = F.layer_norm(x, x.shape[-1:])
    return y, y.sum(-1), y.mean(-1, keepdim=True)
"""
    text = assemble(read(define(source))).files["ops.py"]
    assert "    return _ops.f(x)[:3]\n" in text
    assert "grad_y = torch.zeros_like(x) if grad_y is None else grad_y" in text
    assert "x.new_zeros(x.shape[:-1])" in text
    assert "x.new_zeros((*x.shape[:-1], 1))" in text


def test_a_statistic_that_an_argument_is_called_as_has_another_name(define):
    source = """
def f(x: Tensor, row_mean: float, grad_row_mean_2: float) -> Tensor:
    return (x - row_mean) / (x.std(-1, keepdim=True) + grad_row_mean_2)
"""
    (variant,) = derive(read(define(source)))
    assert variant.statistics.keys() == {"row_mean_3", "row_std"}


@pytest.mark.parametrize(
    "name",
    # Of Python, of the generated functions, of the schema.
    ["max", "math", "F", "ctx", "registration", "columns", "self", "output", "grad_x", "mean__"],
)
def test_a_statistic_is_called_as_an_argument_may_be(name, define):
    source = f"""
def f(x: Tensor, weight: Tensor) -> Tensor:
    {name} = x.mean(-1, keepdim=True)
    return (x - {name}) / (x.std(-1, keepdim=True) + 1) * weight
"""
    definition = read(define(source))
    (variant,) = derive(definition)
    assert variant.statistics.keys() == {"row_mean", "row_std"}
    assert "_, row_mean, row_std = output" in assemble(definition).files["ops.py"]


@pytest.mark.parametrize("name", ["double", "A", "T", "row", "values", "known", "EOF"])
def test_statistics_have_other_names_in_cpp_where_these_are_taken(name, define):
    source = f"""
def f(x: Tensor) -> Tensor:
    {name} = x.mean(-1, keepdim=True)
    return (x - {name}) / (x.std(-1, keepdim=True) + 1)
"""
    files = assemble(read(define(source))).files
    assert f"_, {name}, row_std = output" in files["ops.py"]
    assert f"{{return{{{name}_[row],row_std[row]}};}}" in re.sub(r"\s", "", files["f.cpp"])
    assert re.search(rf"const A\* {name}_; +// \[rows\]", files["f.cpp"])
    assert re.search(rf"per_row\({name}_\)", files["f.cpp"])


def test_a_number_may_be_called_as_what_is_read_ahead(define):
    source = """
def f(x: Tensor, y: Tensor, known: float, row_values: float) -> Tensor:
    return torch.softmax(x, -1) * torch.sin(y * known) * torch.cos(y * row_values)
"""
    text = assemble(read(define(source))).files["f.cpp"]
    assert "A known_;" in text
    assert "A row_values_;" in text


def test_statistics_of_a_row_without_columns_are_what_the_definition_divides_by_zero(define):
    source = """
def f(x: Tensor) -> Tensor:
    mean = (x.sum(-1, keepdim=True) - 1) / x.shape[-1]
    return (x - mean) / ((x - mean).abs().sum(-1, keepdim=True) + 1)
"""
    text = assemble(read(define(source))).files["spec.py"]
    assert "    cols = x.shape[-1]\n" in text

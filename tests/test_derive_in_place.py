"""templates/derive: definitions that write to their arguments."""

import pytest
from definitions import HEAD, PLACES, written
from derive.as_schema import with_template
from derive.assemble import assemble, planned, texts
from derive.definition import read
from derive.refusal import NotDerived
from kinds import Options


@pytest.fixture
def define(tmp_path):
    def write(source):
        path = tmp_path / "definition.py"
        path.write_text(HEAD + source)
        return read(f"{path}:f")

    return write


def test_the_schema_says_what_is_written_to():
    cpp = written("adamw_step")["adamw_step.cpp"]
    assert "adamw_step(Tensor(a!) param, Tensor grad, Tensor(b!) first, Tensor(c!) second, " in cpp
    assert '"*shape, *shape, *shape:sum, *shape:sum ->"' in cpp
    assert "void adamw_step(Tensor& param, const Tensor& grad, Tensor& first, Tensor& second, " in (
        cpp
    )
    assert "std::array<Tensor, 3> output{param, first, second};" in cpp
    assert "backward" not in cpp


def test_one_tensor_is_written_to_as_it_is():
    cpp = written("ema_")["ema_.cpp"]
    assert "kEma_.check(average, value);\nelementwise_into<Ema_>(average, average, value, " in cpp


def test_a_tensor_that_may_be_none():
    cpp = written("accumulate_")["accumulate_.cpp"]
    assert "if (y.has_value()) { elementwise_into<Accumulate_>(total, total, x, kept, *y); " in cpp
    assert "return; }\nelementwise_into<Accumulate_WithoutY>(total, total, x, kept);" in cpp


def test_nothing_is_returned_and_nothing_differentiated():
    files = written("sgd_step")
    ops = files["ops.py"]
    assert "nesterov: bool = False) -> None:" in ops
    assert "\n    _ops.sgd_step(param, grad, velocity, lr, momentum, nesterov)\n" in ops
    assert "written to: no two of its elements may share memory." in ops
    assert "Not differentiable: a derivative through what it wrote raises an error." in ops
    assert 'registration.register_mutation("extension_cpp::sgd_step")' in ops
    assert "register_autograd" not in ops
    assert "autocast" not in ops
    assert "reference=sgd_step, samples=samples, differentiable=False" in files["spec.py"]
    assert "velocity.mul_(momentum).add_(grad)" in files["spec.py"]


def test_what_is_read_and_written_counts_twice():
    spec = written("sgd_step")["spec.py"]
    assert "# param and velocity are read and written." in spec
    assert "(*given, sample.args[0], sample.args[2])), 0)" in spec
    assert "traffic=traffic)" in spec
    spec = written("clamp_and_clear_")["spec.py"]
    assert "(*given, sample.args[0], sample.args[1])), 0)" in spec


def test_what_is_written_alone_counts_once(define):
    plan = planned(define("def f(x: Tensor, y: Tensor) -> None:\n    x.copy_(y * y)"))
    assert "traffic" not in texts(plan)["spec.py"]


def test_a_reference_that_computes_float64_in_float32_is_composed():
    spec = written("adamw_step")["spec.py"]
    assert "reference=composed" in spec
    assert "tensors = [param, first, second]" in spec
    assert "tensor.copy_(value)" in spec
    assert "counterpart=adamw_step" in spec


@pytest.mark.parametrize(
    ("body", "formula"),
    [
        ("x.copy_(y)", "return y;"),
        ("x.fill_(2).mul_(y)", "return A(2) * y;"),
        ("x += y\n    x.zero_().add_(x).sub_(y)", "return sum - y;"),
        ("with torch.no_grad():\n        x.mul_(2).add_(y)", "return x * A(2) + y;"),
        (
            "y = y * 2\n    y.add_(x)\n    x.mul_(y)",
            "const A y2 = y * A(2); const A y3 = y2 + x; return x * y3;",
        ),
        ("x.clamp_(min=0)\n    F.relu(y, inplace=True)", "y"),
    ],
)
def test_what_is_written_is_computed(body, formula, define):
    plan = planned(define(f"def f(x: Tensor, y: Tensor) -> None:\n    {body}"))
    text = " ".join(texts(plan)["f.cpp"].split())
    assert formula in text


def test_every_choice_is_asked(define):
    lines = "x.add_(y)\n    if a and not b:\n        y.zero_()"
    plan = planned(
        define(f"def f(x: Tensor, y: Tensor, a: bool = True, b: bool = True) -> None:\n    {lines}")
    )
    assert plan.written == ["x", "y"]


def test_writes_to_both(define):
    plan = planned(define("def f(x: Tensor, y: Tensor) -> None:\n    y.add_(x)\n    x.mul_(y)"))
    assert plan.own.schema == "f(Tensor(a!) x, Tensor(b!) y) -> ()"
    assert plan.own.line == "*shape, *shape ->"
    text = " ".join(texts(plan)["f.cpp"].split())
    assert "const A y2 = y + x; return {x * y2, y2};" in text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "def f(x: Tensor) -> None:\n    x + 1",
            "the function returns nothing, and writes to no argument; return the new values, or "
            "write them, as x.copy_(y) does",
        ),
        (
            "def f(x: Tensor, y: Tensor) -> None:\n    x.add_(y)\n    return x * y",
            "its annotation says that it returns nothing, and it returns Tensor; return nothing",
        ),
        # Beside float32 what is the tensor itself there, and a copy in half types.
        (
            "def f(x: Tensor, m: Annotated[Tensor, torch.float32]) -> None:\n"
            "    old = m.to(x.dtype)\n    m.add_(x)\n    x.copy_(old)",
            "in bfloat16 it writes something else than in float32; what x.to(y.dtype) makes there",
        ),
        (
            "def f(x: Tensor, g: Tensor, m: Annotated[Tensor, torch.float32]) -> None:\n"
            "    g = g.to(m.dtype)\n    g.add_(x)\n    m.lerp_(g, 0.1)\n    x.sub_(m)",
            "in bfloat16 it writes something else than in float32",
        ),
        (
            'def f(x: Tensor, a: Annotated[Tensor, "()"]) -> None:\n    x.mul_(a)',
            "what writes to its arguments takes tensors of one shape; make a number, a float",
        ),
        (
            "def f(x: Tensor, y: Tensor | None = None) -> None:\n    y.mul_(x)",
            "it writes to 'y', which may be None; write a function for each case",
        ),
        (
            "def f(x: Tensor, k: torch.IntTensor) -> None:\n    k.add_(1)\n    x.mul_(2)",
            "it writes to 'k', which is int32; what is written to is floating",
        ),
        (
            "def f(x: Tensor) -> None:\n    x.copy_(x.softmax(-1))",
            "it looks at whole rows, and writes to 'x'; return the new values",
        ),
        (
            "def f(x: Tensor) -> None:\n    a, b = x.chunk(2, -1)\n    x.copy_(x * 2)\n"
            "    x.copy_(torch.cat((b, a), -1))",
            "it writes to its arguments, and takes parts of tensors; pass the parts",
        ),
        (
            "def f(x: Tensor) -> None:\n    x.mul_(2)\n    raise ValueError('no')",
            "the definition does not run: ValueError: no",
        ),
        (
            "def f(x: Tensor, y: Tensor) -> None:\n    x.mul_(y)\n    x[0] = 1.0",
            "say it with torch.where, and x.copy_(y) for all of them",
        ),
        (
            "def f(x: Tensor, y: Tensor) -> Tensor:\n    x.mul_(2)\n    return x * y",
            "this writes to an argument; give the result a name of its own and return it; what "
            "writes to its arguments returns nothing, and says so, -> None",
        ),
    ],
)
def test_refused(source, message, define):
    with pytest.raises(NotDerived, match=r".") as refusal:
        planned(define(source))
    assert message in str(refusal.value)


def test_a_template_has_its_schema_said(define):
    definition = define("def f(x: Tensor, y: Tensor) -> None:\n    x.mul_(y)")
    with pytest.raises(NotDerived) as refusal:
        with_template(definition, "inplace_kernel", Options(template="inplace_kernel"))
    assert '"f(Tensor(a!) x, Tensor y) -> ()"' in str(refusal.value)


def test_what_its_dtypes_are_needs_no_words():
    assert not any("Dtypes" in line for line in assemble(read(PLACES["accumulate_"])).taken_for)

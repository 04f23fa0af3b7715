"""What follows from an operator's line of shapes: checks, outputs, batching rules, samples.

Kernels that do no more than check and allocate stand in tests/abi/shapes.cpp.
"""

import inspect
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scratch import build, compile_library, make_project, python_with_torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from extension_cpp import _loader
from extension_cpp.registration import register_vmap
from extension_cpp.shapes import (
    Operator,
    batching_rule,
    fake_kernel,
    operator,
    operators,
    read_operators,
)
from extension_cpp.testing import CheckError, Make, OpSpec, Traffic, check

NAMESPACE = "extension_cpp_shapes"
DTYPES = (torch.float32, torch.float16, torch.float64, torch.int64, torch.int32, torch.bool)


# ----- kernels and fake kernels


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library, result = compile_library("shapes", "stable", tmp_path_factory.mktemp("shapes"))
    assert result.returncode == 0, result.stderr
    torch.ops.load_library(library)
    return library


@pytest.fixture(scope="module")
def declared(library: Path) -> Mapping[str, Operator]:
    records = _loader.declared_operators(library, NAMESPACE)
    assert [record for record in records if record[2]] == []
    return read_operators(library, NAMESPACE)


def outcome(call: Callable[[], Any]) -> Any:
    """The layouts of what is returned, or the text of the error."""
    try:
        result = call()
    except RuntimeError as error:
        return str(error)
    tensors = result if isinstance(result, (tuple, list)) else [result]
    return [None if t is None else (t.shape, t.stride(), t.dtype) for t in tensors]


def spoil(rng: random.Random, tensor: Any) -> Any:
    """Another tensor, or the same in another layout."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    what = rng.choice(["same", "permuted", "permuted", "dtype", "size", "more", "less", "none"])
    if what == "none":
        return None
    if what == "permuted":
        order = rng.sample(range(tensor.dim()), tensor.dim())
        return (
            tensor.permute(order).contiguous().permute([order.index(d) for d in range(len(order))])
        )
    if what == "dtype":
        return tensor.to(rng.choice(DTYPES))
    if what == "size" and tensor.dim():
        d = rng.randrange(tensor.dim())
        double = rng.random() < 0.5 or tensor.shape[d] == 0
        return tensor.repeat_interleave(2, d) if double else tensor.narrow(d, 0, 1)
    if what == "more":
        return tensor.expand(rng.choice([1, 2]), *tensor.shape)
    if what == "less" and tensor.dim():
        return tensor.select(0, 0) if tensor.shape[0] else tensor.sum(0)
    return tensor


def compare(op: Operator, seed: int) -> None:
    rng = random.Random(seed)
    make = Make(
        dtype=rng.choice([torch.float32, torch.float32, torch.float16]), requires_grad=False
    )
    first = op.notation.inputs[0]
    rank = first.single if first.star is None else first.single + rng.randrange(3)
    sizes = tuple(rng.choice([0, 1, 2, 3, 3]) for _ in range(rank))
    calls = [*op.samples(make, sizes), *op.samples(make, (3,) * rank)]
    if not calls:
        return
    args, kwargs = rng.choice(calls)
    spoilt = []
    for k, arg in enumerate(args):
        if isinstance(arg, list):
            elements = [spoil(rng, t) if rng.random() < 0.3 else t for t in arg]
            spoilt.append([t for t in elements if t is not None][: rng.choice([0, 1, 3, 3])])
        elif isinstance(arg, int):
            spoilt.append(rng.choice([arg, arg, arg, arg + 1, 0, -1]))
        else:
            spoilt.append(spoil(rng, arg) if rng.random() < 0.6 / (k + 1) ** 0.5 else arg)
    flat = [t for arg in spoilt for t in (arg if isinstance(arg, list) else [arg])]
    if any(isinstance(t, torch.Tensor) for t in flat):  # else torch finds no kernel to ask
        expected = outcome(lambda: op.fake(*spoilt, **kwargs))
        assert outcome(lambda: op.overload(*spoilt, **kwargs)) == expected


NAMES = [
    *(
        "same",
        "add3",
        "rows",
        "norm",
        "norm_backward",
        "attention",
        "matmul",
        "embedding",
        "lookup",
    ),
    *("where", "less", "sum", "sum_broadcast", "columns", "trace", "traces", "gray", "add_to"),
    *("middle", "scale", "quantize", "masked", "anything", "follows"),
    *("topk", "halves", "blocks", "joined", "padded", "slid", "varlen", "split"),
]


def test_every_operator_is_compared(declared: Mapping[str, Operator]):
    assert sorted(declared) == sorted(f"{NAMESPACE}::{name}" for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_kernels_and_fake_kernels_agree(declared: Mapping[str, Operator], name: str, seed: int):
    compare(declared[f"{NAMESPACE}::{name}"], seed)


@pytest.mark.parametrize("name", NAMES)
def test_bad_inputs_fail_with_one_text(declared: Mapping[str, Operator], name: str):
    op = declared[f"{NAMESPACE}::{name}"]
    bad_inputs = list(op.bad_inputs(Make(requires_grad=False)))
    assert bad_inputs
    for what, (args, kwargs), message in bad_inputs:
        assert outcome(lambda: op.overload(*args, **kwargs)) == message, what  # noqa: B023
    labels = {what.split()[0].partition("[")[0] for what, _, _ in bad_inputs}
    assert labels == {argument.name for argument in op.notation.arguments} | {*op.notation.numbers}


MESSAGES = [
    (
        "attention",
        [(3, 4), (2, 8, 5, 64)],
        "q must have 4 dimensions (b, h, t, d), got shape (3, 4)",
    ),
    (
        "attention",
        [(2, 8, 3, 64), (2, 8, 5, 32)],
        "k must have shape (2, 8, s, 64), got (2, 8, 5, 32)",
    ),
    ("attention", [(2, 8, 3, 64), (5,)], "k must have shape (2, 8, s, 64), got (5,)"),
    ("same", [None], "input must be a tensor, got None"),
    ("rows", [(), (1,)], "input must have at least 1 dimension, got shape ()"),
    ("rows", [(3, 4), (3,)], "bias must have shape (4,), got (3,)"),
    ("add3", [(4,), (3,), (4,)], "x must broadcast with a of shape (4,), got (3,)"),
    ("add3", [(4,), (3, 1), (4, 3)], "b must broadcast with a and x of shape (3, 4), got (4, 3)"),
    (
        "matmul",
        [(2, 3, 4), (5, 4, 6)],
        "b must broadcast with a in its dimensions ..., (2,), got (5,) in shape (5, 4, 6)",
    ),
    ("matmul", [(2, 3, 4), (5, 6)], "b must have shape (..., 4, n), got (5, 6)"),
    ("matmul", [(3,), (5, 6)], "a must have at least 2 dimensions, got shape (3,)"),
    ("gray", [(2, 4, 5, 6), (3,)], "input must have shape (*batch, 3, h, w), got (2, 4, 5, 6)"),
    ("trace", [(3, 4)], "input must have shape (n, n), got (3, 4)"),
    ("trace", [(3,)], "input must have 2 dimensions (n, n), got shape (3,)"),
    ("scale", [(3,), (1,)], "factor must have shape (), got (1,)"),
    ("sum", [[(3,), (3,), (4,)]], "xs[2] must have shape (3,), got (4,)"),
    ("sum", [[]], "xs must not be empty"),
    (
        "sum_broadcast",
        [[(3,), (1,), (2, 1)], (4,)],
        "y must broadcast with xs[0] to xs[2] of shape (2, 3), got (4,)",
    ),
    ("follows", [(3,), [(3,)] * 4, (3,)], "xs must hold at most 3 tensors, got 4"),
    ("follows", [(3,), [], None], "y must be a tensor, got None"),
    ("columns", [(3,), [(2, 3), (2, 2, 4)]], "xs[1] must have shape (*_, 3), got (2, 2, 4)"),
    (
        "embedding",
        [(3, 4), (5,)],
        "index must be torch.int64, got torch.float32",
    ),
    ("topk", [(3, 4), -2], "k must not be negative, got -2"),
    ("halves", [(3, 5)], "x must have shape (*rows, 2n), got (3, 5)"),
    ("halves", [(3, 6), (3, 2)], "gate must have shape (3, 3), got (3, 2)"),
    ("blocks", [(3, 8, 3)], "x must have shape (*rows, 4n, 2m), got (3, 8, 3)"),
    ("blocks", [(4,)], "x must have shape (*rows, 4n, 2m), got (4,)"),
    ("padded", [(3, 4), 1, 2**62], "the size before+n+2after of a result is too large"),
    ("padded", [(3, 4), 1, -1], "after must not be negative, got -1"),
    ("padded", [(3, 4), -12345678, 1], "before must not be negative, got -12345678"),
    ("slid", [(3, 1), (4,)], "the size 3n-k+2step of a result must not be negative, got -2"),
    ("slid", [(3, 0), (4,)], "x must have shape (b, 3n+1), got (3, 0)"),
    ("split", [(4, 2), [(3,)]], "parts[0] must have shape (2,), got (3,)"),
    ("split", [(4, 3), []], "x must have shape (n-k, 2), got (4, 3)"),
]


@pytest.mark.parametrize(("name", "shapes", "message"), MESSAGES)
def test_messages(declared: Mapping[str, Operator], name: str, shapes: list[Any], message: str):
    op = declared[f"{NAMESPACE}::{name}"]
    args = [
        torch.ones(shape)
        if isinstance(shape, tuple)
        else shape
        if shape is None or isinstance(shape, int)
        else [torch.ones(element) for element in shape]
        for shape in shapes
    ]
    assert outcome(lambda: op.fake(*args)) == f"{name}: {message}"
    if args not in ([None], [[]]):  # else torch finds no kernel to ask
        assert outcome(lambda: op.overload(*args)) == f"{name}: {message}"


def test_a_list_without_a_limit_is_refused_before_its_pointers_overflow(library: Path):
    many = getattr(torch.ops, NAMESPACE).many
    many([torch.ones(1)] * 64)
    with pytest.raises(RuntimeError, match="a list of more than 64 tensors"):
        many([torch.ones(1)] * 65)


def test_what_check_is_given_is_counted(library: Path):
    with pytest.raises(RuntimeError) as error:
        getattr(torch.ops, NAMESPACE).forgetful(torch.ones(3), 2)
    assert str(error.value) == (
        "topk: check() got 1 tensors and 0 numbers, but the shapes are of 1 tensors and 1 numbers"
    )


def test_samples_have_the_sizes_that_sums_and_numbers_say():
    def samples(schema: str, line: str, shape: tuple[int, ...]) -> list[Any]:
        calls = Operator("nowhere", schema, line).samples(Make(requires_grad=False), shape)
        return [
            [
                tuple(x.shape) if isinstance(x, torch.Tensor) else x
                for x in (*args, *kwargs.values())
            ]
            for args, kwargs in calls
        ]

    halves = ("f(Tensor x, Tensor gate) -> Tensor", "*rows 2n, *rows n -> *rows n")
    assert samples(*halves, (5, 6)) == [[(5, 6), (5, 3)]]
    assert samples(*halves, (5, 7)) == []
    # A number that the first tensor has follows from it, others are 1, then 2, or as their default.
    heads = ("f(Tensor x, int heads, int k=4) -> Tensor", "t heads -> t k")
    assert samples(*heads, (5, 3)) == [[(5, 3), 3], [(5, 3), 3, 5]]
    # So it does from a sum, if there is no other name to follow.
    packed = ("f(Tensor x, int heads) -> Tensor", "t 3heads -> t heads")
    assert samples(*packed, (5, 6)) == [[(5, 6), 2], [(5, 6), 2]]
    assert samples(*packed, (5, 7)) == []
    behind = ("f(Tensor x, int k=3) -> Tensor", "k+1 -> k")
    assert samples(*behind, (8,)) == [[(8,), 7], [(8,), 7]]
    before = ("f(Tensor x, int k, int m) -> Tensor", "n+k m-n k -> n")
    assert samples(*before, (5, 1, 4)) == [[(5, 1, 4), 4, 2], [(5, 1, 4), 4, 2]]
    beside = ("f(Tensor x, int k) -> Tensor", "n+k -> n")
    assert samples(*beside, (5,)) == [[(5,), 1], [(5,), 2]]
    # No size is negative.
    slid = ("f(Tensor x, Tensor taps, int k=0) -> Tensor", "n, m -> n-k")
    assert samples(*slid, (1,)) == [[(1,), (6,)], [(1,), (6,), 1]]
    assert samples(*slid, (0,)) == [[(0,), (6,)]]


def test_dtypes_and_devices_come_before_shapes(declared: Mapping[str, Operator]):
    op = declared[f"{NAMESPACE}::add3"]
    args = [torch.ones(4), torch.ones(3), torch.ones(4, dtype=torch.float64)]
    message = "add3: b must have the dtype of a, torch.float32, got torch.float64"
    assert outcome(lambda: op.overload(*args)) == message
    assert outcome(lambda: op.fake(*args)) == message
    args[2] = torch.ones(4, device="meta")
    message = "add3: b must be on the device of a, cpu, got meta"
    assert outcome(lambda: op.fake(*args)) == message


def test_a_line_that_says_nothing_is_refused_by_its_kernel(library: Path):
    records = _loader.declared_operators(library, f"{NAMESPACE}_unread")
    ((_, _, problem),) = records
    assert problem == (
        "unread: a second '*' or '...' in one shape\n    *rows *cols -> *rows\n          ^"
    )
    with pytest.raises(RuntimeError) as error:
        torch.ops.extension_cpp_shapes.unread(torch.ones(2))
    assert str(error.value) == problem


def test_the_battery_shows_what_a_kernel_leaves_unwritten(declared: Mapping[str, Operator]):
    """The kernel of ``same`` writes nothing at all."""
    spec = OpSpec(
        name="same",
        function=lambda x: torch.ops.extension_cpp_shapes.same(x),
        reference=torch.clone,
        traffic=lambda sample: Traffic(0, 0),
        shapes=((3, 5),),
        dtypes=(torch.float32,),
        differentiable=False,
        devices=("cpu",),
        namespace=NAMESPACE,
        lines=declared,
    )
    with pytest.raises(CheckError, match="NaN where a number was expected"):
        check(spec, checks=["check_forward"])
    assert not _loader.fill_new_tensors(False)


def test_a_line_that_says_nothing_fails_the_import(tmp_path: Path):
    project = make_project(tmp_path)
    (project / "extension_cpp" / "csrc" / "library.cpp").write_text(
        'extern "C" __attribute__((visibility("default")))\n'
        "const char* extension_cpp_operators() {\n"
        '  return "f(Tensor a) -> Tensor\\x1fn\\x1f" "f: what is wrong\\n    n\\n     ^\\x1e";\n}\n'
    )
    build(project)
    result = python_with_torch("-c", "import extension_cpp", cwd=project)
    assert result.returncode != 0
    assert "ImportError: f: what is wrong\n    n\n     ^\n" in result.stdout


@pytest.mark.slow
def test_the_aten_build_says_the_same(tmp_path: Path):
    library, result = compile_library("shapes", "aten", tmp_path)
    assert result.returncode == 0, result.stderr
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch
torch.ops.load_library({str(library)!r})
import test_shapes
operators = test_shapes.read_operators({str(library)!r}, test_shapes.NAMESPACE)
for name in test_shapes.NAMES:
    for seed in range(150):
        test_shapes.compare(operators[f"{{test_shapes.NAMESPACE}}::{{name}}"], seed)
print("compared")
"""
    result = python_with_torch("-c", code, cwd=Path(__file__).parent.parent)
    assert result.stdout == "compared\n"


# ----- fake tensors with symbolic sizes


@pytest.mark.parametrize("name", ["square", "square_backward", "fused_op", "fused_op_backward"])
def test_fake_kernels_add_no_guards_that_sizes_do_not_need(name: str):
    op = operator(f"extension_cpp::{name}")
    env = ShapeEnv()
    call = next(op.samples(Make(requires_grad=False), (5, 7)))
    with FakeTensorMode(shape_env=env) as mode:
        args = [mode.from_tensor(t, static_shapes=False) for t in call[0]]
        result = op.fake(*args, **call[1])
    results = result if isinstance(result, tuple) else (result,)
    assert all(not isinstance(size, int) for r in results for size in r.shape)
    assert [guard.expr for guard in env.guards] == []


def test_sizes_that_follow_from_others_stay_symbols():
    schema = "f(Tensor x, SymInt k) -> (Tensor, Tensor)"
    op = Operator("nowhere", schema, "*rows 2n -> *rows n+k, k")
    env = ShapeEnv()
    tensors = torch.empty(3, 8), torch.empty(5)
    with FakeTensorMode(shape_env=env) as mode:
        x, like = (mode.from_tensor(t, static_shapes=False) for t in tensors)
        k = like.shape[0]
        sums, numbers = op.fake(x, k)
        assert not any(isinstance(size, int) for size in (*sums.shape, *numbers.shape))
        assert (*sums.shape, *numbers.shape) == (3, 9, 5)
        with pytest.raises(RuntimeError, match=r"^f: k must not be negative, got -1$"):
            op.fake(x, k - 6)
        unknown = env.create_unbacked_symint()
        sums, _ = op.fake(x, unknown)
        assert sums.shape[1] == x.shape[1] // 2 + unknown
        sums, _ = op.fake(torch.empty(3, unknown), 1)
        assert not isinstance(sums.shape[1], int)
    assert env.deferred_runtime_asserts


def test_sizes_that_no_one_knows_are_checked_when_they_are_known():
    op = operator("extension_cpp::fused_op")
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env):
        u, v = env.create_unbacked_symint(), env.create_unbacked_symint()
        output = op.fake(torch.empty(u, 4), torch.empty(4))
        assert output.shape == (u, 4)
        output = op.fake(torch.empty(3, u), torch.empty(v))
    assert env.deferred_runtime_asserts


# ----- vmap


def define(schema: str, line: str, kernel: Callable[..., Any]) -> Operator:
    """An operator of PyTorch's own operations, with the batching rule of a line."""
    namespace = "shapes_of_python"
    op = Operator(namespace, schema, line)
    torch.library.define(f"{namespace}::{op.name}", schema[schema.index("(") :])
    torch.library.impl(f"{namespace}::{op.name}", "CompositeExplicitAutograd", kernel)
    register_vmap(f"{namespace}::{op.name}", op.batching_rule())
    return op


def rows_and_sums(x, bias):
    return x + bias, x.sum(-1)


BATCHED = [
    ("twice(Tensor x) -> Tensor", "*shape -> *shape", lambda x: 2 * x),
    ("plus(Tensor x, Tensor y) -> Tensor", "..., ... -> ...", lambda x, y: x + y),
    ("plus_equal(Tensor x, Tensor y) -> Tensor", "*s, *s -> *s", lambda x, y: x + y),
    ("bias(Tensor x, Tensor b) -> (Tensor, Tensor)", "*r n, n -> *r n, *r", rows_and_sums),
    ("dot(Tensor x, Tensor y) -> Tensor", "*r n, *r n -> *r", lambda x, y: (x * y).sum(-1)),
    ("mm(Tensor x, Tensor y) -> Tensor", "... m k, ... k n -> ... m n", lambda x, y: x @ y),
    (
        "back(Tensor x, Tensor y) -> Tensor",
        "a *r b, b -> *r a",
        lambda x, y: (x @ y).movedim(0, -1),
    ),
    (
        "mask(Tensor x, Tensor? m, float c=2.0) -> Tensor",
        "*s, *s:bool -> *s",
        lambda x, m, c=2.0: c * x if m is None else torch.where(m, x, c),
    ),
    ("total(Tensor[] xs) -> Tensor", "... -> ...", lambda xs: sum(xs)),
    (
        "ends(Tensor x, int k) -> (Tensor, Tensor)",
        "*rows n -> *rows k+1, *rows n-1",
        lambda x, k: (x[..., :1].expand(*x.shape[:-1], k + 1).clone(), x.diff()),
    ),
    (
        "glu(Tensor x, Tensor g) -> Tensor",
        "*rows 2n, *rows n -> *rows n",
        lambda x, g: x.unflatten(-1, (2, g.shape[-1])).sum(-2) * g,
    ),
    ("take(Tensor t, Tensor i) -> Tensor", "n d, *b:int64 -> *b d", lambda t, i: t[i % t.shape[0]]),
]


@pytest.fixture(scope="module")
def batched() -> dict[str, tuple[Operator, Callable[..., Any]]]:
    return {line[0]: (define(*line), line[2]) for line in BATCHED}


@pytest.mark.parametrize("schema", [line[0] for line in BATCHED])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_batching_rules_do_as_a_loop(
    batched: dict[str, tuple[Operator, Callable[..., Any]]], schema: str, seed: int
):
    op, kernel = batched[schema]
    rng = random.Random(seed)
    first = op.notation.inputs[0]
    rank = first.single + (0 if first.star is None else rng.randrange(3))
    sizes = tuple(rng.choice([1, 2, 3]) for _ in range(rank))
    make = Make(dtype=torch.float64, requires_grad=False)
    even = tuple(2 * size for size in sizes)
    args, kwargs = rng.choice(list(op.samples(make, sizes)) or list(op.samples(make, even)))
    batch = rng.choice([1, 2, 3])
    star = op.notation.outputs[0].star_symbol
    examples: list[list[Any]] = [[] for _ in range(batch)]
    given_args, in_dims = [], []

    def put(shape, value, force):
        """Batches a tensor, perhaps: the batch, where it is, and each example's."""
        if value is None or not isinstance(value, torch.Tensor):
            return value, None, [value] * batch
        if shape.star_symbol != star or not (force or rng.random() < 0.5):
            return value, None, [value] * batch
        if value.dtype == torch.bool:
            stack = torch.stack([value, ~value, value][:batch])
        else:
            stack = torch.stack([value + b for b in range(batch)])
        dim = rng.randrange(stack.dim())
        return stack.movedim(0, dim), dim, list(stack)

    tensors = dict(zip(op.tensor_positions, op.notation.inputs, strict=True))
    forced = next(p for p, shape in tensors.items() if shape.star_symbol == star)
    for position, arg in enumerate(args):
        shape = tensors.get(position)
        if isinstance(arg, list):
            parts = [put(shape, t, True) for t in arg]
            given_args.append([p[0] for p in parts])
            in_dims.append([p[1] for p in parts])
            for b in range(batch):
                examples[b].append([p[2][b] for p in parts])
        else:
            value, dim, each = put(shape, arg, position == forced)
            given_args.append(value)
            in_dims.append(dim)
            for b in range(batch):
                examples[b].append(each[b])
    actual = torch.vmap(lambda *a: op.overload(*a, **kwargs), tuple(in_dims))(*given_args)
    results = [kernel(*example, **kwargs) for example in examples]
    if isinstance(results[0], tuple):
        expected: Any = tuple(map(torch.stack, zip(*results, strict=True)))
    else:
        expected = torch.stack(results)
    torch.testing.assert_close(actual, expected)


def test_a_batch_of_none_is_checked():
    square_backward = torch.ops.extension_cpp.square_backward
    vmap = torch.vmap(square_backward, (0, None))
    assert vmap(torch.ones(0, 3), torch.ones(3)).shape == (0, 3)
    with pytest.raises(RuntimeError, match=r"input must have shape \(3,\), got \(4,\)"):
        vmap(torch.ones(0, 3), torch.ones(4))


def test_a_batch_stays_where_it_lies():
    seen = []
    op = define(
        "seen(Tensor x) -> Tensor", "*rows n -> *rows", lambda x: seen.append(x) or x.sum(-1)
    )
    torch.vmap(op.overload, in_dims=1, out_dims=1)(torch.ones(2, 3, 4))
    assert seen[0].is_contiguous()
    torch.vmap(op.overload, in_dims=2)(torch.ones(2, 3, 4))
    assert seen[1].shape == (4, 2, 3)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("*rows n, n -> n", "a result has no *name or ... to which a batch could be joined"),
        ("*all, *all -> *all", "a result has no *name or ... to which a batch could be joined"),
        ("*a n, *b n -> *a n, *b n", "the results have different ones: *a, *b"),
    ],
)
def test_a_line_without_a_batching_rule(line: str, reason: str):
    returns = "Tensor" if line.count(",") == 1 else "(Tensor, Tensor)"
    op = Operator("nowhere", f"f(Tensor x, Tensor y) -> {returns}", line)
    with pytest.raises(NotImplementedError) as error:
        op.batching_rule()
    assert str(error.value) == (
        f"f: no batching rule follows from its shapes, {line}: {reason}. register_vmap wants a "
        "function, as by_example of batching.py makes, which calls the operator for each example, "
        "or with_columns for columns"
    )


def apart(x, weight, weights, bias=None, *, scale=1.0):
    y = sum(x @ each for each in (weight, *weights)) * scale
    return y if bias is None else y + bias, y.sum()


def by_examples(schema: str, line: str, kernel: Callable[..., Any]) -> Operator:
    """An operator that is called for each example where no batching rule follows."""
    op = Operator("shapes_of_python", schema, line)
    name = f"{op.namespace}::{op.name}"
    torch.library.define(name, schema[schema.index("(") :])
    torch.library.impl(name, "CompositeExplicitAutograd", kernel)
    register_vmap(name, op.call_each)
    return op


@pytest.fixture(scope="module")
def op_apart() -> Operator:
    arguments = "Tensor x, Tensor w, Tensor[] ws, Tensor? b=None, *, float scale=1.0"
    schema = f"apart({arguments}) -> (Tensor, Tensor)"
    return by_examples(schema, "n, n m, n m, m -> m, ()", apart)


@pytest.mark.parametrize("in_dims", [(0, [0, 2], 0), (None, [None, 1], None), (1, [0, 2], None)])
def test_called_for_each_example_as_a_loop(op_apart: Operator, in_dims):
    torch.manual_seed(0)

    def of(shape, dim):
        return torch.randn(shape if dim is None else (*shape[:dim], 5, *shape[dim:]))

    x, bias = of((2,), in_dims[0]), of((3,), in_dims[2])
    weights = [of((2, 3), dim) for dim in in_dims[1]]

    def call(x, weights, bias):
        return op_apart.overload(x, weights[0], weights[1:], bias, scale=2.0)

    actual = torch.vmap(call, in_dims)(x, weights, bias)
    for n in range(5):
        pairs = [(x, in_dims[0]), (bias, in_dims[2]), *zip(weights, in_dims[1], strict=True)]
        own, bias_of, *rest = (t if dim is None else t.select(dim, n) for t, dim in pairs)
        expected = apart(own, rest[0], rest[1:], bias_of, scale=2.0)
        torch.testing.assert_close((actual[0][n], actual[1][n]), expected)


def test_an_empty_batch_of_examples(op_apart: Operator):
    x, weight = torch.ones(0, 2, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64)
    call = torch.vmap(op_apart.overload, (0, None, [None], None))
    y, total = call(x, weight, [weight], None)
    assert (y.shape, total.shape, y.dtype) == ((0, 3), (0,), torch.float64)
    with pytest.raises(RuntimeError, match=r"apart: w must have shape \(4, m\), got \(2, 3\)"):
        call(torch.ones(0, 4).double(), weight, [weight], None)


def test_what_is_written_for_each_example():
    def put(table, index, value):
        table[index] = value

    op = by_examples("put(Tensor(a!) t, Tensor i, Tensor v) -> ()", "s d, n:int64, n d ->", put)
    table, index = torch.zeros(4, 2, 3), torch.tensor([[1], [0], [3]])
    # The batch is the table's last dimension.
    torch.vmap(lambda *a: (op.overload(*a), a[2])[1], (2, 0, None))(table, index, torch.ones(1, 2))
    assert [table[:, :, n].sum(1).tolist() for n in range(3)] == [
        [0, 2, 0, 0],
        [2, 0, 0, 0],
        [0, 0, 0, 2],
    ]
    with pytest.raises(RuntimeError, match="put: t must be batched under vmap where another"):
        torch.vmap(lambda i: (op.overload(torch.zeros(4, 2), i, torch.ones(1, 2)), i)[1])(index)


def test_a_batched_input_without_a_star(batched: dict[str, tuple[Operator, Callable[..., Any]]]):
    op, _ = batched["bias(Tensor x, Tensor b) -> (Tensor, Tensor)"]
    with pytest.raises(NotImplementedError, match="bias: b is batched, and no batching rule for"):
        torch.vmap(op.overload)(torch.ones(2, 5, 3), torch.ones(2, 3))
    # What is wrong with the inputs comes first.
    with pytest.raises(RuntimeError, match=r"bias: b must have shape \(3,\), got \(4,\)"):
        torch.vmap(op.overload)(torch.ones(2, 5, 3), torch.ones(2, 4))


def test_what_is_written_has_to_be_batched():
    namespace = "shapes_of_python"
    schema = "add_into(Tensor x, Tensor(a!) out) -> ()"
    op = Operator(namespace, schema, "*shape, *shape ->")
    torch.library.define(f"{namespace}::add_into", schema[schema.index("(") :])

    def add_into(x, out):
        out.add_(x)

    torch.library.impl(f"{namespace}::add_into", "CPU", add_into)
    register_vmap(f"{namespace}::add_into", op.batching_rule())

    def call(x, out):
        op.overload(x, out)
        return out

    x, out = torch.arange(3.0), torch.zeros(3, 2)
    torch.vmap(call, (None, 1))(x, out)
    torch.testing.assert_close(out, x[:, None].expand(3, 2))
    with pytest.raises(RuntimeError, match="add_into: out must be batched under vmap"):
        torch.vmap(call, (0, None))(torch.ones(2, 3), torch.zeros(3))


def test_what_is_written_must_not_overlap_itself():
    op = Operator("nowhere", "add_into(Tensor x, Tensor(a!) out) -> ()", "*shape, *shape ->")
    whole, column = torch.zeros(3, 4), torch.zeros(3, 1).expand(3, 4)
    op.check(column, whole)  # is only read
    expected = "add_into: out must not overlap itself, got shape (3, 4) and strides (1, 0)"
    with pytest.raises(RuntimeError, match=re.escape(expected)):
        op.check(whole, column)
    found = {name: message for name, _, message in op.bad_inputs(Make())}
    assert found["out that overlaps itself"] == expected
    assert "x that overlaps itself" not in found


# ----- samples


def test_samples_leave_out_broadcast_and_widen():
    make = Make(dtype=torch.float16, requires_grad=False)
    op = Operator(
        "nowhere",
        "f(Tensor x, Tensor? w=None, Tensor? b=None, float eps=0.5, *, bool flip=False) -> Tensor",
        "*rows n, n:wide, n -> *rows n",
    )
    calls = list(op.samples(make, (2, 3)))
    given = [
        [None if a is None else a for a in (*args, *kwargs.values())] for args, kwargs in calls
    ]
    kinds = [[a if not isinstance(a, torch.Tensor) else a.dtype for a in call] for call in given]
    half = torch.float16
    assert kinds == [
        [half, half, half],
        [half, half, half, 0.875, True],
        [half, None, None],
        [half, None, half],
        [half, half, None],
        [half, torch.float32, half],
    ]
    assert all(call[0].shape == (2, 3) for call in given)
    assert list(op.samples(make, ())) == []

    op = Operator("nowhere", "f(Tensor x, Tensor y) -> Tensor", "..., ... -> ...")
    shapes = [args[1].shape for args, _ in op.samples(make, (2, 3, 4))]
    assert shapes == [(2, 3, 4), (3, 4), (1, 3, 1), (2, 2, 3, 4)]

    op = Operator("nowhere", "f(Tensor x, str mode) -> Tensor", "*s -> *s")
    with pytest.raises(NotImplementedError, match="'mode' has no default"):
        list(op.samples(make, (3,)))


def test_a_fake_kernel_has_the_parameters_of_its_schema():
    schema = "f(Tensor self, float c=1.5, *, bool flip=False) -> Tensor"
    fake = Operator("nowhere", schema, "*s -> *s").fake_kernel()
    assert str(inspect.signature(fake)) == "(self, c=1.5, *, flip=False)"
    assert fake(torch.ones(2), flip=True).shape == (2,)


def test_an_operator_without_a_line():
    assert "extension_cpp::reduce_sum" not in operators()
    for follows in (fake_kernel, batching_rule):
        with pytest.raises(ValueError, match="reduce_sum is declared without a line of shapes"):
            follows("extension_cpp::reduce_sum")

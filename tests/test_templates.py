"""templates/: what the tools write, refuse, undo and take out; test_templates_built.py builds it."""

import ast
import inspect
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path

import pytest
import torch
from expecttest import assert_expected_inline
from scratch import ROOT, checkout_of, copy_repository, git, under_git
from template_cases import CASES, KINDS, OTHER_SHAPES, SCHEMAS, name

sys.path.insert(0, str(ROOT / "templates"))

import formatting
import instantiate
import kinds
import naming
import new_op
import new_project
import places
import repository
import schema

from extension_cpp.shapes import Operator, sum_dtype
from extension_cpp.testing import Make, Sample


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the repository under git, which every test leaves as it was."""
    return checkout_of(tmp_path_factory.mktemp("checkout"))


def generate(text, *options):
    """The files of an operator, as `new_op.py` writes them."""
    arguments = new_op.parse_arguments([text, *options])
    parsed = schema.parse(text)
    kind = arguments.template or new_op.default_kind(parsed, own_kernel=False)
    return instantiate.instantiate(kind, *instantiate.fitted(kind, parsed, arguments))


def refusal(root, *arguments):
    """The message of a refusal: one line, status 2, and nothing was touched."""
    before = git(root, "status", "--porcelain", "--ignored")
    message = stops(new_op.main, arguments, root)
    assert git(root, "status", "--porcelain", "--ignored") == before, "something was written"
    return message.removeprefix("new_op.py: ")


def stops(main, arguments, root):
    lines = refused_lines(main, arguments, root)
    assert len(lines) == 1, lines
    return lines[0]


def refused_lines(main, arguments, root):
    with pytest.raises(SystemExit) as stopped, redirect_stderr(io.StringIO()) as written:
        main(list(arguments), root)
    assert stopped.value.code == 2
    return written.getvalue().splitlines()


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_template_is_what_its_own_schema_gives(kind):
    """Else a piece that depends on the schema was changed in the template or in the tool alone."""
    own = kinds.KINDS[kind].schema
    files = instantiate.instantiate(kind, own, kinds.Options())
    folder = ROOT / "templates" / kind
    assert set(files) == {path.name for path in folder.iterdir() if path.is_file()}
    for file, text in files.items():
        assert text == (folder / file).read_text(), file


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_template_has_places_to_edit(kind):
    for path in (ROOT / "templates" / kind).iterdir():
        marked = "EDIT:" in path.read_text()
        assert marked or path.name == "__init__.py", path


@pytest.mark.parametrize("case", CASES, ids=name)
def test_nothing_of_the_template_is_left(case):
    for file, text in generate(*case).items():
        assert "my_op" not in text, file
        assert "MyOp" not in text, file
        # The template's own arguments; `others` and `alpha` may be arguments of the case.
        for word in ("other", "alpha", "input"):
            if not re.search(rf"\b{word}\b", case[0]):
                code = re.sub(r'(#|//).*|"""(?s:.*?)"""', "", text)
                assert not re.search(rf"(?<![-\w.]){word}(?!\w)", code), (file, word)


def test_generated_code_is_in_form_and_can_be_removed(tmp_path):
    """All cases at once, as each program takes longer to start than to read."""
    root = checkout_of(tmp_path)
    for case in CASES:
        new_op.main(case, root)
    made = [root / "extension_cpp" / "operators" / name(case) for case in CASES]
    native = [str(p) for folder in made for p in folder.iterdir() if p.suffix != ".py"]
    python = [*map(str, made), str(root / "extension_cpp" / "ops.py")]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in (
        ["ruff", "check", "--quiet", "--no-cache", *python],
        ["ruff", "format", "--check", "--quiet", "--no-cache", *python],
        ["clang-format", "--dry-run", "--Werror", *native],
    ):
        command[0] = shutil.which(command[0], path=path)
        result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
    assert git(root, "status", "--porcelain") != ""
    for case in CASES:
        new_op.main(["--remove", name(case)], root)
    assert git(root, "status", "--porcelain") == ""


def signatures(*case):
    """The lines of an operator's files that spell out arguments."""
    files = generate(*case)
    op = name(list(case))
    found = []
    for file, patterns in {
        f"{op}.cpp": (
            native := (
                r"^(?:Tensor|void|std::tuple<.*?>) \w+(?<!_kernel)\((?s:.*?)\) \{",
                r"^(?:inline )?const Operator (?s:.*?);$",
            )
        ),
        f"{op}_cpu.cpp": native,
        f"{op}_cuda.cu": native,
        "ops.py": (r"^def \w+\((?s:.*?)\).*?:$", r"^    ctx\..* = \w*inputs\[.*\]$"),
        "spec.py": (r"^def (?:op_)?reference\((?s:.*?)\):$", r"^    yield Sample\((?s:.*?)\)$"),
    }.items():
        lines = [m for p in patterns for m in re.findall(p, files.get(file, ""), re.M)]
        if file in files:
            found += [file, *("  " + " ".join(line.split()) for line in lines)]
    text = "\n".join(found) + "\n"
    return text.replace("( ", "(").replace("{ ", "{").replace(", )", ")").replace(" )", ")")


def test_signatures_of_tensors_and_numbers():
    assert_expected_inline(
        signatures(
            "gelu_gate(Tensor x, Tensor gate, Tensor? mask, float alpha=1.0, int[] dims=[])"
            " -> Tensor"
        ),
        """\
gelu_gate.cpp
  Tensor gelu_gate(const Tensor& x, const Tensor& gate, const std::optional<Tensor>& mask, double alpha, IntArrayRef dims) {
  Tensor gelu_gate_backward(const Tensor& grad_output, const Tensor& x, double alpha, IntArrayRef dims) {
  const Operator kGeluGate{"gelu_gate(Tensor x, Tensor gate, Tensor? mask, float alpha=1.0, int[] dims=[]) -> Tensor", "*shape, *shape, *shape -> *shape"};
  const Operator kGeluGateBackward{"gelu_gate_backward(Tensor grad_output, Tensor x, float alpha, int[] dims) -> Tensor", "*shape, *shape -> *shape"};
ops.py
  def gelu_gate(x: Tensor, gate: Tensor, mask: Tensor | None, alpha: float = 1.0, dims: Sequence[int] = ()) -> Tensor:
  def _setup_context(ctx, inputs, output):
  def _backward(ctx, grad_output):
  def _backward_in_torch(grad_output, x, alpha, dims):
  ctx.alpha = inputs[3]
  ctx.dims = inputs[4]
spec.py
  def reference(x, gate, mask, alpha=1.0, dims=()):
  yield Sample(make(shape), make(shape), make(shape), 0.3, [1, 3])
  yield Sample(make(shape), make(shape), None)
""",
    )


def test_signatures_of_other_types():
    assert_expected_inline(
        signatures(
            "f(Tensor q, Tensor[] rest, SymInt n, bool flag, str mode, ScalarType dtype, "
            "Device device, float[] scales, *, Layout layout=strided, MemoryFormat? format=None, "
            "str? other=None, int[]? dims=None) -> Tensor"
        ),
        """\
f_cpu.cpp
  void launch_f(const Tensor& q, TensorList rest, Tensor& output, int64_t n, bool flag, const String& mode, ScalarType dtype, Device device, FloatArrayRef scales, Layout layout, std::optional<MemoryFormat> format, const std::optional<String>& other, OptionalIntArrayRef dims) {
  Tensor f_cpu(const Tensor& q, TensorList rest, int64_t n, bool flag, const String& mode, ScalarType dtype, Device device, FloatArrayRef scales, Layout layout, std::optional<MemoryFormat> format, const std::optional<String>& other, OptionalIntArrayRef dims) {
  Tensor f_backward_cpu(const Tensor& grad_output, int64_t n, bool flag, const String& mode, ScalarType dtype, Device device, FloatArrayRef scales, Layout layout, std::optional<MemoryFormat> format, const std::optional<String>& other, OptionalIntArrayRef dims) {
f_cuda.cu
  void launch_f(const Tensor& q, TensorList rest, Tensor& output, int64_t n, bool flag, const String& mode, ScalarType dtype, Device device, FloatArrayRef scales, Layout layout, std::optional<MemoryFormat> format, const std::optional<String>& other, OptionalIntArrayRef dims) {
  Tensor f_cuda(const Tensor& q, TensorList rest, int64_t n, bool flag, const String& mode, ScalarType dtype, Device device, FloatArrayRef scales, Layout layout, std::optional<MemoryFormat> format, const std::optional<String>& other, OptionalIntArrayRef dims) {
  Tensor f_backward_cuda(const Tensor& grad_output, int64_t n, bool flag, const String& mode, ScalarType dtype, Device device, FloatArrayRef scales, Layout layout, std::optional<MemoryFormat> format, const std::optional<String>& other, OptionalIntArrayRef dims) {
ops.py
  def f(q: Tensor, rest: Sequence[Tensor], n: int, flag: bool, mode: str, dtype: torch.dtype, device: torch.device, scales: Sequence[float], *, layout: torch.layout = torch.strided, format: torch.memory_format | None = None, other: str | None = None, dims: Sequence[int] | None = None) -> Tensor:
  def _setup_context(ctx, inputs, keyword_only_inputs, output):
  def _backward(ctx, grad_output):
  def _backward_in_torch(grad_output, n, flag, mode, dtype, device, scales, layout, format, other, dims):
  ctx.n = inputs[2]
  ctx.flag = inputs[3]
  ctx.mode = inputs[4]
  ctx.dtype = inputs[5]
  ctx.device = inputs[6]
  ctx.scales = inputs[7]
  ctx.layout = keyword_only_inputs["layout"]
  ctx.format = keyword_only_inputs["format"]
  ctx.other = keyword_only_inputs["other"]
  ctx.dims = keyword_only_inputs["dims"]
spec.py
  def reference(q, rest, n, flag, mode, dtype, device, scales, *, layout=torch.strided, format=None, other=None, dims=None):
  yield Sample(make(shape), [make(shape), make(shape)], 2, True, "ab", torch.bfloat16, torch.device("cpu"), [0.2, 0.5], layout=torch.sparse_coo, format=torch.channels_last, other="abc", dims=[1, 3])
  yield Sample(make(shape), [], 2, True, "ab", torch.bfloat16, torch.device("cpu"), [0.2, 0.5])
""",
    )


def test_signatures_of_several_outputs():
    assert_expected_inline(
        signatures("f(Tensor x, float eps=1e-05) -> (Tensor, Tensor, Tensor)", "--no-cuda"),
        """\
f_cpu.cpp
  std::tuple<Tensor, Tensor, Tensor> f(const Tensor& x, double eps) {
  Tensor f_backward(const Tensor& grad_output, const Tensor& x, const Tensor& mean, double eps) {
  const Operator kF{"f(Tensor x, float eps=1e-05) -> (Tensor, Tensor, Tensor)", "*rows n -> *rows n, *rows:sum, *rows:sum"};
  const Operator kFBackward{"f_backward(Tensor grad_output, Tensor x, Tensor mean, float eps) -> Tensor", "*rows n, *rows n, *rows:sum -> *rows n"};
ops.py
  def f(x: Tensor, eps: float = 1e-05) -> Tensor:
  def _setup_context(ctx, inputs, output):
  def _backward(ctx, grad_output, *grad_means):
  def _backward_in_torch(grad_output, x, mean, eps):
  ctx.eps = inputs[1]
spec.py
  def op_reference(x, eps=1e-05):
""",
    )


def test_signatures_of_a_mutation():
    assert_expected_inline(
        signatures("f(Tensor(a!) out, Tensor x, Tensor(b!) other, *, int n=2) -> ()"),
        """\
f.cpp
  void f(Tensor& out, const Tensor& x, Tensor& other, int64_t n) {
  const Operator kF{"f(Tensor(a!) out, Tensor x, Tensor(b!) other, *, int n=2) -> ()", "*shape, *shape, *shape ->"};
ops.py
  def f(out: Tensor, x: Tensor, other: Tensor, *, n: int = 2) -> None:
spec.py
  def reference(out, x, other, *, n=2):
""",
    )


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_gradients_have_one_entry_per_argument(kind):
    writes = kinds.KINDS[kind].schema.mutates
    several = kinds.KINDS[kind].schema.outputs > 1
    outputs = "()" if writes else "(Tensor, Tensor)" if several else "Tensor"
    main = "Tensor(a!) x" if writes else "Tensor x"
    text = f"f(float a, {main}, int[] b, Tensor y, Tensor? z=None, *, bool c=True) -> {outputs}"
    ops = generate(text, "--template", kind)["ops.py"]
    if writes:
        assert "_backward" not in ops
        return
    backward = ops[ops.index("def _backward(") :]
    returned = backward[backward.index("return (") : backward.index("\n    )\n")]
    lines = [line.strip() for line in returned.splitlines()[1:] if line.strip() not in (")", "")]
    assert len(lines) == 5, returned  # the positional ones
    assert lines[0] == lines[2] == "None,"
    assert lines[1] == "grad_x,"


REFUSED = [
    ("f(Tensor x", "torch cannot read the schema: expected ) but found"),
    ("f(Tensor x, Foo y) -> Tensor", "torch cannot read the schema: unknown type specifier"),
    ("fused_op(Tensor x) -> Tensor", "the operator 'fused_op' exists: its folder and its import"),
    (
        "fused_op_backward(Tensor x) -> Tensor",
        "the operator 'fused_op_backward' exists already, as a",
    ),
    ("zz(Tensor x) -> Tensor", None),
    ("fused(Tensor x) -> Tensor", None),
    ("class(Tensor x) -> Tensor", "torch cannot read the schema: expected ident but found 'class'"),
    ("lambda(Tensor x) -> Tensor", "the operator's name 'lambda' is a keyword of Python"),
    ("template(Tensor x) -> Tensor", None),
    ("f(Tensor x, int register) -> Tensor", None),
    ("f(Tensor x, int contiguous_x) -> Tensor", None),
    ("f(Tensor x, int lambda) -> Tensor", "the argument's name 'lambda' is a keyword of Python"),
    ("Gelu(Tensor x) -> Tensor", "the operator's name 'Gelu': operators are written in lower case"),
    ("sum(Tensor x) -> Tensor", "the operator's name 'sum' is a built-in of Python"),
    ("my_op(Tensor x) -> Tensor", "the operator's name 'my_op' is the package's or the temp"),
    ("reference(Tensor x) -> Tensor", "spec.py uses the name 'reference' for something else"),
    ("samples(Tensor x, str s) -> Tensor", "spec.py uses the name 'samples' for something else"),
    ("max_tensors(Tensor x) -> Tensor", None),
    (f"{'a' * 46}(Tensor x) -> Tensor", f"the operator's name '{'a' * 46}' is longer than 45"),
    ("_f(Tensor x) -> Tensor", "the operator's name '_f': a name starts with a letter"),
    ("f(Tensor x, Tensor x) -> Tensor", "two arguments are called 'x'"),
    ("f(Tensor x, int n=3, int[] k) -> Tensor", "k needs a default, as an argument before it has"),
    (
        "f(Tensor(a!) x, str mode) -> ()",
        "an operator that writes to an argument has none called 'mode': torch.compile passes",
    ),
    ("f(Tensor x, str mode) -> Tensor", None),
    (
        "f(Tensor(a!)? x, Tensor y) -> ()",
        "x: 'Tensor?' is only read: what is written to is always there",
    ),
    (
        "f(Tensor(a!)[] x, Tensor y) -> ()",
        "x: 'Tensor[]' is only read: of what is written to, each tensor is an argument of its own",
    ),
    ("f(Tensor x, int torch) -> Tensor", "the argument's name 'torch' is used by the generated"),
    ("f(Tensor x, str len='a') -> Tensor", "the argument's name 'len' is used by the generated"),
    (
        "f(Tensor? x, Tensor any) -> Tensor",
        "the argument's name 'any' means a dtype in the shapes: ",
    ),
    (
        "f(Tensor? x, Tensor sum) -> Tensor",
        "the argument's name 'sum' means a dtype in the shapes: ",
    ),
    ("f(Tensor any, Tensor? x) -> Tensor", None),
    ("name(Tensor x) -> Tensor", "the operator's name 'name' is an attribute that torch.ops gives"),
    (
        "checks(Tensor x, Tensor[] y) -> Tensor",
        "the operator's name 'checks' is that of the header csrc/check",
    ),
    ("half(Tensor x) -> Tensor", None),
    ("fused_op_(Tensor x) -> Tensor", None),
    ("f(Tensor x, float a=1e400) -> Tensor", "torch cannot read the schema: a number in it is out"),
    ("f(Tensor x, int a=9223372036854775808) -> Tensor", "torch cannot read the schema: a number"),
    ("\u00fc(Tensor x) -> Tensor", "the schema holds '\\xfc', which does not come through torch"),
    (r'f(Tensor x, str s="\303\251") -> Tensor', "s: the default holds '\\xe9': keep to ASCII"),
    (r'f(Tensor x, str s="\377") -> Tensor', "s: the default has bytes that are no text: keep to"),
    ('f(Tensor x, str s="a\tb") -> Tensor', "the schema holds '\\t', which does not come through"),
    ("f(Tensor x, int a=None) -> Tensor", "a: None is no default for the type 'int': calls would"),
    ("f(Tensor x, int a=1.5) -> Tensor", "a: 1.5 is no default for the type 'int': calls would"),
    ("f(Tensor x, bool a=2) -> Tensor", "a: 2 is no default for the type 'bool': calls would"),
    ("f(Tensor x, bool a=1) -> Tensor", "a: 1 is no default for the type 'bool': calls would"),
    ("f(Tensor x, bool? a=0.0) -> Tensor", "a: 0.0 is no default for the type 'bool?': calls"),
    ("f(Tensor x, ScalarType a=True) -> Tensor", "a: True is no default for the type 'ScalarT"),
    (
        "f(Tensor x, int[2] a=True) -> Tensor",
        "torch cannot read the schema: a list's default holds what is no element of its type",
    ),
    ("f(Tensor x, ScalarType a=99) -> Tensor", "a: 99 is no default for the type 'ScalarType'"),
    ("f(Tensor x, int l) -> Tensor", "the argument's name 'l' looks like a digit"),
    ("ns::f(Tensor x) -> Tensor", "write the schema without a namespace"),
    ("f.out(Tensor x) -> Tensor", "overloads are not supported: call it f_out"),
    ("f(Tensor x, ...) -> Tensor", "'...' is not supported"),
    ("f(Tensor x, Scalar s) -> Tensor", "s: the type 'Scalar' is not supported; use float"),
    ("f(Tensor x, bool[2] s) -> Tensor", "s: the type 'bool[]' is not supported; use int[], of 0"),
    (
        "f(Tensor x, Tensor?[] s) -> Tensor",
        "s: the type 'Tensor?[]' is not supported; use Tensor[]",
    ),
    ("f(Tensor x, Generator? s) -> Tensor", "s: the type 'Generator?' is not supported; use int? "),
    ("f(Tensor x, Stream s) -> Tensor", "s: the type 'Stream' is not supported; use one of: Tens"),
    ("f(Tensor x, Tensor w=None) -> Tensor", "a Tensor has no default: use 'Tensor? w=None'"),
    ("f(Tensor x, *, Tensor y) -> Tensor", "y is a tensor that can only be passed by keyword"),
    ("f(Tensor(a) x) -> Tensor", "x: the only alias there is is Tensor(a!), a tensor that is"),
    ("f(Tensor(a!)[] x) -> ()", "x: 'Tensor[]' is only read: of what is written to, each"),
    ("f(Tensor(a!) x) -> Tensor(a!)", "the result is not supported: an operator returns new"),
    ("f(Tensor x) -> ()", "the result is not supported: an operator returns new tensors"),
    ("f(Tensor x) -> Tensor[]", "the result is not supported: an operator returns new tensors"),
    ("f(Tensor x) -> Tensor?", "the result is not supported: an operator returns new tensors"),
    ("f(Tensor x) -> int", "the result is not supported: an operator returns new tensors"),
    ("f(int n) -> Tensor", "the schema has no argument of type Tensor"),
    ("f(Tensor[] x) -> Tensor", "the schema has no argument of type Tensor"),
]


def test_what_options_exclude(capsys):
    schema = "f(Tensor x) -> Tensor"
    for arguments, message in (
        ([], "one of the arguments schema --from --remove is required"),
        ([""], "one of the arguments schema --from --remove is required"),
        ([schema, "--remove", "f"], "argument --remove: not allowed with argument schema"),
        ([schema, "--from", "f.py:f"], "argument --from: not allowed with argument schema"),
        ([schema, "--no-cuda", "--no-cpu"], "--no-cpu: not allowed with argument --no-cuda"),
        ([schema, "--no-cuda", "--cuda", "f.cu"], "--no-cuda and --cuda exclude each other"),
        ([schema, "--no-grad", "--backward", "torch"], "--backward: not allowed with argument"),
    ):
        with pytest.raises(SystemExit):
            new_op.parse_arguments(arguments)
        assert message in capsys.readouterr().err
    # As `make new-op OPTIONS="--remove f"` calls it.
    assert new_op.parse_arguments(["", "--remove", "f"]).remove == "f"


@pytest.mark.parametrize("script", ["new_op.py", "new_project.py"])
def test_an_interpreter_without_torch_is_named(script, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError")
    result = subprocess.run(
        [sys.executable, ROOT / "templates" / script, "--help"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stderr.startswith(f"{script}: {sys.executable} has no torch")


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[text for text, _ in REFUSED])
def test_refused_schemas(text, message, checkout):
    if message is None:  # near misses that are fine
        new_op.main([text, "--dry-run"], checkout)
    else:
        assert refusal(checkout, text).startswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["f(Tensor x) -> (Tensor, Tensor)", "--template", "rowwise"],
            "the template 'rowwise' is for operators that take a fixed number of tensors and "
            "return one new tensor, which f is not; for its schema there are: multi_output, "
            "multi_output_kernel",
        ),
        (
            ["f(Tensor x, Tensor[] y) -> Tensor", "--template", "elementwise"],
            "the template 'elementwise' is for operators that take a fixed number of tensors and "
            "return one new tensor, which f is not; for its schema there is: kernel",
        ),
        (
            ["f(Tensor(a!) x) -> ()", "--template", "kernel"],
            "the template 'kernel' is for operators that return one new tensor, which f is not; "
            "for its schema there are: inplace, inplace_kernel",
        ),
        (
            ["f(Tensor x) -> (Tensor, Tensor)", "--template", "kernel"],
            "the template 'kernel' is for operators that return one new tensor, which f is not; "
            "for its schema there are: multi_output, multi_output_kernel",
        ),
        (
            ["f(Tensor(a!) x, Tensor[] y) -> ()", "--template", "inplace"],
            "the template 'inplace' is for operators that take a fixed number of tensors and write "
            "to an argument, Tensor(a!), and return nothing, which f is not; for its schema there "
            "is: inplace_kernel",
        ),
        (
            ["f(Tensor x, Tensor[] y) -> (Tensor, Tensor)", "--template", "multi_output"],
            "the template 'multi_output' is for operators that take a fixed number of tensors and "
            "return several new tensors, which f is not; for its schema there is: "
            "multi_output_kernel",
        ),
        (
            ["f(Tensor x) -> Tensor", "--template", "multi_output_kernel"],
            "the template 'multi_output_kernel' is for operators that return several new tensors, "
            "which f is not; for its schema there are: elementwise, rowwise, reduction, scan, "
            "kernel",
        ),
        *(
            (
                [*what, "--shapes", line],
                "--shapes says nothing: leave it out, or say the shape of every tensor",
            )
            for what in (["f(Tensor x) -> Tensor"], ["--from", "f.py:f"])
            for line in ("", " ")
        ),
        (
            ["f(Tensor x, int k) -> Tensor", "--shapes", "*rows n -> *rows k"],
            "--shapes \"*rows n -> *rows k\": the loops of the template 'elementwise' are for sizes of "
            "tensors, and k is a number of the schema: start from a template with a kernel of your "
            "own, or call it otherwise in the line",
        ),
        (["--remove", "nothing_of_that_name"], "there is no operator 'nothing_of_that_name'"),
    ],
)
def test_refused_requests(arguments, message, checkout):
    assert refusal(checkout, *arguments) == message


@pytest.mark.parametrize(
    ("text", "simplest", "own_kernel"),
    [
        ("f(Tensor x) -> Tensor", "elementwise", "kernel"),
        ("f(Tensor x, Tensor[] y) -> Tensor", "kernel", "kernel"),
        ("f(Tensor x) -> (Tensor, Tensor)", "multi_output", "multi_output_kernel"),
        (
            "f(Tensor x, Tensor[] y) -> (Tensor, Tensor)",
            *("multi_output_kernel", "multi_output_kernel"),
        ),
        ("f(Tensor(a!) x) -> ()", "inplace", "inplace_kernel"),
        ("f(Tensor(a!) x, Tensor[] y) -> ()", "inplace_kernel", "inplace_kernel"),
    ],
)
def test_the_template_that_a_schema_asks_for(text, simplest, own_kernel):
    parsed = schema.parse(text)
    assert new_op.default_kind(parsed, own_kernel=False) == simplest
    assert new_op.default_kind(parsed, own_kernel=True) == own_kernel


@pytest.mark.parametrize(
    ("line", "message", "place"),
    [
        ("*shape ->", "f: the line has 1 shapes of arguments, the schema 2 tensors among its", 7),
        ("*shape, n -> *shape m", "f: 'm' is in no shape of an argument", 13),
        ("*shape, *shape", "f: '->' is missing", 14),
        (
            "*shape, *shape:half -> *shape",
            "f: there is no dtype 'half': sum, wide, any, a name",
            15,
        ),
    ],
)
def test_refused_shapes(line, message, place, checkout):
    request = ["f(Tensor x, Tensor y) -> Tensor", "--template", "kernel", "--shapes", line]
    first, _, mark = refused_lines(new_op.main, request, checkout)
    assert first.startswith(f"new_op.py: {message}")
    assert mark == f"    {' ' * place}^"
    assert git(checkout, "status", "--porcelain", "--ignored") == ""


EMBED = "embed(Tensor table, Tensor index, *, int padding_idx=-1) -> Tensor"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        # Of the backward operator, whose line follows.
        (
            [EMBED, "--template", "kernel", "--shapes", "v n, *b l:int64 -> *b n"],
            '--shapes "v n, *b l:int64 -> *b n": the template\'s backward operator would take the '
            'gradient of the result ("*b n"), and return the gradient of table ("v n"): \'v\' is in '
            "no shape of an argument. Add --backward torch, for a backward made of PyTorch calls, "
            "or --no-grad",
        ),
    ],
)
def test_refused_shapes_of_gradients(request_, message, checkout):
    """With which the package could not be imported any more."""
    assert refusal(checkout, *request_) == message


@pytest.mark.parametrize(
    ("request_", "by_example"),
    [
        (["f(Tensor x, Tensor y) -> Tensor", "--shapes", "*rows n, *rows n -> *rows n"], []),
        (["f(Tensor x, Tensor y) -> Tensor", "--shapes", "..., ... -> ..."], []),
        # Nothing that a batch could be joined to; or not in every tensor; or several.
        (["f(Tensor x, Tensor y) -> Tensor", "--shapes", "n, n -> ()"], ["f", "f_backward"]),
        (["f(Tensor(a!) x, Tensor y) -> ()", "--shapes", "n m, *rows ->"], ["f"]),
        (
            ["f(Tensor w, Tensor x) -> Tensor", "--shapes", "n, *rows n -> *rows n"],
            ["f", "f_backward"],
        ),
        (
            ["f(Tensor x, Tensor w) -> Tensor", "--shapes", "*rows n, n -> *rows n"],
            ["f"],
        ),
        (
            ["f(Tensor x, Tensor y) -> (Tensor, Tensor)", "--shapes", "*a n, *b -> *a n, *b"],
            ["f", "f_backward"],
        ),
        (
            [
                "f(Tensor x, Tensor y) -> (Tensor, Tensor)",
                *("--template", "multi_output_kernel", "--shapes", "n m, n m -> n m, n:sum"),
            ],
            ["f", "f_backward"],
        ),
        ([EMBED, "--no-grad", "--shapes", "v n, b l:int64 -> b n"], ["embed"]),
    ],
)
def test_a_batching_rule_where_none_follows_from_the_shapes(request_, by_example):
    ops = generate(*request_)["ops.py"]
    assert re.findall(r'by_example\("extension_cpp::(\w+)"\)', ops) == by_example
    assert ("import by_example" in ops) == bool(by_example)


@pytest.mark.parametrize("options", [["--backward", "torch"], ["--no-grad"]])
def test_ways_out_of_a_refused_backward(options, checkout):
    shapes = ["--shapes", "v n, *b l:int64 -> *b n"]
    new_op.main([EMBED, "--template", "kernel", *shapes, *options, "--dry-run"], checkout)


def guards(*case):
    """The checks of what a template's kernel needs, and what they say."""
    text = " ".join(" ".join(generate(*case).values()).split())
    return re.findall(
        r"// EDIT: what the template's \w+ needs.*? check\( ?(.*?), \"(.*?)\"\);", text
    )


@pytest.mark.parametrize("case", [*KINDS, *SCHEMAS], ids=name)
def test_where_all_shapes_are_the_templates_nothing_is_checked(case):
    assert guards(*case) == []


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("elementwise", "*rows n, n -> *rows n"),
        ("elementwise", "..., ... -> ..."),
        ("rowwise", "*b n m, *b n m -> *b n m"),
        ("reduction", "*b n m, *b n m -> *b n"),
        ("scan", "*rows 3, *rows 3 -> *rows 3"),
        ("kernel", "*b t d, *b t d -> *b t d"),
        ("multi_output_kernel", "*b t d, *b t d -> *b t d, *b t:float32"),
    ],
)
def test_shapes_that_a_template_is_for_are_not_checked(kind, line):
    result = "Tensor" if kinds.KINDS[kind].schema.outputs == 1 else "(Tensor, Tensor)"
    case = [f"f(Tensor x, Tensor y) -> {result}", "--template", kind, "--shapes", line]
    assert guards(*case) == []


def test_what_the_kernel_of_a_template_needs_is_checked():
    """Where the shapes that are given do not say it: else it would read what is not there."""
    found = []
    for case in OTHER_SHAPES:
        found.append(f"{name(case)}: {guards(*case)[0][1].partition(': ')[2]}")
        found += [f"  {condition}" for condition, _ in guards(*case)]
    assert_expected_inline(
        "\n".join(found) + "\n",
        """\
other_elementwise: its formula is the template's, for tensors of one shape
  equal_sizes(x.sizes(), checked.sizes())
  equal_sizes(grad_output.sizes(), checked.sizes())
other_rowwise: its formula is the template's, for tensors of one shape
  equal_sizes(y.sizes(), x.sizes()) && equal_sizes(checked.sizes(), x.sizes())
  equal_sizes(checked.sizes(), grad_output.sizes())
other_reduction: its formula is the template's, for tensors of one shape and a number for each row
  equal_sizes(y.sizes(), x.sizes()) && x.dim() > 0 && equal_sizes(checked.sizes(), x.sizes().slice(0, x.dim() - 1))
  x.dim() > 0 && equal_sizes(grad_output.sizes(), x.sizes().slice(0, x.dim() - 1))
other_scan: its formula is the template's, for tensors of one shape
  equal_sizes(y.sizes(), x.sizes()) && equal_sizes(checked.sizes(), x.sizes())
  equal_sizes(x.sizes(), grad_output.sizes()) && equal_sizes(checked.sizes(), grad_output.sizes())
other_kernel: its kernel is the template's, for tensors of one shape
  y.numel() == x.numel() && output.numel() == x.numel()
  grad_x.numel() == grad_output.numel()
  y.numel() == x.numel() && output.numel() == x.numel()
  grad_x.numel() == grad_output.numel()
other_multi_output: its formula is the template's, for tensors of one shape and a number for each row
  equal_sizes(y.sizes(), x.sizes()) && equal_sizes(checked.sizes(), x.sizes()) && x.dim() > 0 && equal_sizes(checked.sizes(1), x.sizes().slice(0, x.dim() - 1))
  equal_sizes(x.sizes(), grad_output.sizes()) && grad_output.dim() > 0 && equal_sizes(mean.sizes(), grad_output.sizes().slice(0, grad_output.dim() - 1)) && equal_sizes(checked.sizes(), grad_output.sizes())
other_multi_output_kernel: its kernel is the template's, for tensors of one shape and a number for each row
  y.numel() == x.numel() && output.numel() == x.numel() && x.dim() > 0 && equal_sizes(mean.sizes(), x.sizes().slice(0, x.dim() - 1))
  x.numel() == grad_output.numel() && grad_output.dim() > 0 && equal_sizes(mean.sizes(), grad_output.sizes().slice(0, grad_output.dim() - 1)) && grad_x.numel() == grad_output.numel()
  y.numel() == x.numel() && output.numel() == x.numel() && x.dim() > 0 && equal_sizes(mean.sizes(), x.sizes().slice(0, x.dim() - 1))
  x.numel() == grad_output.numel() && grad_output.dim() > 0 && equal_sizes(mean.sizes(), grad_output.sizes().slice(0, grad_output.dim() - 1)) && grad_x.numel() == grad_output.numel()
other_inplace: its formula is the template's, for tensors of one shape
  equal_sizes(y.sizes(), x.sizes())
other_inplace_kernel: its kernel is the template's, for tensors of one shape
  y.numel() == x.numel()
  y.numel() == x.numel()
other_lists: its kernel is the template's, for tensors of one shape
  (!y.has_value() || y->numel() == x.numel()) && std::all_of(rest.begin(), rest.end(), [&](const Tensor& each) { return each.numel() == x.numel(); })
  (!y.has_value() || y->numel() == x.numel()) && std::all_of(rest.begin(), rest.end(), [&](const Tensor& each) { return each.numel() == x.numel(); })
other_optional: its formula is the template's, for tensors of one shape
  (!y.has_value() || equal_sizes(y->sizes(), x.sizes()))
""",
    )


@pytest.mark.parametrize("kind", ["scan", "kernel"])
def test_a_template_that_needs_a_last_dimension_checks_that_there_is_one(kind):
    """Which a tensor of no dimensions has not."""
    case = ["f(Tensor x) -> Tensor", "--template", kind, "--shapes", "*shape -> *shape"]
    found = guards(*case)
    assert {condition for condition, _ in found} == {"x.dim() > 0", "grad_output.dim() > 0"}
    assert all(said.endswith("of one shape, which has a last dimension") for _, said in found)


def test_so_does_one_that_writes_to_an_argument():
    case = ["f(Tensor(a!) x) -> ()", "--template", "inplace_kernel", "--shapes", "*shape ->"]
    message = (
        "f: its kernel is the template's, for tensors of one shape, which has a last dimension"
    )
    assert guards(*case) == [("x.dim() > 0", message)] * 2  # of two backends


def pointers(*case):
    """What a kernel for CUDA is given, with what is written, and what is converted for it."""
    files = generate(*case)
    (text,) = (text for file, text in files.items() if file.endswith("_cuda.cu"))
    patterns = (
        r"(?m)^ +((?:const )?\S+ (?:__restrict__ )?\w+), +// \[rows",
        r"(?m)^ +(\w+\[.*\] = .*;)$",
        r"\w+ = (as_accumulated\(.*\));",
        r"(dispatch_floating\(.*?),",
    )
    return "".join(f"{found}\n" for p in patterns for found in re.findall(p, text))


def test_pointers_have_the_types_that_a_line_says():
    assert_expected_inline(
        pointers(
            "f(Tensor i, Tensor x, Tensor? w, Tensor[] rest, Tensor z) -> (Tensor, Tensor, Tensor)",
            "--shapes",
            "*b n:int64, *b n, *b n:wide, *b n:any, *b n:i -> *b n:int8, *b:float32, *b:sum",
        ),
        """\
const T* __restrict__ x
const int64_t* __restrict__ i_
const acc_t<T>* __restrict__ w
const Pointers<acc_t<T>> rest
const int64_t* __restrict__ z
int8_t* __restrict__ output
float* __restrict__ mean
acc_t<T>* __restrict__ mean_2
shared[threadIdx.x / cuda::kWarp] = value;
output[i] = static_cast<int8_t>(result);
mean[row] = static_cast<float>(average);
mean_2[row] = average;
as_accumulated(w, x.scalar_type())
as_accumulated(rest, x.scalar_type())
dispatch_floating(x.scalar_type()
""",
    )
    assert_expected_inline(
        pointers(
            "f(Tensor x, Tensor y) -> Tensor",
            *("--template", "kernel", "--shapes", "*b n:complex64, *b n:bool -> *b n:bfloat16"),
        ),
        """\
const Matrix<c10::complex<float>> x
const bool* __restrict__ y
BFloat16* __restrict__ output
shared[k] = col >= 0 && col < matrix.size(1) ? static_cast<A>(matrix[row][col].real()) : A(0);
output[i] = static_cast<BFloat16>(result);
dispatch_floating(ScalarType::Float
""",
    )
    assert_expected_inline(
        pointers(
            "f(Tensor(a!) cache, Tensor x) -> ()",
            *("--template", "inplace_kernel", "--shapes", "*b n:float8_e5m2, *b n ->"),
        ),
        """\
Float8_e5m2* cache
const T* x
results[end] = result;
cache[ends[0]] = static_cast<Float8_e5m2>(results[0]);
cache[ends[1]] = static_cast<Float8_e5m2>(results[1]);
dispatch_floating(x->scalar_type()
""",
    )


def test_the_pointer_to_a_saved_statistic_has_its_type():
    line = "*b n -> *b n, *b:float64, *b:int32"
    text = generate(
        "f(Tensor x) -> (Tensor, Tensor, Tensor)",
        *("--template", "multi_output_kernel", "--shapes", line),
    )
    assert '"*b n, *b n, *b:float64 -> *b n"' in text["f.h"]
    for file in ("f_cpu.cpp", "f_cuda.cu"):
        assert "const double* __restrict__ mean," in text[file]
        assert "contiguous_mean.const_data_ptr<double>()" in text[file]


def test_the_main_tensor_is_one_of_the_dtype_that_the_kernel_is_compiled_for():
    """Of which the others follow."""
    line = "*b n:float32, *b n -> *b n"
    files = generate("f(Tensor w, Tensor x) -> Tensor", "--template", "kernel", "--shapes", line)
    assert "    const T* __restrict__ x," in files["f_cpu.cpp"]
    assert "    const float* __restrict__ w," in files["f_cpu.cpp"]
    assert "dispatch_floating(x.scalar_type()" in files["f_cpu.cpp"]


@pytest.mark.parametrize("options", [["--backward", "torch"], ["--no-grad"]])
@pytest.mark.parametrize("backend", [[], ["--no-cuda"], ["--no-cpu"]])
def test_both_backends_check_what_the_kernel_needs(options, backend):
    text = "f(Tensor x, Tensor y, float a=2.0) -> Tensor"
    shapes = ["--template", "kernel", "--shapes", "*rows n, *rows m -> *rows m"]
    found = guards(text, *shapes, *options, *backend)
    condition = "y.numel() == x.numel() && output.numel() == x.numel()"
    message = "f: its kernel is the template's, for tensors of one shape"
    assert found == [(condition, message)] * (2 - len(backend))


@pytest.mark.parametrize(
    ("kind", "line", "works"),
    [
        ("elementwise", None, True),
        ("elementwise", "*rows n, *rows n -> *rows n", True),
        ("elementwise", "..., ... -> ...", True),
        ("elementwise", "*rows n, n -> *rows n", False),  # of a batch of the second alone
        ("elementwise", "*shape, *shape:bool -> *shape", True),
        ("elementwise", "*shape, *shape:any -> *shape", False),
        ("elementwise", "*shape, *shape -> *shape:int8", False),
        ("rowwise", "*b n m, *b n m -> *b n m", True),
        ("rowwise", "*shape, *shape -> *shape", False),  # of which there may be no row
        ("reduction", "*b n m, *b n m -> *b n", True),
        ("reduction", "*rows n, *rows n -> *rows n", False),
        ("reduction", "*rows n, *rows n -> *rows:float32", False),
        ("scan", "*b n m, *b n m -> *b n m", True),
        ("scan", "*rows 3, *rows 3 -> *rows 3", False),  # of which there are no samples
        ("kernel", "*rows n, *rows n -> *rows n", True),
        ("kernel", "*rows n, *rows m -> *rows n", False),
        ("multi_output_kernel", "*b n m, *b n m -> *b n m, *b n:sum", True),
        ("multi_output_kernel", "*b n m, *b n m -> *b n m, *b n:int64", False),
    ],
)
def test_the_closing_words_say_whether_it_works_as_it_is(kind, line, works, checkout, capsys):
    shapes = [] if line is None else ["--shapes", line]
    result = "Tensor" if kinds.KINDS[kind].schema.outputs == 1 else "(Tensor, Tensor)"
    new_op.main([f"f(Tensor x, Tensor y) -> {result}", "--template", kind, *shapes], checkout)
    new_op.main(["--remove", "f"], checkout)
    said = capsys.readouterr().out
    assert ("It works as it is:\n    make check OP=f\n" in said) == works
    assert ("Edit the kernel or formula first" in said) != works


def docstring(*case):
    """That of the public function."""
    module = ast.parse(generate(*case)["ops.py"])
    functions = [node for node in module.body if getattr(node, "name", "") == name([*case])]
    return ast.get_docstring(functions[0]).partition("\n\n")[2] + "\n"


def test_the_docstring_says_the_shapes_that_are_given():
    shapes = ["--shapes", "v n, *b k:int64 -> *b n", "--backward", "torch"]
    assert_expected_inline(
        docstring(EMBED, "--template", "kernel", *shapes),
        """\
Args:
    table: of shape `(v, n)` and any layout, on CPU or CUDA; float64, float32, float16 or
        bfloat16.
    index: of shape `(..., k)`, int64, on the device of `table`.
    padding_idx: an integer.

Returns:
    A contiguous tensor of shape `(..., n)` with the dtype of `table`.
    Differentiable to any order, in reverse and forward mode.

Raises:
    RuntimeError: a dtype, device or shape other than the above.
""",
    )
    text = docstring(
        "f(Tensor x, int k) -> Tensor", "--template", "kernel", "--shapes", "b 2n+1 -> b n+k k"
    )
    assert "x: of shape `(b, 2n+1)` and any layout" in text
    assert "k: an integer that is not negative." in text
    assert "A contiguous tensor of shape `(b, n+k, k)` with the dtype of `x`." in text
    assert_expected_inline(
        docstring(
            "f(Tensor index, Tensor x, Tensor? w, Tensor[] rest, Tensor sums, Tensor mask, Tensor z,"
            " float a=1.0) -> Tensor",
            *("--template", "kernel", "--no-grad", "--no-cuda", "--shapes"),
            "*b k:int64, *b k n, n:wide, *b n [8], *b:sum, *b k n:any, *b n:index -> *b:sum",
        ),
        """\
Args:
    x: of shape `(..., k, n)` and any layout, on CPU; float64, float32, float16 or bfloat16.
    index: of shape `(..., k)`, int64, on the device of `x`.
    w: of shape `(n,)`; the dtype of `x`, or float32 where that is a half type; on the
        device of `x`, or None.
    rest: at most 8 tensors of shape `(..., n)`, dtype and device of `x`.
    sums: of shape `(...)`; float64 where `x` is float64, else float32; on the device of
        `x`.
    mask: of shape `(..., k, n)`, any dtype, on the device of `x`.
    z: of shape `(..., n)`, with the dtype of `index`, on the device of `x`.
    a: a number.

Returns:
    A contiguous tensor of shape `(...)` in float64 where `x` is float64, else float32.
    Not differentiable: asking for a gradient is an error.

Raises:
    RuntimeError: a dtype, device or shape other than the above.
""",
    )
    assert_expected_inline(
        docstring(
            "f(Tensor x, Tensor y, Tensor z) -> Tensor",
            *("--backward", "torch", "--shapes", "*rows n, ... n, () -> *rows n"),
        ),
        """\
Args:
    x: of shape `(*rows, n)` and any layout, on CPU or CUDA; float64, float32, float16 or
        bfloat16.
    y: of shape `(..., n)`, which broadcasts, dtype and device of `x`.
    z: of shape `()`, dtype and device of `x`.

Returns:
    A contiguous tensor of shape `(*rows, n)` with the dtype of `x`.
    Differentiable to any order, in reverse and forward mode.

Raises:
    RuntimeError: a dtype, device or shape other than the above.
""",
    )
    assert_expected_inline(
        docstring("f(Tensor(a!) x, Tensor w) -> ()", "--shapes", "*rows n, n:float32 ->"),
        """\
Args:
    x: of shape `(..., n)` and any layout in which no two elements share memory, on CPU or
        CUDA; float64, float32, float16 or bfloat16.
    w: of shape `(n,)`, float32, on the device of `x`.

Not differentiable: a derivative through what it wrote raises an error.

Under `torch.compile` and `torch.export`, which see no memory, arguments may share it in part:
these compute on copies where a write could reach another tensor.

Raises:
    RuntimeError: a dtype, device or shape other than the above, or memory that is shared
        with another argument in part.
""",
    )


@pytest.mark.parametrize("case", KINDS, ids=name)
def test_no_article_stands_before_an_argument(case):
    """That of the template's own name need not fit it."""
    tensors = [a.name for a in schema.parse(case[0]).tensors]
    for file, text in generate(*case).items():
        comments = " ".join(re.findall(r"(?m)(?://|#)(?!include)(.*)$", text))
        assert not re.search(rf"(?i)\ban? +(?:{'|'.join(tensors)})\b", comments), file


def returned(*case):
    """What _backward returns for each argument; nothing where there is none."""
    functions = ast.parse(generate(*case)["ops.py"]).body
    found = [node for node in functions if getattr(node, "name", "") == "_backward"]
    return [ast.unparse(value) for node in found for value in node.body[-1].value.elts]


@pytest.mark.parametrize(
    ("case", "promotes"),
    [
        (["f(Tensor x, Tensor y) -> Tensor"], True),
        (["f(Tensor x, Tensor? y=None) -> (Tensor, Tensor)"], True),
        (["f(Tensor x, Tensor[] rest) -> Tensor"], True),
        (["f(Tensor x, Tensor y) -> Tensor", "--no-grad", "--no-cuda"], True),
        (["f(Tensor x, Tensor m, Tensor y) -> Tensor", "--shapes", "n, n:bool, n -> n"], True),
        (["f(Tensor x, float a) -> Tensor"], False),
        (["f(Tensor x, Tensor m) -> Tensor", "--shapes", "n, n:int64 -> n"], False),
        # They may be of two dtypes as it is.
        (["f(Tensor x, Tensor y) -> Tensor", "--shapes", "n, n:wide -> n"], False),
        (["f(Tensor x, Tensor y, Tensor z) -> Tensor", "--shapes", "n, n, n:float32 -> n"], False),
        # What is written to would be a copy.
        (["f(Tensor(a!) x, Tensor y) -> ()"], False),
    ],
)
def test_floating_tensors_of_one_dtype_promote_under_autocast(case, promotes):
    files = generate(*case)
    assert ('register_autocast("extension_cpp::f", "promote")' in files["ops.py"]) == promotes
    assert ("under autocast" in files["ops.py"]) == promotes
    assert ('autocast="promote"' in files["spec.py"]) == promotes


def test_integers_and_bool_have_no_gradient(checkout):
    masked = ["masked(Tensor x, Tensor mask) -> Tensor", "--shapes", "*s, *s{} -> *s"]
    plain, with_mask = ([each.format(dtype) for each in masked] for dtype in ("", ":bool"))
    assert returned(*plain) == ["grad_x", "grad_output if ctx.needs_input_grad[1] else None"]
    assert returned(*with_mask) == ["grad_x", "None"]
    lists = ["lists(Tensor x, Tensor[] ids) -> Tensor", "--shapes", "*s, *s:int64 -> *s"]
    assert returned(*lists) == ["grad_x", "None"]
    # The template's derivative is that of the first which has one.
    text, line = "scaled(Tensor weight, Tensor scale) -> Tensor", "*n k:int8, *n -> *n k"
    assert returned(text, "--shapes", line) == ["None", "grad_scale"]
    backward = "scaled_backward(Tensor grad_output, Tensor scale) -> Tensor"
    assert f'"{backward}", "*n k, *n -> *n"' in generate(text, "--shapes", line)["scaled.cpp"]
    new_op.main([text, "--shapes", line], checkout)
    assert f"\n{backward}\n" in (checkout / "tests/test_schemas.py").read_text()
    new_op.main(["--remove", "scaled"], checkout)
    assert git(checkout, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    "line", ["*s:int64, *s:x -> *s:int8", "*s:y, *s:uint8 -> *s:x", "*s, *s -> *s:bool"]
)
@pytest.mark.parametrize("options", [[], ["--backward", "torch"]])
def test_where_nothing_has_a_gradient_there_is_no_backward(line, options):
    files = generate("f(Tensor x, Tensor y) -> Tensor", "--shapes", line, *options)
    assert not any("backward" in text for text in files.values())
    assert 'registration.register_no_autograd("extension_cpp::f")' in files["ops.py"]
    assert "differentiable=False" in files["spec.py"]


def test_a_result_shaped_like_an_argument_has_its_gradient_so():
    """That stands among the arguments of the backward, where '=name' is none."""
    schema = "weigh(Tensor i, Tensor x, Tensor mask) -> Tensor"
    options = ("--template", "kernel", "--shapes", "m:int64, ... n, ... n:bool -> =x")
    header = generate(schema, *options)["weigh.h"]
    assert '"weigh_backward(Tensor grad_output) -> Tensor", "... n -> ... n"' in header


def samples(*case):
    functions = ast.parse(generate(*case)["spec.py"]).body
    (found,) = [node for node in functions if getattr(node, "name", "") == "samples"]
    return found


SAMPLED = [
    [
        "adam(Tensor(a!) p, Tensor grad, Tensor(b!) m, Tensor(c!) v, float lr, float beta) -> ()",
        *("--shapes", "*s, *s, *s:sum, *s:sum ->"),
    ],
    [
        "f(Tensor x, Tensor i, Tensor? m, Tensor[] r, Tensor w, str a) -> Tensor",
        *("--template", "kernel", "--backward", "torch", "--shapes"),
        "*b k 3, *b k:int64, *b:bool, k [4]:wide, *c 2 n:i -> *b k",
    ],
    [
        "sums(Tensor x, Tensor y, int n, str mode='a', int k=2, int heads=3) -> Tensor",
        *("--template", "kernel", "--no-grad", "--shapes"),
        "heads t 2d-1, d k:sum -> t d+n heads",
    ],
    [
        "padded(Tensor x, Tensor y, int k, str a) -> Tensor",
        *("--template", "kernel", "--no-grad", "--shapes", "*r n+k, *r n -> *r n"),
    ],
    [
        "packed(Tensor x, int heads, str a) -> Tensor",
        *("--template", "kernel", "--no-grad", "--shapes", "*t 3heads -> *t heads"),
    ],
    [
        "rest(Tensor x, int k, str a) -> Tensor",
        *("--template", "kernel", "--no-grad", "--shapes", "*r n -> *r n-k"),
    ],
    [
        "g(Tensor x, Tensor y, Tensor z, Tensor u, str a) -> Tensor",
        *("--no-grad", "--shapes", "n *r n, *r, (), ... -> *r"),
    ],
]


def test_samples_are_as_the_line_says():
    assert_expected_inline(
        "\n".join(ast.unparse(samples(*case)) for case in SAMPLED) + "\n",
        """\
def samples(make, shape):
    yield Sample(make(shape), make(shape), make(shape, dtype=sum_dtype(make.dtype)), make(shape, dtype=sum_dtype(make.dtype)), 0.3, 0.5)
def samples(make, shape):
    if len(shape) >= 2 and shape[-1] == 3:
        yield Sample(make(shape), make((*shape[:-2], shape[-2]), dtype=torch.int64), make(shape[:-2], dtype=torch.bool), [make((shape[-2],)), make((shape[-2],))], make((2, 3, 2, 3), dtype=torch.int64), 'ab')
        yield Sample(make(shape), make((*shape[:-2], shape[-2]), dtype=torch.int64), None, [], make((2, 3, 2, 3), dtype=torch.int64), 'ab')
def samples(make, shape):
    if len(shape) == 3 and (shape[2] + 1) % 2 == 0:
        yield Sample(make(shape), make(((shape[2] + 1) // 2, 3), dtype=sum_dtype(make.dtype)), 2, 'ab', 3, shape[0])
        yield Sample(make(shape), make(((shape[2] + 1) // 2, 3), dtype=sum_dtype(make.dtype)), 2, k=3, heads=shape[0])
def samples(make, shape):
    if shape[-1] - 2 >= 0:
        yield Sample(make(shape), make((*shape[:-1], shape[-1] - 2)), 2, 'ab')
def samples(make, shape):
    if shape[-1] % 3 == 0:
        yield Sample(make(shape), shape[-1] // 3, 'ab')
def samples(make, shape):
    if shape[-1] - 2 >= 0:
        yield Sample(make(shape), 2, 'ab')
def samples(make, shape):
    if len(shape) >= 2 and shape[-1] == shape[0]:
        yield Sample(make(shape), make(shape[1:-1]), make(()), make((2, 3)), 'ab')
""",
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("case", SAMPLED, ids=name)
def test_samples_are_what_the_line_takes(case, dtype):
    scope = {"torch": torch, "sum_dtype": sum_dtype, "Sample": Sample}
    exec(compile(ast.Module([samples(*case)], []), "spec.py", "exec"), scope)
    line = Operator("nowhere", case[0], case[-1])
    made = [
        sample
        for shape in ((5,), (3, 3), (2, 4, 3), (3, 2, 4, 3))
        for sample in scope["samples"](Make(dtype=dtype), shape)
    ]
    assert len(made) >= 2
    for sample in made:
        line.check(*sample.args, **sample.kwargs)


def test_numbers_that_are_sizes_go_to_the_checks():
    line = "*rows m+k, *rows 2m+1 -> *rows m"
    files = generate(
        "f(Tensor x, Tensor y, float k_, SymInt k) -> Tensor",
        *("--template", "kernel", "--shapes", line),
    )
    assert (
        '(Tensor grad_output, float k_, SymInt k) -> Tensor", "*rows m -> *rows m+k"'
        in (files["f.h"])
    )
    for source in (files["f_cpu.cpp"], files["f_cuda.cu"]):
        (given,) = re.findall(r"kF\.check\((.*?)\)", source)
        (of_backward,) = re.findall(r"kFBackward\.check\((.*?)\)", source)
        assert given.replace(" ", "") == f"x,y,{given.split()[-1]}"
        assert of_backward == f"grad_output, {given.split()[-1]}"
        assert f"int64_t {given.split()[-1]}" in source


@pytest.mark.parametrize("options", [["--template", "kernel"], ["--template", "rowwise"], []])
def test_a_number_that_is_called_as_a_size_of_the_template_is_none(options):
    files = generate("f(Tensor x, int n) -> Tensor", *options)
    lines = re.findall(r'-> Tensor",\s*"(.*?)"', "".join(files.values()))
    assert len(lines) == 2
    assert not any(re.search(r"\bn\b", line) for line in lines)


def test_a_formula_has_the_types_of_its_tensors():
    def calls(*case):
        text = "".join(t for name, t in generate(*case).items() if name.endswith(".cpp"))
        return re.findall(r"HOST_DEVICE (.*?\(.*?)\) const", text)

    schema = "f(Tensor x, Tensor a, Tensor b, Tensor? c, Tensor d) -> Tensor"
    line = "..., ...:bool, ...:sum, ...:int64, ...:float8_e5m2 -> ...:int8"
    assert calls(schema, "--shapes", line) == [
        "int8_t operator()(A x, bool a, SumType<A> b, A c, Float8_e5m2 d"
    ]
    schema = "f(Tensor(a!) x, Tensor y, Tensor(b!) z) -> ()"
    assert calls(schema, "--shapes", "*s, *s:sum, *s:float32 ->") == [
        "A operator()(A x, SumType<A> y, float z"
    ]


def test_a_tensor_of_float8_has_no_gradient_and_is_converted_by_the_reference():
    files = generate("f(Tensor x, Tensor y) -> Tensor", "--shapes", "..., ...:float8_e4m3fn -> ...")
    assert "operator()(A x, Float8_e4m3fn y) const { return x * x + y; }" in files["f.cpp"]
    assert "return x * x + y.to(x.dtype)\n" in files["spec.py"]
    assert "return (grad_x, None)" in files["ops.py"]
    line = "*r n, *r n:float8_e4m3fn -> *r n"
    files = generate("f(Tensor x, Tensor y) -> Tensor", "--template", "rowwise", "--shapes", line)
    assert "PerElement<Float8_e4m3fn> y;  // [rows, cols]" in files["f.cpp"]
    assert " + y.to(x.dtype)\n" in files["spec.py"]
    codes = generate("f(Tensor x) -> Tensor", "--shapes", "... -> ...:float8_e5m2")
    assert "registration.register_autograd" not in codes["ops.py"]


def test_a_functor_has_the_types_of_its_tensors():
    def made(kind, schema, line):
        text = generate(schema, "--template", kind, "--shapes", line)["f.cpp"]
        return " ".join(text.replace("\n", " ").split())

    schema = "f(Tensor x, Tensor a, Tensor b, Tensor? c, Tensor d, Tensor e) -> Tensor"
    line = "*r n, *r n:bool, *r n, *r n:int64, *r n:sum, *r n:float8_e5m2 -> *r n:int8"
    text = made("rowwise", schema, line)
    members = (
        "int8_t* output; // [rows, cols] PerElement<bool> a; // [rows, cols] PerElement<A> d; "
        "// [rows, cols] PerElement<Float8_e5m2> e;"
    )
    assert members in text
    # Beside it are those that a lambda makes something of, after the others.
    assert "row.sum([](A x, A b, A c) { return x; })" in text
    assert "(A x, A b, A c, bool a, A d, A e)" in text
    assert text.count("row.elements(a), row.elements(d), row.elements(e)") == 1
    assert (
        "rowwise<F>(kF, x, per_element(a), b, c.value_or(x), per_element(d), per_element(e)" in text
    )
    text = made("reduction", "f(Tensor x, Tensor y) -> Tensor", "*r n, *r n:bool -> *r")
    assert "row.sum([*this](A x, bool y) { return x * x + y; }, row.elements(y))" in text
    results = "(Tensor, Tensor, Tensor)"
    line = "*r n, *r n:float16 -> *r n, *r:sum, *r:int64"
    text = made("multi_output", f"f(Tensor x, Tensor y) -> {results}", line)
    assert "A* mean; // [rows] int64_t* mean_2; // [rows] PerElement<Half> y;" in text
    assert "(A x, A y) {" in text


def test_a_gradient_is_not_expanded_for_nothing():
    schema, kind = "f(Tensor x, Tensor y) -> Tensor", ["--template", "reduction"]
    masked = ["--shapes", "*r n, *r n:bool -> *r"]
    assert "grad_output.unsqueeze(-1).expand(x.shape)" in generate(schema, *kind)["ops.py"]
    assert "expand" not in generate(schema, *kind, *masked)["ops.py"]
    assert "expand" not in generate("f(Tensor x) -> Tensor", *kind)["ops.py"]


def test_a_wider_tensor_has_a_gradient_that_is_not_rounded_before_it_is_summed():
    line = "..., ...:sum, ...:int64, ...:wide -> ..."
    schema = "f(Tensor x, Tensor s, Tensor k, Tensor w) -> Tensor"
    files = generate(schema, "--shapes", line)
    wide = "grad_output.to(sum_dtype(grad_output.dtype)) if ctx.needs_input_grad[1]"
    assert wide in files["ops.py"]
    assert "from extension_cpp.shapes import sum_dtype\n" in files["ops.py"]
    assert ").to(x.dtype)\n" in files["spec.py"]
    exact = generate(schema, "--shapes", line.replace("-> ...", "-> ...:float32"))["spec.py"]
    assert ".to(x.dtype)" not in exact


def test_shapes_can_be_given():
    line = "*b h t d, d:wide -> *b h t d"
    files = generate("f(Tensor x, Tensor w) -> Tensor", "--shapes", line, "--no-cuda")
    assert f'"f(Tensor x, Tensor w) -> Tensor", "{line}"}}' in files["f_cpu.cpp"]
    assert 'Tensor x) -> Tensor", "*b h t d, *b h t d -> *b h t d"}' in files["f_cpu.cpp"]
    first = generate("f(Tensor? y, Tensor x) -> Tensor")["f.cpp"]
    assert '"*shape:x, *shape -> *shape"}' in first
    lists = generate("f(Tensor[] y, Tensor x, Tensor[] z) -> Tensor")["f.h"]
    assert '"*rows n [64]:x, *rows n, *rows n [64] -> *rows n"}' in lists


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("#include <torch/extension.h>\n__global__ void k() {}", "includes torch/extension.h"),
        ("void f() {}", "has no kernel"),
        ("__global__ void k() {}\nint main() {}", "has a main()"),
        ('TORCH_LIBRARY_IMPL(e, CUDA, m) { m.impl("f", 0); }', "registers operators, but not f_b"),
    ],
)
def test_refused_cuda_sources(source, message, checkout, tmp_path):
    file = tmp_path / "kernel.cu"
    file.write_text(source)
    assert message in refusal(checkout, "f(Tensor x) -> Tensor", "--cuda", str(file))
    file.unlink()
    assert "No such file" in refusal(checkout, "f(Tensor x) -> Tensor", "--cuda", str(file))


@pytest.mark.parametrize("case", KINDS, ids=name)
def test_where_to_launch_an_existing_kernel_is_said_in_every_template(checkout, tmp_path, case):
    file = tmp_path / "mine.cu"
    file.write_text("__global__ void scale(float* x, int n) { x[0] = n; }\n")
    new_op.main([*case, "--cuda", str(file)], checkout)
    text = (checkout / f"extension_cpp/operators/{name(case)}/{name(case)}_cuda.cu").read_text()
    new_op.main(["--remove", name(case)], checkout)
    assert text.count("// EDIT: launch scale<<<...>>> here, from mine.cu") == 1


def test_an_existing_kernel_is_taken_in_as_it_is(checkout, tmp_path):
    source = "__global__ void\n  __launch_bounds__(64) scale( float*x,int n ){x[0]=n;}  // mine"
    file = tmp_path / "mine.cu"
    file.write_text(source)
    new_op.main(["f(Tensor x, float a) -> Tensor", "--cuda", str(file)], checkout)
    text = (checkout / "extension_cpp/operators/f/f_cuda.cu").read_text()
    new_op.main(["--remove", "f"], checkout)
    assert source in text
    assert "// EDIT: launch scale<<<...>>> here, from mine.cu" in text
    assert 'm.impl("f", ' in text

    complete = 'TORCH_LIBRARY_IMPL(extension_cpp, CUDA, m) { m.impl("f", TORCH_BOX(&f)); }\n'
    file.write_text(complete)
    arguments = ["f(Tensor x, float a) -> Tensor", "--cuda", str(file), "--no-grad"]
    new_op.main(arguments, checkout)
    assert (checkout / "extension_cpp/operators/f/f_cuda.cu").read_text() == complete
    new_op.main(["--remove", "f"], checkout)
    assert git(checkout, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    "name",
    [
        *(
            "..",
            ".",
            "/",
            "*",
            ".*",
            "(",
            "fused_op|fused",
            "../csrc",
            "../../../victim",
            "/abs/path",
        ),
        *(
            "fused_op//",
            "fused_op/fused_op.h",
            "extension_cpp/operators/fused_op",
            "__pycache__",
            "",
            " fused_op",
            "fused_op\n",
        ),
    ],
)
def test_only_a_name_is_removed(name, checkout):
    assert "is no operator's name, which is one word" in refusal(checkout, "--remove", name)


def test_a_part_of_an_operator_is_not_removed(checkout):
    assert refusal(checkout, "--remove", "fused_op_backward") == (
        "'fused_op_backward' is a part of the operator 'fused_op': --remove fused_op"
    )
    new_op.main(["--remove", "fused_op/", "--dry-run"], checkout)  # as a shell completes it


def test_of_a_link_what_it_leads_to_stays(checkout, tmp_path):
    (tmp_path / "file").touch()
    link = checkout / "extension_cpp" / "operators" / "linked"
    link.symlink_to(tmp_path)
    new_op.main(["--remove", "linked"], checkout)
    assert not link.is_symlink()
    assert (tmp_path / "file").exists()


def test_an_operator_owns_what_its_sources_register(checkout):
    """Not what its name suggests."""
    new_op.main(["foo(Tensor x) -> Tensor", "--no-grad"], checkout)
    before = git(checkout, "status", "--porcelain")
    expected = (checkout / "tests/test_schemas.py").read_text()
    new_op.main(["--remove", "foo"], checkout)
    new_op.main(["foo_backward(Tensor x) -> Tensor"], checkout)
    alone = (checkout / "tests/test_schemas.py").read_text()
    assert (
        refusal(checkout, "foo(Tensor x) -> Tensor") == "the operator 'foo_backward' exists already"
    )
    new_op.main(["foo(Tensor x) -> Tensor", "--no-grad"], checkout)
    new_op.main(["--remove", "foo"], checkout)
    assert (checkout / "tests/test_schemas.py").read_text() == alone
    new_op.main(["foo(Tensor x) -> Tensor", "--no-grad"], checkout)
    shutil.rmtree(checkout / "extension_cpp/operators/foo")
    new_op.main(["--remove", "foo"], checkout)
    assert (checkout / "tests/test_schemas.py").read_text() == alone
    new_op.main(["foo(Tensor x) -> Tensor", "--no-grad"], checkout)
    new_op.main(["--remove", "foo_backward"], checkout)
    assert (checkout / "tests/test_schemas.py").read_text() == expected
    assert git(checkout, "status", "--porcelain") == before
    new_op.main(["--remove", "foo"], checkout)
    assert git(checkout, "status", "--porcelain") == ""


def test_a_removal_takes_lines_that_the_sources_have_no_more(checkout):
    """Not those of an operator whose name begins alike."""
    new_op.main(["foo_bar(Tensor x) -> Tensor"], checkout)
    expected = (checkout / "tests/test_schemas.py").read_text()
    assert "\nfoo_bar_backward(" in expected
    new_op.main(["foo(Tensor x) -> Tensor"], checkout)
    for op in ("foo", "foo_bar"):
        source = checkout / f"extension_cpp/operators/{op}/{op}.cpp"
        source.write_text(source.read_text().replace("_backward", "_edited"))
    new_op.main(["--remove", "foo"], checkout)
    assert (checkout / "tests/test_schemas.py").read_text() == expected
    new_op.main(["--remove", "foo_bar"], checkout)
    assert git(checkout, "status", "--porcelain") == ""


def schemas():
    """Each with a mark: + for accepted, - for refused."""
    text = (Path(__file__).parent / "schemas.txt").read_text()
    lines = text.replace("THE_PACKAGE", "extension_cpp").splitlines()
    return [(line[0] == "+", line[2:]) for line in lines]


def test_a_schema_is_refused_or_makes_an_operator(checkout, monkeypatch, subtests):
    """Never a half of it: an error of Python, files that are none, or a default that changed."""
    made = []

    def record(*arguments):
        made.append(instantiate.instantiate(*arguments))
        return made[-1]

    monkeypatch.setattr(formatting, "find_tool", lambda _: None)
    monkeypatch.setattr(new_op, "instantiate", record)
    for accepted, text in schemas():
        with subtests.test(text):
            if not accepted:
                stops(new_op.main, [text], checkout)
                continue
            new_op.main([text, "--dry-run"], checkout)
            parsed = schema.parse(text)
            assert_is_an_operator(text, parsed, made[-1])
            for definition in (
                parsed.text,
                places.backward_schema(kinds.KINDS["elementwise"], parsed),
            ):
                torch._C.parse_schema(definition)
    assert git(checkout, "status", "--porcelain", "--ignored") == ""


def assert_is_an_operator(text, parsed, files):
    names = [argument.name for argument in parsed.arguments]
    for file, source in files.items():
        assert "zqarg" not in source or "zqarg" in text, file
        if file.endswith(".py"):
            compile(source, file, "exec")
            continue
        function = (
            rf"^(?:Tensor|void|std::tuple<.*?>) (?:op_)?{parsed.name}(?:_cpu|_cuda)?\((.*?)\) {{"
        )
        found = re.findall(function, source, re.S | re.M)
        assert len(found) == (0 if file.endswith(".h") else 1), (file, source)
        for parameters in found:
            spelled = [re.search(r"\w+$", p)[0] for p in parameters.split(", ")]
            assert len(set(spelled)) == len(names)
            assert [s.rstrip("_") for s in spelled] == [n.rstrip("_") for n in names]
            used = set(spelled)
            assert not used & schema.CPP_KEYWORDS
            assert not any(map(naming.is_macro, used))
    function = inspect.signature(load(files["ops.py"], parsed.name))
    assert list(function.parameters) == names
    for argument in torch._C.parse_schema(text).arguments:
        default = function.parameters[argument.name].default
        if isinstance(default, str):
            assert default == argument.default_value


def load(source, name):
    """The public function, without what stands around it."""
    tree = ast.parse(source)
    kept = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
    scope = {"torch": torch, "Tensor": torch.Tensor, "Sequence": Sequence}
    exec(compile(ast.Module(kept, []), "ops.py", "exec"), scope)
    return scope[name]


def test_macros_are_known():
    """Those that sources see: an argument of such a name is spelled in another way."""
    include = Path(torch.__file__).parent / "include"
    headers = "".join(f'#include "{h}"\n' for h in ("elementwise.h", "rows.h", "arguments.h"))
    command = ["c++", "-dM", "-E", "-xc++", "-", "-I", ROOT / "extension_cpp/csrc", "-I", include]
    command += ["-DEXTENSION_CPP_STABLE_ABI=1", "-DTORCH_TARGET_VERSION=0x020b000000000000"]
    result = subprocess.run(
        [*command, "-I", include / "torch/csrc/api/include"],
        input=headers,
        capture_output=True,
        text=True,
        check=True,
    )
    macros = re.findall(r"^#define ([A-Za-z]\w*) ", result.stdout, re.M)
    assert "errno" in macros
    # Names that guard headers end in an underscore; arguments have no "__" in theirs.
    unknown = [m for m in macros if not naming.is_macro(m) and "__" not in m and m[-1] != "_"]
    assert unknown == []


@pytest.mark.parametrize("kind", ["elementwise", "rowwise", "reduction", "scan"])
def test_an_optional_tensor_has_a_flag_in_the_functor_that_takes_it(kind):
    for numbers in ("", ", float a"):
        text = f"f(Tensor x, Tensor? y{numbers}) -> Tensor"
        code = generate(text, "--template", kind)["f.cpp"]
        assert code.count("bool has_y;") == 1
        own = code[code.index("\nstruct") :].partition("HOST_DEVICE")[0]
        assert "  bool has_y;\n\n  " in own, code


@pytest.mark.parametrize("kind", ["elementwise", "rowwise", "reduction", "multi_output", "scan"])
def test_an_optional_tensor_that_comes_first_is_checked_as_what_it_is(kind):
    """In a call of the host function the main tensor stands in for it, under its name."""
    result = "(Tensor, Tensor)" if kind == "multi_output" else "Tensor"
    for first, checked in (("Tensor? y, Tensor x", True), ("Tensor x, Tensor? y", False)):
        code = generate(f"f({first}) -> {result}", "--template", kind)["f.cpp"]
        assert (re.search(r"\n  kF.check\(y, x\);\n  return ", code) is not None) == checked


def test_a_scan_says_what_the_options_and_arguments_say():
    text = "f(Tensor? y, Tensor x, str s, str t) -> Tensor"
    files = generate(text, "--template", "scan", "--no-cuda")
    assert "if sum(ctx.needs_input_grad) > ctx.needs_input_grad[1]:" in files["ops.py"]
    assert 'devices=("cpu",)' in files["spec.py"]
    assert "samples=samples" in files["spec.py"]
    assert "shapes=tuple(" in files["spec.py"]
    files = generate(text, "--template", "scan", "--no-grad")
    assert "differentiable=False" in files["spec.py"]


def test_a_cuda_source_stands_as_it_was_whatever_it_calls(tmp_path):
    own = "// dispatch_floating(\n__global__ void twice(float* x) { x[0] *= 2; }\n"
    (tmp_path / "own.cu").write_text(own)
    code = generate("f(Tensor x) -> Tensor", "--cuda", str(tmp_path / "own.cu"))["f_cuda.cu"]
    assert f"as it was.\n{own}" in code
    assert "  // EDIT: launch twice<<<...>>> here" in code.partition("namespace")[2]


def test_an_existing_kernel_of_the_template_s_name_is_called_by_its_whole_name(tmp_path):
    own = "__global__ void f_kernel(float* x) { x[0] *= 2; }\n"
    (tmp_path / "own.cu").write_text(own)
    arguments = (
        "f(Tensor x) -> Tensor",
        "--template",
        "kernel",
        "--cuda",
        str(tmp_path / "own.cu"),
    )
    assert "// EDIT: launch ::f_kernel<<<...>>> here" in generate(*arguments)["f_cuda.cu"]


def test_names_that_the_code_uses_give_way():
    """In C++ the argument, in Python the template's own."""
    text = "f(Tensor x, Tensor row, float mean, float errno, Tensor? operator) -> Tensor"
    files = generate(text, "--template", "rowwise")
    code = " ".join(files["f.cpp"].split())
    assert "const Tensor& row_, double mean_, double errno_, const std::optional<Tensor>& o" in code
    assert "row_, x" not in code
    assert "def reference(x, row, mean, errno, operator):" in files["spec.py"]
    ops = generate("f(Tensor x, float checks, float cap) -> Tensor")["ops.py"]
    assert "from extension_cpp import checks as checks_\n" in ops
    assert '    checks_.check_number("f", "cap", cap)\n' in ops
    # Which torch passes by keyword.
    ops = generate("f(Tensor ctx, *, float inputs, int output) -> Tensor")["ops.py"]
    assert "def _setup_context(ctx, inputs, keyword_only_inputs, output):\n" in ops
    # What the context of autograd has itself, and another argument.
    ops = generate("f(Tensor x, float name, float name_) -> Tensor")["ops.py"]
    assert "ctx.name__ = inputs[1]\n    ctx.name_ = inputs[2]\n" in ops


def test_the_operators_own_names_give_way():
    """To what its source or a shared header calls by that name, and to macros."""
    for op in ("elementwise", "detail", "errno", "linux", "share_memory", "cuda_thing", "m"):
        text = generate(f"{op}(Tensor x) -> Tensor")[f"{op}.cpp"]
        assert f"Tensor op_{op}(const Tensor& x) {{ return elementwise<" in text
        assert f'm.impl("{op}", TORCH_BOX(&op_{op}));' in text
        text = generate(f"{op}(Tensor x) -> Tensor", "--template", "kernel")[f"{op}_cpu.cpp"]
        assert f"namespace extension_cpp::op_{op} {{" in text
    ops = generate("registration(Tensor x) -> Tensor")["ops.py"]
    assert "from extension_cpp import registration as registration_\n" in ops
    assert '\nregistration_.register_fake("extension_cpp::registration", ' in ops
    assert "Tensor plain(const Tensor& x)" in generate("plain(Tensor x) -> Tensor")["plain.cpp"]
    for op, functor in (
        *(("half", "OpHalf"), ("string", "OpString"), ("max_tensors", "OpMaxTensors")),
        *(("t", "OpT"), ("a", "OpA"), ("cub_x", "OpCubX"), ("geometry", "OpGeometry")),
    ):
        text = generate(f"{op}(Tensor x) -> Tensor", "--template", "rowwise")[f"{op}.cpp"]
        assert f"struct {functor} {{" in text
        assert f"struct {functor}Backward {{" in text
        assert f"const Operator k{functor}{{" in text


def test_operators_have_cpp_names_of_their_own():
    """The linker would take two of one name for one."""
    names = ("f1", "f_1", "f1_", "f_1_", "f_a", "fa", "f_a_b", "f_ab")
    assert len({naming.camel(op) for op in names}) == len(names)


def test_dry_run_shows_and_writes_nothing(checkout, capsys):
    new_op.main(["f(Tensor x, float a) -> Tensor", "--dry-run"], checkout)
    assert git(checkout, "status", "--porcelain") == ""
    shown = capsys.readouterr().out
    for file in ("f.cpp", "ops.py", "spec.py"):
        assert f"write extension_cpp/operators/f/{file} (" in shown
    assert "+f(Tensor x, float a) -> Tensor" in shown
    assert "+from extension_cpp.operators.f.ops import f as f" in shown
    new_op.main(["--remove", "fused_op", "--dry-run"], checkout)
    assert "delete extension_cpp/operators/fused_op/" in capsys.readouterr().out
    assert git(checkout, "status", "--porcelain") == ""


def test_a_half_made_operator_is_refused_and_can_be_removed(checkout):
    request = "halved(Tensor x) -> Tensor"
    new_op.main([request], checkout)
    shutil.rmtree(checkout / "extension_cpp/operators/halved")
    assert refusal(checkout, request) == (
        "the operator 'halved' exists: its import in ops.py. To take it out: --remove halved"
    )
    new_op.main(["--remove", "halved"], checkout)
    assert git(checkout, "status", "--porcelain") == ""
    (checkout / "extension_cpp/operators/halved").mkdir()
    assert refusal(checkout, request) == (
        "the operator 'halved' exists: its folder. To take it out: --remove halved"
    )
    new_op.main(["--remove", "halved"], checkout)
    assert not (checkout / "extension_cpp/operators/halved").exists()


def test_an_ops_py_that_is_none_is_refused(checkout):
    ops = checkout / "extension_cpp" / "ops.py"
    before = ops.read_text()
    ops.write_text(f"{before}<<<<<<< HEAD\n")
    try:
        message = refusal(checkout, "f(Tensor x) -> Tensor")
    finally:
        ops.write_text(before)
    line = before.count("\n") + 1
    assert message == (
        f"extension_cpp/ops.py:{line} is no Python (invalid syntax): mend it, then ask again"
    )


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError], ids=lambda e: e.__name__)
@pytest.mark.parametrize("fails_at", range(6))
def test_nothing_is_left_behind_on_failure(error, fails_at, checkout, monkeypatch):
    calls = 0
    original = Path.write_text

    def write_text(path, *arguments, **options):
        nonlocal calls
        calls += 1
        original(path, *arguments, **options)
        if calls == fails_at + 1:
            raise error("in the middle")

    monkeypatch.setattr(repository.Path, "write_text", write_text)
    with pytest.raises((SystemExit, OSError)):
        new_op.main(["f(Tensor x, float a) -> Tensor"], checkout)
    assert git(checkout, "status", "--porcelain", "--ignored") == ""
    assert not (checkout / "extension_cpp/operators/f").exists()


def test_a_removal_that_fails_is_undone(checkout, monkeypatch):
    def write_text(*_, **__):
        raise OSError("in the middle")

    monkeypatch.setattr(repository.Path, "write_text", write_text)
    with pytest.raises(OSError, match="in the middle"):
        new_op.main(["--remove", "fused_op"], checkout)
    assert git(checkout, "status", "--porcelain", "--ignored") == ""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("Repository.remove", "stopped; nothing was changed"),
        ("os.rename", None),  # when it is as good as done
        ("shutil.rmtree", None),
        ("print", "stopped; the changes were made"),
    ],
)
def test_an_interrupted_removal_says_what_it_did(function, message, checkout, monkeypatch, request):
    owners = {"os": os, "shutil": shutil, "Repository": repository.Repository}
    module = owners.get(function.partition(".")[0], new_op)
    name = function.rpartition(".")[2]
    original = getattr(module, name, print)

    def interrupted(*arguments, **options):
        monkeypatch.undo()
        os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments, **options)

    # Which a process in the background ignores.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    monkeypatch.setattr(module, name, interrupted, raising=False)
    if message is None:
        new_op.main(["--remove", "fused_op"], checkout)
    else:
        with pytest.raises(SystemExit, match=message):
            new_op.main(["--remove", "fused_op"], checkout)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    changed = git(checkout, "status", "--porcelain", "--ignored")
    assert ".new_op-" not in changed
    assert ("operators/fused_op" in changed) == (message != "stopped; nothing was changed")
    git(checkout, "checkout", "--quiet", ".")


def test_removal_lists_what_still_uses_the_operator(checkout, capsys):
    new_op.main(["--remove", "fused_op", "--dry-run"], checkout)
    uses = capsys.readouterr().out.partition("Still using fused_op:")[2]
    assert "examples/quickstart.py:" in uses
    assert "README.md:" in uses
    assert max(map(len, uses.splitlines())) < 200


@pytest.mark.parametrize("lacking", ["the repository", "git"])
def test_removal_needs_no_git(lacking, tmp_path, monkeypatch, capsys):
    root = copy_repository(tmp_path / "copy")
    user = "import extension_cpp\nextension_cpp.ops.fused_op()\n"
    for place in ("mine.py", "build/built.py", ".venv/a.py", "env/a.py", "a/__pycache__/a.py"):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(user)
    (root / "env" / "pyvenv.cfg").touch()
    if lacking == "git":
        under_git(root)
        monkeypatch.setenv("PATH", str(tmp_path))
    new_op.main(["--remove", "fused_op"], root)
    assert not (root / "extension_cpp" / "operators" / "fused_op").exists()
    uses = capsys.readouterr().out.partition("Still using fused_op:")[2]
    assert "    mine.py:2: extension_cpp.ops.fused_op()\n" in uses
    assert "examples/quickstart.py:" in uses
    assert not re.search(r"^    (build|\.|env|a)\b", uses, re.M)


def test_a_removal_finds_the_line_of_a_long_import(checkout, capsys):
    lines = "from extension_cpp.ops import (\n    relu,\n    fused_op,\n)\nfused_op = relu\n"
    user = checkout / "examples" / "user.py"
    user.write_text(lines)
    new_op.main(["--remove", "fused_op", "--dry-run"], checkout)
    user.unlink()
    found = re.findall(r"examples/user\.py:.*", capsys.readouterr().out)
    assert found == ["examples/user.py:3: fused_op,"]


def test_a_removal_finds_calls_by_another_name_of_the_namespace(checkout, capsys):
    user = checkout / "examples" / "user.py"
    user.write_text(
        "ours = torch.ops.extension_cpp\nours.fused_op\nmine.ours.fused_op\nours.relu\n"
    )
    new_op.main(["--remove", "fused_op", "--dry-run"], checkout)
    user.unlink()
    found = re.findall(r"examples/user\.py:.*", capsys.readouterr().out)
    assert found == ["examples/user.py:2: ours.fused_op"]


def test_worked_operators_can_be_removed(checkout):
    for op in new_project.operators(repository.Repository(checkout)):
        new_op.main(["--remove", op], checkout)
    left = (checkout / "extension_cpp/csrc/library.cpp").read_text()
    assert "m.def" not in left
    assert "import" not in (checkout / "extension_cpp/ops.py").read_text().partition('"""\n')[2]
    assert "import" not in (checkout / "extension_cpp/nn.py").read_text().partition('"""\n')[2]
    # And one can be added where there is none.
    new_op.main(["first(Tensor x) -> Tensor"], checkout)
    new_op.main(["second(Tensor x) -> Tensor"], checkout)
    new_op.main(["--remove", "first"], checkout)
    new_op.main(["--remove", "second"], checkout)
    assert (checkout / "extension_cpp/csrc/library.cpp").read_text() == left
    git(checkout, "checkout", "--quiet", ".")


def blocks():
    text = (ROOT / "templates" / "README.md").read_text()
    return re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)


def test_by_hand_and_by_tool_give_the_same(checkout, capsys):
    (by_hand,) = (block for block in blocks() if "cp -r templates" in block)
    subprocess.run(["bash", "-ec", by_hand], cwd=checkout, check=True)
    folder = checkout / "extension_cpp" / "operators" / "softcap"
    written = {path.name: path.read_text() for path in folder.iterdir()}
    assert len(written) == 4  # __init__.py, which is empty, among them
    ops = (checkout / "extension_cpp/ops.py").read_text()
    capsys.readouterr()
    new_op.main(["--remove", "softcap"], checkout)
    assert "Still using" not in capsys.readouterr().out  # the guide, whose example it is
    assert git(checkout, "status", "--porcelain") == ""

    new_op.main(["softcap(Tensor input, Tensor other, float alpha=1.0) -> Tensor"], checkout)
    assert written == {path.name: path.read_text() for path in folder.iterdir()}
    assert sorted(ops) == sorted((checkout / "extension_cpp/ops.py").read_text())
    new_op.main(["--remove", "softcap"], checkout)


def test_readme_names_every_option_and_template():
    text = (ROOT / "templates" / "README.md").read_text()
    for kind in kinds.KINDS:
        assert f"[{kind}]({kind})" in text
    for option in re.findall(r'"(--[\w-]+)"', inspect.getsource(new_op.parse_arguments)):
        assert f"`{option}" in text, option
    for option in re.findall(r'"(--[\w-]+)"', inspect.getsource(new_project.parse_arguments)):
        assert option in text, option
    for target in re.findall(r"^make ([\w-]+)|`make ([\w-]+)", text, re.M):
        assert re.search(rf"^{''.join(target)}:", (ROOT / "Makefile").read_text(), re.M), target


@pytest.mark.parametrize("command", [c for c in "\n".join(blocks()).splitlines() if "new" in c])
def test_readme_commands_are_understood(command, checkout, tmp_path):
    if command.startswith("make new-op FROM="):
        text = (ROOT / "templates" / "README.md").read_text()
        (source,) = re.findall(r"^```python\n(# softcap.py\n.*?)^```$", text, re.M | re.S)
        (tmp_path / "softcap.py").write_text(source)
        new_op.main(["--from", f"{tmp_path}/{command.partition('=')[2]}", "--dry-run"], checkout)
    elif command.startswith("make new-op"):
        text = re.search(r'SCHEMA="(.*?)"', command)[1]
        new_op.main([text, "--dry-run"], checkout)
    else:
        words = command.split()
        assert words[:2] == ["python", "templates/new_project.py"]
        new_project.parse_arguments(words[2:])


def test_a_project_has_its_own_name_and_operators(checkout, tmp_path, capsys):
    new_op.main(["unwanted(Tensor x) -> Tensor"], checkout)
    target = tmp_path / "my zoo"
    try:
        new_project.main(["zoo_kernels", str(target)], checkout)
    finally:
        new_op.main(["--remove", "unwanted"], checkout)
    said = capsys.readouterr().out
    assert "the package zoo_kernels with fused_op\n" in said
    assert f"\n    cd '{target}'\n" in said
    files = git(target, "ls-files").splitlines()
    assert git(target, "status", "--porcelain") == ""
    assert git(target, "log", "--format=%s").startswith("Start from extension_cpp 0.")
    origin = json.loads((target / "templates" / "origin.json").read_text())
    assert origin["operators"] == ["fused_op"]
    assert origin["commit"] == git(checkout, "rev-parse", "HEAD").strip()
    assert "zoo_kernels/operators/fused_op/fused_op.cpp" in files
    assert "examples/quickstart.py" in files
    spelled = re.compile(repository.PACKAGE.replace("_", "[_-]"), re.I)
    for file in files:
        assert not spelled.search(file)
        assert "operators/unwanted" not in file
        text = (target / file).read_text()
        assert file == "templates/origin.json" or not spelled.search(text), file
    library = (target / "zoo_kernels/csrc/library.cpp").read_text()
    assert "TORCH_LIBRARY(zoo_kernels, m)" in library
    assert re.findall(r'm\.def\("(\w+)', library) == []


@pytest.mark.parametrize("kept", ["fused_op", "only"])
def test_a_project_names_nothing_that_was_left_out(checkout, tmp_path, capsys, kept):
    new_op.main(["only(Tensor x) -> Tensor"], checkout)
    target = tmp_path / "mine"
    try:
        new_project.main(["mine", str(target), "--ops", kept], checkout)
    finally:
        new_op.main(["--remove", "only"], checkout)
    files = {Path(name) for name in git(target, "ls-files").splitlines()}
    texts = {file: (target / file).read_text() for file in files if file.suffix in (".md", ".py")}
    for file, text in texts.items():
        if file.suffix == ".md":
            for link in re.findall(r"\]\(([\w./-]*[./][\w./-]*)[)#]", text):
                if "//" not in link:
                    assert (target / file.parent / link).exists(), (file, link)
            for name in re.findall(r"\bOP=([a-z]\w*)|testing ([a-z]\w*) --quick", text):
                assert "".join(name) in (kept, "name", "softcap"), file
        if file.parent.name == "tests":
            for module in re.findall(r"^(?:from|import) (test_\w+)", text, re.M):
                assert file.with_stem(module) in files, (file, module)
    ci = (target / ".ci" / "run").read_text()
    assert {Path(name) for name in re.findall(r"tests/\w+\.py", ci)} <= files
    # What a project is told to run is there.
    said, makefile = capsys.readouterr().out, (target / "Makefile").read_text()
    demo = new_project.DEMO in map(str, files)
    assert demo == (kept == "fused_op")
    for text in (said, makefile, texts[Path("README.md")], texts[Path("DEVELOPMENT.md")], ci):
        assert bool(re.search(r"\bdemo\b", text)) == demo


def test_a_project_shows_no_results_of_another(checkout, tmp_path):
    readme, end = checkout / "README.md", "<!-- end of benchmark -->\n"
    before = readme.read_text()
    try:
        readme.write_text(before.replace(end, f"| measured here |\n{end}"))
        new_project.main(["mine", str(tmp_path / "mine")], checkout)
    finally:
        readme.write_text(before)
    text = (tmp_path / "mine" / "README.md").read_text()
    assert end in text
    assert "measured here" not in text


def test_a_project_takes_what_its_operators_import(checkout):
    new_op.main(["first(Tensor x) -> Tensor"], checkout)
    new_op.main(["second(Tensor x) -> Tensor"], checkout)
    ops = checkout / "extension_cpp" / "operators" / "first" / "ops.py"
    ops.write_text("from extension_cpp.operators.second.ops import second\n" + ops.read_text())
    try:
        source = repository.Repository(checkout)
        assert new_project.with_dependencies(source, ["first"]) == ["first", "second"]
        assert new_project.with_dependencies(source, ["second"]) == ["second"]
    finally:
        new_op.main(["--remove", "first"], checkout)
        new_op.main(["--remove", "second"], checkout)


def test_files_of_what_is_no_repository_are_those_that_gitignore_leaves(tmp_path):
    (tmp_path / ".gitignore").write_text("# kept: README notes\n!kept.txt\n/out/\n*.so\n\n")
    for file in ("README", "notes", "kept.txt", "out/made", "a.so", "within/b.so", "within/out"):
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.touch()
    found = {str(path.relative_to(tmp_path)) for path in repository.Repository(tmp_path).files()}
    assert found == {".gitignore", "README", "notes", "kept.txt", "within/out"}


def test_passages_about_other_operators_are_left_out(tmp_path):
    document = tmp_path / "document.md"
    document.write_text("""\
About `fused_op`, never gone.

About `gone`
and more.

| [fused_op](operators/fused_op) | a |
| [gone](operators/gone) | b |

- `fused_op` here
- `gone` there
- `Gone` there

```python
from extension_cpp.ops import fused_op, gone
```

The end.
""")
    expected = """\
About `fused_op`, never gone.

| [fused_op](operators/fused_op) | a |

- `fused_op` here

The end.
"""
    project = repository.Repository(tmp_path)
    kept = new_project.without_passages(project, document, {"gone", "Gone"})
    assert kept == expected


@pytest.mark.parametrize("name", ["my_kernels", "scan", "kernel", "naming", "derive"])
def test_names_that_a_package_may_have(name, checkout):
    """What is called so here lies in templates, which no package of this name meets."""
    new_project.check_package_name(name, repository.Repository(checkout))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["My-Kernels", "{}"], "'My-Kernels' is no name for a package"),
        *(
            ([name, "{}"], f"'{name}' is used by the sources for something else")
            for name in ("extension_cpp", "my_op", "torch", "detail", "fused_op")
        ),
        *(
            ([name, "{}"], f"'{name}' is a file or a folder beside the package")
            for name in ("tests", "templates", "benchmarks", "examples", "setup", "build")
        ),
        *(
            ([name, "{}"], f"'{name}' is a keyword or a module of Python")
            for name in ("lambda", "json", "numpy", "winreg")
        ),
        *(
            ([name, "{}"], f"'{name}' is a name of C++ or its library")
            for name in ("int", "namespace", "double", "linux", "printf")
        ),
        (["my_ops", "{}"], "'my_ops' is in part 'my_op', for which new_op.py writes an operator's"),
        (["aten", "{}"], "'aten' is a namespace of torch's"),
        (["loaded_libraries", "{}"], "'loaded_libraries' is a namespace of torch's"),
        (["mine", "{}/full"], "exists and is not an empty folder"),
        (["mine", "{}/full/file/new"], "full/file cannot be made a folder: File exists"),
        (["mine", "{}/full/file/a/new"], "full/file/a cannot be made a folder: Not a directory"),
        (["mine", "{}", "--ops", "nothing"], "there is no operator 'nothing'; there are: "),
        (["mine", "{}", "--ops", ""], "there is no operator ''; there are: "),
        (["--update", "{}"], "it was not made by new_project.py"),
    ],
)
def test_refused_projects(arguments, message, checkout, tmp_path):
    target = tmp_path / "target"
    (target / "full").mkdir(parents=True)
    (target / "full" / "file").touch()
    place = target if "full" in arguments[1] or arguments[0] == "--update" else tmp_path / "new"
    message_ = stops(new_project.main, [a.format(place) for a in arguments], checkout)
    assert message in message_
    assert sorted(path.name for path in tmp_path.iterdir()) == ["target"]


def test_a_project_is_made_with_git_of_a_repository(checkout, tmp_path, monkeypatch):
    root = copy_repository(tmp_path / "copy")
    arguments = ["mine", str(tmp_path / "new")]
    message = stops(new_project.main, arguments, root)
    assert f"{root} is no git repository, of which a project is made: clone it" in message
    monkeypatch.setenv("PATH", str(tmp_path))
    message = stops(new_project.main, arguments, checkout)
    assert "git was not found, which a project is made with: install it" in message
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_a_project_takes_in_a_later_version(checkout, tmp_path, capsys):
    project = tmp_path / "mine"
    new_project.main(["mine", str(project)], checkout)
    own = ["-c", "user.name=a", "-c", "user.email=b"]
    (project / "README.md").write_text((project / "README.md").read_text() + "\nMy own words.\n")
    git(project, *own, "commit", "--quiet", "--all", "-m", "mine")

    header = checkout / "extension_cpp" / "csrc" / "checks.h"
    before = header.read_text()
    try:
        header.write_text(before + "// extension_cpp grows\n")
        new_project.main(["--update", str(project)], checkout)
    finally:
        header.write_text(before)
    assert "git merge template" in capsys.readouterr().out
    assert git(project, "status", "--porcelain") == ""
    git(project, *own, "merge", "--quiet", "--no-edit", "template")
    assert (project / "mine/csrc/checks.h").read_text().endswith("// mine grows\n")
    assert (project / "README.md").read_text().endswith("My own words.\n")

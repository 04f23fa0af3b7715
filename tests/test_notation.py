"""The line of shapes: what it means, and what is wrong with it, in C++ and in Python alike."""

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extension_cpp.notation import DTYPES, DtypeRule, NotationError, parse_notation

ROOT = Path(__file__).resolve().parent.parent
SOURCE = """
#include "notation.cpp"

extern "C" const char* refusal(const char* schema, const char* line) {
  static std::string text;
  text = extension_cpp::parse_notation(schema, line).error;
  return text.c_str();
}
"""

# Schema, line, what is wrong, and the column.
REFUSED = [
    ("f(Tensor a) -> Tensor", "", "'->' is missing", 0),
    ("f(Tensor a) -> Tensor", "n, n", "'->' is missing", 4),
    ("f(Tensor a) -> Tensor", "n -> n -> n", "a second '->'", 7),
    ("f(Tensor a) -> Tensor", "-> n", "the line has 0 shapes of arguments, the schema 1 ", 0),
    ("f(Tensor a) -> Tensor", "n, n -> n", "the line has 2 shapes of arguments, the schema 1 ", 3),
    ("f(Tensor a, Tensor b) -> Tensor", "n -> n", "the line has 1 shapes of arguments, ", 2),
    ("f(Tensor a) -> Tensor", "n ->", "the line has 0 shapes of results, the schema 1 ", 4),
    ("f(Tensor a, Tensor(a!) b) -> ()", "n, n -> n", "the line has 1 shapes of results, ", 8),
    ("f(Tensor a, Tensor b) -> Tensor", "n,, n -> n", "a shape is missing; ", 2),
    ("f(Tensor a) -> Tensor", ":int64 -> n", "a shape is missing; ", 0),
    ("f(Tensor a) -> Tensor", "*r *c n -> n", "a second '*' or '...' in one shape", 3),
    ("f(Tensor a) -> Tensor", "... *c n -> n", "a second '*' or '...' in one shape", 4),
    ("f(Tensor a) -> Tensor", "* n -> n", "a name is missing after '*'", 1),
    ("f(Tensor a) -> Tensor", "1234567890123456789 -> ()", "the size is too large", 0),
    ("f(Tensor a) -> Tensor", "999999999999999999+1 -> ()", "the size is too large", 19),
    ("f(Tensor a) -> Tensor", "n -> 999999999999999999n+n", "the size is too large", 25),
    ("f(Tensor a) -> Tensor", "0n -> ()", "a multiple is at least 1", 0),
    ("f(Tensor a) -> Tensor", "n+ -> ()", "a size is missing after '+' or '-'", 2),
    ("f(Tensor a) -> Tensor", "n+*rows -> ()", "a size is missing after '+' or '-'", 2),
    ("f(Tensor a) -> Tensor", "n--1 -> ()", "a size is missing after '+' or '-'", 2),
    ("f(Tensor a) -> Tensor", "+n -> ()", "this has no meaning here", 0),
    ("f(Tensor a) -> Tensor", "n 2*m -> ()", "a space is missing before '*'; twice n is 2n", 3),
    ("f(Tensor a) -> Tensor", "n 3-4 -> ()", "the size is negative", 2),
    ("f(Tensor a) -> Tensor", "n-n-1 -> ()", "the size is negative", 0),
    ("f(Tensor a) -> Tensor", "n 2_ -> ()", "'_' stands alone: it is in no sum", 2),
    ("f(Tensor a) -> Tensor", "n _-1 -> ()", "'_' stands alone: it is in no sum", 2),
    ("f(Tensor a) -> Tensor", "n+m -> n", "'n+m' leaves several names open, and one alone ", 0),
    ("f(Tensor a, Tensor? b) -> Tensor", "n+k, k:any -> ()", "'n+k' leaves several names ", 0),
    ("f(Tensor a, int? k) -> Tensor", "n -> k", "'k' is in no shape of an argument", 5),
    ("f(Tensor a, int[] k) -> Tensor", "n -> n+2k", "'k' is in no shape of an argument", 5),
    ("f(Tensor a, int k) -> Tensor", "n -> *k", "'*k' is in no shape of an argument", 5),
    ("f(Tensor a, Tensor? b) -> Tensor", "n, 2m -> m", "'m' is known only where an ", 9),
    ("f(Tensor a) -> Tensor", "n? -> n", "this has no meaning here", 1),
    ("f(Tensor a) -> Tensor", "n é -> n", "this has no meaning here", 2),
    ("f(Tensor a) -> Tensor", "n - > n", "this has no meaning here", 2),
    ("f(Tensor a) -> Tensor", "n () -> n", "'()' and '=name' stand alone", 2),
    ("f(Tensor a) -> Tensor", "() n -> n", "'()' and '=name' stand alone", 3),
    ("f(Tensor a) -> Tensor", "n -> =a n", "'()' and '=name' stand alone", 8),
    ("f(Tensor a) -> Tensor", "n -> n =a", "'()' and '=name' stand alone", 7),
    ("f(Tensor a) -> Tensor", "n -> =", "there is no tensor argument ''", 6),
    ("f(Tensor a) -> Tensor", "n -> =b", "there is no tensor argument 'b'", 6),
    ("f(Tensor a) -> Tensor", "=a -> =a", "'=name' is of results", 1),
    ("f(Tensor[] a) -> Tensor", "n -> =a", "'a' is a list, which has no one shape", 6),
    ("f(Tensor a) -> Tensor", "n, -> n", "a shape is missing; ", 3),
    ("f(Tensor a) -> Tensor", "n: -> n", "a dtype is missing after ':'", 3),
    ("f(Tensor a) -> Tensor", "n:int -> n", "there is no dtype 'int': ", 2),
    ("f(Tensor a) -> Tensor", "n:b -> n", "there is no dtype 'b': ", 2),
    ("f(Tensor a) -> Tensor", "n:any m -> n:a", "a dtype ends its shape", 6),
    ("f(Tensor a) -> Tensor", "n -> m", "'m' is in no shape of an argument", 5),
    ("f(Tensor a) -> Tensor", "*n -> n", "'n' is '*n' elsewhere", 6),
    ("f(Tensor a) -> Tensor", "_ n -> _ n", "'_' says no size of a result", 7),
    ("f(Tensor a) -> Tensor", "*_ n -> *_", "'_' says no size of a result", 8),
    ("f(Tensor a, Tensor? b) -> Tensor", "n, m -> m", "'m' is known only where an ", 8),
    ("f(Tensor a, Tensor[] b) -> Tensor", "n, m -> m", "'m' is known only where an ", 8),
    ("f(Tensor? a, Tensor b) -> Tensor", "n, n -> n", "other dtypes follow from that of 'a', ", 0),
    ("f(Tensor a) -> Tensor", "n:sum -> n", "the dtype of 'a' follows from a tensor without ", 0),
    (
        "f(Tensor a, Tensor[] b) -> ()",
        "n:sum, n -> ",
        "the dtype of 'a' follows from a tensor without ",
        0,
    ),
    ("f(Tensor a) -> Tensor", "n:any -> n", "the dtype of a result follows from a tensor ", 9),
    ("f(Tensor a) -> Tensor", "n -> n:any", "a result has one dtype, not any of several", 5),
    ("f(Tensor a, Tensor b) -> Tensor", "n:a, n -> n", "the dtype of 'a' follows from that of ", 0),
    ("f(Tensor a, Tensor b) -> Tensor", "n:b, n:a -> ()", "the dtype of 'a' follows from that ", 0),
    (
        "f(Tensor? a, Tensor b) -> Tensor",
        "n:any, n:a -> n",
        "the dtype of 'b' follows from that",
        7,
    ),
    ("f(Tensor[] a) -> Tensor", "n [ -> n", "a number is missing after '['", 3),
    ("f(Tensor[] a) -> Tensor", "n [6 -> n", "']' is missing", 4),
    ("f(Tensor[] a) -> Tensor", "n [6x] -> n", "']' is missing", 4),
    ("f(Tensor[] a) -> Tensor", "[6] -> n", "this has no meaning here", 0),
    ("f(Tensor[] a) -> Tensor", "n [6] m -> n", "nothing but a dtype follows '[n]'", 6),
    ("f(Tensor a) -> Tensor", "n [6] -> n", "'a' is no list", 0),
    ("f(Tensor[] a) -> Tensor", "n -> n [6]", "a result is no list", 5),
    ("f(Tensor[] a) -> Tensor", "n -> n:a", "'a' is a list, which has no one dtype", 5),
    ("f(int n) -> Tensor", "-> n", "the schema has no tensor among its arguments: ", 0),
    ("f(Tensor? a) -> Tensor", "n:any -> n:a", "every tensor of the schema is optional: ", 0),
    ("f(Tensor a) -> (Tensor, int)", "n -> n", "the schema returns something else than new ", 0),
    ("f(Tensor a) -> Tensor[]", "n -> n", "the schema returns something else than new ", 0),
    ("f(Tensor(a!) a) -> Tensor(a!)", "n -> n", "the schema returns something else than ", 0),
    ("f(Tensor?[] a, Tensor b) -> Tensor", "n, n -> n", "'a' is a list that may be or hold ", 0),
    (
        "f(Tensor a) -> Tensor",
        f"{' '.join('abcdefghijklmnopq')} -> a",
        "more than 16 names",
        32,
    ),
    (
        f"f({', '.join(f'Tensor {c}' for c in 'abcdefghijklmnopq')}) -> Tensor",
        f"{', '.join(['*s'] * 17)} -> *s",
        "more than 16 tensors",
        64,
    ),
]

SCHEMAS = [
    "f(Tensor a) -> Tensor",
    "f.out(Tensor a, Tensor? b=None, *, float eps=1e-05) -> (Tensor, Tensor)",
    'f(Tensor[] xs, Tensor y, str mode="a,(b", int[2] k=[1, 2]) -> Tensor',
    "f(Tensor a, Tensor(a!) b, bool flag=False) -> ()",
    "f(Tensor? a, Tensor[3] b, Tensor c) -> (Tensor x, Tensor y)",
    "f(Tensor a, int n, *, SymInt k=3, int? m=None) -> (Tensor, Tensor)",
]


@pytest.fixture(scope="module")
def refusal(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], str]:
    folder = tmp_path_factory.mktemp("notation")
    (folder / "refusal.cpp").write_text(SOURCE)
    library = folder / "refusal.so"
    command = ["c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += [f"-I{ROOT}/extension_cpp/csrc", str(folder / "refusal.cpp"), "-o", str(library)]
    subprocess.run(command, check=True)
    function = ctypes.CDLL(str(library)).refusal
    function.restype = ctypes.c_char_p
    return lambda schema, line: function(schema.encode(), line.encode()).decode()


def refusal_in_python(schema: str, line: str) -> str:
    try:
        parse_notation(schema, line)
    except NotationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("schema", "line", "text", "column"), REFUSED)
def test_a_refusal_shows_the_place(
    refusal: Callable[[str, str], str], schema: str, line: str, text: str, column: int
):
    expected = refusal_in_python(schema, line)
    assert expected.startswith(f"f: {text}")
    assert expected.endswith(f"\n    {line}\n    {' ' * column}^")
    assert refusal(schema, line) == expected


# Of pieces, not of letters: most lines then are near to one that means something.
PIECES = ["n", "m", "*rows", "...", "3", "_", "*_", "()", ":sum", ":wide", ":int64", ":any", ":a"]
PIECES += [
    "=a",
    "=b",
    "=y",
    ":b",
    ":y",
    "[64]",
    "[",
    "]",
    "k",
    "2n",
    "n+k",
    "k-n+2",
    "n+m-3k",
    "2*n",
]
LINES = st.lists(st.sampled_from([*PIECES, "n", ",", ",", " ", "->", "->", "*", "-", "é"])).map(
    " ".join
)
SUMS = st.lists(st.sampled_from(["n", "k", "m", "_", "2", "3", "+", "-", "-", "->", " "])).map(
    "".join
)
SHAPES = st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map(" ".join)
SIDES = st.lists(SHAPES, max_size=3).map(", ".join)


@given(
    schema=st.sampled_from(SCHEMAS),
    line=st.one_of(
        *(LINES, st.text(max_size=20), SUMS),
        *(st.tuples(side, side).map(" -> ".join) for side in (SIDES, SUMS)),
    ),
)
@example(SCHEMAS[0], "*rows n -> *rows n")
@example(SCHEMAS[1], "*rows n:float32, n:any -> *rows, n:b")
def test_both_refuse_the_same_lines(refusal: Callable[[str, str], str], schema: str, line: str):
    if "\0" in line:  # the end of a string in C
        line = line.replace("\0", "")
    assert refusal(schema, line) == refusal_in_python(schema, line)


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_know_the_same_dtypes(refusal: Callable[[str, str], str], dtype: str):
    assert refusal(SCHEMAS[0], f"n:{dtype} -> n:{dtype}") == ""


def test_what_a_line_means():
    notation = parse_notation(
        "f(Tensor x, Tensor? w, Tensor[] xs, Tensor i) -> (Tensor, Tensor)",
        "*rows 3 n , n:wide,... n [7]:any,*_:int64->*rows:sum, n:w",
    )
    x, w, xs, i = notation.inputs
    assert [dim.symbol for dim in x.dims] == ["*rows", "3", "n"]
    assert (x.star, x.star_symbol, x.single, x.dims[1].size) == (0, "*rows", 2, 3)
    assert (w.star, w.rule) == (None, DtypeRule.WIDE)
    assert (xs.star_symbol, xs.rule, xs.most) == ("...", DtypeRule.ANY, 7)
    assert (i.star_symbol, i.rule, str(i.dtype)) == ("*_", DtypeRule.EXACT, "torch.int64")
    sums, grad = notation.outputs
    assert (sums.rule, grad.rule, grad.source) == (DtypeRule.SUM, DtypeRule.ARGUMENT, 1)
    assert notation.leader == 0
    assert [argument.always_given for argument in notation.arguments] == [True, False, False, True]


def test_sums_and_numbers():
    notation = parse_notation(
        "f(Tensor x, Tensor offsets, int k, SymInt m, int unused) -> (Tensor, Tensor)",
        "*rows 2n k, b+1 -> *rows n+2k-1 m+b, n-n+3 k+1-1",
    )
    assert notation.numbers == ("k", "m")
    rows, double, k = notation.inputs[0].dims
    assert (double.symbol, double.terms, double.plus, double.names) == (
        "2n",
        ((2, "n"),),
        0,
        ("n",),
    )
    assert (k.is_name, double.is_name, rows.is_name) == (True, False, True)
    assert notation.outputs[0].dims[1].terms == ((1, "n"), (2, "k"))
    assert notation.outputs[0].dims[1].plus == -1
    assert [(dim.symbol, dim.size) for dim in notation.outputs[1].dims] == [("3", 3), ("k", None)]


def test_a_result_can_be_shaped_like_an_argument():
    schema = "f(Tensor g, Tensor a, Tensor? b) -> (Tensor, Tensor)"
    notation = parse_notation(schema, "..., ..., ... -> =b:sum, =a")
    assert [shape.like for shape in notation.outputs] == [2, 1]
    assert notation.outputs[0].rule is DtypeRule.SUM
    assert notation.elementwise
    assert notation.to_first
    assert not parse_notation(schema, "..., ..., ... -> ..., ...").to_first


@pytest.mark.parametrize(
    ("line", "elementwise"),
    [("..., ... -> ...", True), ("*s, () -> *s", True), ("*s, n -> *s", False)],
)
def test_elementwise_is_what_has_no_single_dimension(line: str, elementwise: bool):
    assert parse_notation("f(Tensor a, Tensor b) -> Tensor", line).elementwise == elementwise

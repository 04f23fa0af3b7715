"""templates/derive: labels, lengths, and masks with a value for each row or each column."""

import re

import pytest
from definitions import written
from derive import operations
from derive.assemble import planned, texts
from derive.definition import read
from derive.derived import derive
from derive.graph import GRADIENT, col, const, make, row_sum
from derive.refusal import NotDerived
from derive.verify import verify
from scratch import ROOT

HEAD = """
from typing import Annotated
import torch
import torch.nn.functional as F
from torch import Tensor

Labels = Annotated[Tensor, torch.int64, "*rows"]

"""


@pytest.fixture
def define(tmp_path):
    """Writes a definition of x and k, and returns it."""

    def write(expression, arguments="x: Tensor, k: Labels", shapes=None):
        path = tmp_path / "definition.py"
        path.write_text(f"{HEAD}def f({arguments}) -> Tensor:\n    return {expression}")
        return read(f"{path}:f", shapes)

    return write


def functors(cpp):
    """Those of a source, without what stands between them and after."""
    return re.findall(r"^struct .*?^};", cpp, re.M | re.S)


PICKED = "x.gather(-1, k.unsqueeze(-1)).squeeze(-1)"


@pytest.mark.parametrize(
    ("expression", "arguments", "reason"),
    [
        (
            "x.gather(-1, k).softmax(-1)",
            "x: Tensor, k: torch.LongTensor",
            "gather of more than one element of a row, or of one for each element, is not derived; "
            'give it an index for each row, k: Annotated[Tensor, torch.int64, "*rows"] and '
            "k.unsqueeze(-1), or start from --template kernel",
        ),
        ("x.gather(-1, k)", None, "gather of more than one element of a row"),
        (
            "x.gather(-1, k.unsqueeze(-1))",
            "x: Tensor, k: torch.LongTensor",
            "unsqueeze changes a shape, and these integers have that of the rows; say that there "
            'is one for each row, k: Annotated[Tensor, torch.int64, "*rows"]',
        ),
        (
            "x.gather(-1, k)",
            'x: Tensor, k: Annotated[Tensor, torch.int32, "*rows 1"]',
            "gather takes indices of int64; convert them, k.to(torch.int64)",
        ),
        (
            "x.gather(1, k.unsqueeze(-1))",
            None,
            "gather over dim=1 is not known to be over the last",
        ),
        ("x.gather(-1, k[:, None])", None, "say k.unsqueeze(-1) or k[..., None], for any number"),
        (
            "x.gather(-1, k.unsqueeze(1))",
            None,
            "say k.unsqueeze(-1) or k[..., None], for any number",
        ),
        (
            "x.sum(-1).gather(-1, k.unsqueeze(-1))",
            None,
            "gather is of what has no value of its own",
        ),
        ("x.take_along_dim(k.unsqueeze(-1), -1)", None, "take_along_dim picks elements out"),
        ("x[..., k]", None, "getitem picks elements out"),
        (
            "F.cross_entropy(x, k, reduction='none')",
            None,
            "cross_entropy has its classes in dimension 1, and not in the last one; say "
            "-F.log_softmax(x, -1).gather(-1, k.unsqueeze(-1)).squeeze(-1), of labels "
            'k: Annotated[Tensor, torch.int64, "*rows"]',
        ),
        ("F.nll_loss(x, k, reduction='none')", None, "nll_loss has its classes in dimension 1"),
        (
            "F.one_hot(k, n) * x.softmax(-1)",
            "x: Tensor, k: Labels, n: int",
            "one_hot of other classes than the columns is not row-wise; say "
            "F.one_hot(k, x.shape[-1])",
        ),
        ("F.one_hot(k) * x.softmax(-1)", None, "one_hot of other classes than the columns"),
        (
            "F.one_hot(k, x.shape[-1]) * x.softmax(-1)",
            "x: Tensor, k: torch.LongTensor",
            "one_hot is of an index for each row; annotate it",
        ),
        (
            "torch.arange(1, x.shape[-1] + 1) * x.softmax(-1)",
            "x: Tensor",
            "of numbers for the columns of a row alone one that is known; say "
            "torch.arange(x.shape[-1], device=x.device)",
        ),
        (
            "x.softmax(-1) * (k > 0)",
            'x: Tensor, k: Annotated[Tensor, torch.int64, "()"]',
            "'k' is int64 and is one number: these have the dtype of the rows; make it a Tensor",
        ),
        (
            "x.softmax(-1) * k.to(x.dtype)",
            'x: Tensor, k: Annotated[Tensor, torch.float8_e5m2, "n"]',
            "'k' is float8_e5m2 and has a value for each column: these have the dtype of the rows",
        ),
        (
            "x.softmax(-1) * k.sum(-1, keepdim=True)",
            'x: Tensor, k: Annotated[Tensor, torch.bool, "n"]',
            "sum is of what has no value of its own for each element of a row",
        ),
        (
            "x.masked_fill(k, 0)",
            'x: Tensor, k: Annotated[Tensor, torch.bool, "n"]',
            "it is elementwise, of tensors that broadcast as they are given",
        ),
        (
            "x.sum(-1) if k is None else x.gather(-1, k[..., None]).squeeze(-1)",
            'x: Tensor, k: Annotated[Tensor, torch.int64, "*rows"] | None = None',
            "of row-wise functions an optional tensor is a parameter for each column",
        ),
        (
            "torch.where(k, x, -torch.inf).softmax(-1)",
            'x: Tensor, k: Annotated[Tensor, torch.bool, "*rows 1"]',
            "in none of the ranges that were tried",
        ),
    ],
)
def test_refused(expression, arguments, reason, define):
    given = [arguments] if arguments else []
    with pytest.raises(NotDerived, match=re.escape(reason)):
        planned(define(expression, *given))


def test_a_label_takes_no_pass_of_its_own():
    """The forward reads the one element, and the backward knows what the row's gradients sum to."""
    forward, backward = functors(written("token_loss")["token_loss.cpp"])
    assert "row.at(row_target)" in forward
    assert [forward.count(f"row.{call}(") for call in ("max", "sum", "columns")] == [1, 1, 0]
    assert "row.sum" not in backward
    assert "col == row_target ? -grad : A(0)" in backward


def test_what_is_made_of_the_elements_is_made_of_the_one():
    """Of a parameter, too."""
    forward, _ = functors(written("adjusted_loss")["adjusted_loss.cpp"])
    assert "row.at(choice)" in forward
    assert "row.at(choice, bias)" in forward
    assert forward.count("row.sum") == 1


def test_an_index_that_a_row_has_not(define):
    """NaN goes through sums and products by itself, and not through comparisons."""
    assert "quiet_NaN" not in texts(planned(define(f"2 * {PICKED}")))["f.cpp"]
    compared = "torch.where(x > 0, x, 0.5).gather(-1, k.unsqueeze(-1)).squeeze(-1)"
    cpp = texts(planned(define(compared)))["f.cpp"]
    assert "quiet_NaN" in cpp
    assert "row_k >= 0 && row_k < count" in cpp


def test_what_is_picked_of_masks_and_integers_is_summed(define):
    arguments = "x: Tensor, mask: torch.BoolTensor, k: Labels"
    expression = "(x * mask).gather(-1, k.unsqueeze(-1)).squeeze(-1)"
    forward, _ = functors(texts(planned(define(expression, arguments)))["f.cpp"])
    assert "row.sum" in forward
    assert "quiet_NaN" in forward


def test_sums_without_a_pass():
    """Of what is at one place of a row, and of what is the same in all."""
    g, x = make("row", value=GRADIENT), make("tensor", value="x")
    placed = make("placed", g, make("row_int64", value="k"), col())
    assert row_sum(placed) is g
    assert repr(row_sum(2 * placed + g)) == repr(2 * g + row_sum(g))
    softmax = make("softmax", x)
    assert repr(row_sum(softmax * placed)) == "mul(grad_output, gather(softmax(x), k))"
    assert row_sum(placed * x).op == "row_sum"
    assert row_sum(placed + x).op == "row_sum"
    # A comparison of the author's may be true of no column.
    equal = make("where", make("eq", col(), make("row_int64", value="k")), g, const(0))
    assert row_sum(equal).op == "row_sum"


def test_a_wrong_place_is_noticed(define, monkeypatch):
    placed = operations.OPERATIONS["placed"]
    wrong = {
        **vars(placed),
        "lowered": lambda g, index, col: make("where", make("le", col, index), g, const(0)),
    }
    monkeypatch.setitem(operations.OPERATIONS, "placed", operations.Operation(**wrong))
    definition = define(f"x.logsumexp(-1) - {PICKED}")
    with pytest.raises(NotDerived, match="does not agree with the definition: the gradient of x"):
        verify(definition, derive(definition))


def test_samples_are_labels_and_lengths():
    spec = written("token_loss")["spec.py"]
    assert "if shape and shape[-1] >= 1:" in spec
    assert "make(shape[:-1], dtype=torch.int64, high=shape[-1])" in spec
    spec = written("masked_by_length")["spec.py"]
    bounds = "low=min(1, shape[-1]), high=shape[-1] + 1"
    assert f"make(shape[:-1], dtype=torch.int64, {bounds})" in spec
    assert "    if shape:\n" in spec
    spec = written("column_masked")["spec.py"]
    assert "keep = make(shape[-1:], dtype=torch.bool)" in spec
    assert "keep[..., :1] = True  # of a row without one there is no result" in spec


def test_shapes_of_labels_and_masks(define):
    expression = "torch.where(mask, x, -1e9).softmax(-1) * (k != 0)[..., None]"
    arguments = "x: Tensor, mask: torch.BoolTensor, k: torch.IntTensor"
    line = "*rows n, n:bool, *rows:int32 -> *rows n"
    for said in (line, "*rows n, n, *rows"):
        text = texts(planned(define(expression, arguments, said)))["f.cpp"]
        assert line in text
        assert "per_column(mask), per_row(k)" in text


def test_a_mask_by_the_name_of_a_parameter(define):
    expression = "x.masked_fill(weight, -1e9).softmax(-1)"
    plan = planned(define(expression, "x: Tensor, weight: torch.BoolTensor"))
    assert plan.own.line == "*rows n, n:bool -> *rows n"


def test_what_is_said_of_labels_and_masks():
    ops = " ".join(written("token_loss")["ops.py"].split())
    assert (
        "target: int64, a value for each row, `(...)`, on the device of `logits`; NaN comes of one "
        "that is not in [0, columns)." in ops
    )
    ops = " ".join(written("column_masked")["ops.py"].split())
    assert "keep: bool, a value for each column, `(columns,)`, on the device of `x`." in ops


def test_integers_of_a_row_are_passed_to_the_second_step():
    cpp = written("adjusted_loss")["adjusted_loss.cpp"]
    assert "struct RowValues { int64_t choice;" in cpp
    assert "const int64_t choice = values.choice;" in cpp
    assert "sum2 = grad_choice" in cpp


def test_the_guide_has_definitions_that_are_derived(tmp_path):
    text = (ROOT / "templates" / "README.md").read_text()
    (source,) = re.findall(r"^```python\n(# token_loss.py\n.*?)^```$", text, re.M | re.S)
    (tmp_path / "token_loss.py").write_text(source)
    names = re.findall(r"^def (\w+)", source, re.M)
    lines = [planned(read(f"{tmp_path}/token_loss.py:{name}")).own.line for name in names]
    assert lines == [
        "*rows n, *rows:int64 -> *rows, *rows:sum, *rows:sum",
        "*rows n, *rows:int64 -> *rows n",
    ]


def test_clamped_integers(define):
    (variant,) = derive(define("x.gather(-1, k.clamp(0, 7).unsqueeze(-1)).squeeze(-1)"))
    low = "where(lt(k, 0), to_int64(0), k)"
    assert repr(variant.forward[0]) == f"gather(x, where(gt({low}, 7), to_int64(7), {low}))"
    with pytest.raises(NotDerived, match="integers meet a number that is no integer"):
        derive(define("x.softmax(-1) * (k.clamp(min=0.5)[..., None] != 0)"))

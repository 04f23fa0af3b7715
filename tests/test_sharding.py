"""The ways to divide calls that follow from a line of shapes, or are registered."""

import pytest
import torch

from extension_cpp import registration
from extension_cpp.registration.sharding import rule_of
from extension_cpp.shapes import Operator, operators
from extension_cpp.sharding import SUM, placements_passed, sharding_rule


def found(schema, line, *shapes, along=(), **numbers):
    """Each way as text: the placements of the tensors, and of the results."""
    operator = Operator("test", schema, line)
    args = [
        [torch.empty(each) for each in shape]
        if isinstance(shape, list)
        else None
        if shape is None
        else torch.empty(shape)
        for shape in shapes
    ]
    return [
        (list(inputs), list(outputs))
        for outputs, inputs in sharding_rule(operator, along)(*args, **numbers)
    ]


def test_each_of_the_rows_is_a_dimension_to_divide_along():
    schema = "norm(Tensor input, Tensor weight, float eps=1e-5) -> (Tensor, Tensor)"
    line = "*rows n, n -> *rows n, *rows:sum"
    assert found(schema, line, (4, 5, 8), (8,)) == [([0, None], [0, 0]), ([1, None], [1, 1])]
    assert found(schema, line, (8,), (8,)) == []


def test_dimensions_before_and_behind_the_name():
    schema = "op(Tensor input, Tensor other) -> Tensor"
    assert found(schema, "n *s c, *s -> c *s", (2, 3, 4, 5), (3, 4)) == [
        ([1, 0], [1]),
        ([2, 1], [2]),
    ]
    assert found(schema, "n *s c, *s -> c *s", (2, 3, 4, 5), (3, 4), along=("c",)) == [
        ([1, 0], [1]),
        ([2, 1], [2]),
        ([3, None], [0]),
    ]


def test_what_broadcasts_is_whole_and_its_gradient_a_sum():
    assert found("mul(Tensor a, Tensor b) -> Tensor", "..., ... -> ...", (4, 1, 6), (5, 1)) == [
        ([0, None], [0]),
        ([None, 0], [1]),
        ([2, None], [2]),
    ]
    schema = "mul_backward(Tensor grad, Tensor a, Tensor? b=None) -> (Tensor, Tensor)"
    line = "..., ..., ... -> =a, =b"
    assert found(schema, line, (4, 5), (4, 5), (5,)) == [
        ([0, 0, None], [0, SUM]),
        ([1, 1, 0], [1, 0]),
    ]
    # What goes with an argument that is None has no elements.
    assert found(schema, line, (4, 5), (4, 1), None) == [
        ([0, 0, None], [0, None]),
        ([1, None, None], [SUM, None]),
    ]


def test_gradients_of_columns_are_sums_and_other_results_of_columns_are_none():
    line = "*rows n, *rows n -> *rows n, n"
    schema = "(Tensor grad, Tensor input) -> (Tensor, Tensor)"
    assert found("op_backward" + schema, line, (4, 8), (4, 8)) == [([0, 0], [0, SUM])]
    assert found("op" + schema, line, (4, 8), (4, 8)) == []
    # Along the columns themselves they are as the others.
    assert found("op" + schema, line, (4, 8), (4, 8), along=("n",)) == [([1, 1], [1, 0])]


def test_wholes_and_what_nothing_is_said_of_are_not_divided():
    schema = "op(Tensor a) -> Tensor"
    assert found(schema, "*all -> ()", (4, 5)) == []
    assert found(schema, "*_ n -> n", (4, 5)) == []
    assert found(schema, "_ n -> n", (4, 5)) == []


def test_sizes_of_one_are_divided_where_they_are_all_of_them():
    schema = "op(Tensor a, Tensor b) -> Tensor"
    line = "*shape, *shape -> *shape"
    assert found(schema, line, (1, 5), (1, 5)) == [([0, 0], [0]), ([1, 1], [1])]
    assert found(schema, "..., ... -> ...", (1, 5), (5,)) == [([0, None], [0]), ([1, 0], [1])]
    assert found(schema, "..., ... -> ...", (), ()) == []


def test_lists_have_a_list():
    schema = "op(Tensor[] a, Tensor b) -> Tensor"
    line = "*rows n, *rows -> *rows n"
    assert found(schema, line, [(4, 2), (4, 2)], (4,)) == [([[0, 0], 0], [0])]
    assert found(schema, line, [], (4,)) == [([[], 0], [0])]


def test_what_is_written_to_is_divided_with_the_rest():
    schema = "op(Tensor(a!) out, Tensor input) -> ()"
    assert found(schema, "*rows, *rows n -> ", (4,), (4, 8)) == [([0, 0], [])]
    # Each device would write what its own rows come to.
    assert found(schema, "n, *rows n -> ", (8,), (4, 8)) == []


def test_tensors_of_keywords_are_not_redistributed():
    with torch.library._scoped_library("test_sharding", "DEF") as library:
        library.define("op(Tensor a, *, Tensor b) -> Tensor")
        library.define("several(Tensor a) -> Tensor[]")
        for name in ("op", "several"):
            with pytest.raises(NotImplementedError, match=r"The schema is test_sharding::"):
                registration.register_sharding(f"test_sharding::{name}", lambda *args: ())


def test_numbers():
    schema = "op(Tensor a, int k, *, float scale=1.0) -> Tensor"
    operator = Operator("test", schema, "*rows n -> *rows k")
    assert list(sharding_rule(operator)(torch.empty(4, 8), 3, scale=2.0)) == [([0], [0])]


@pytest.mark.parametrize(
    ("line", "along", "says"),
    [
        ("*rows n, n -> *rows n", "m", "has no size 'm' to divide calls along"),
        ("*rows n, n -> *rows n", "*rows", r"has no size '\*rows'"),
        ("*rows n, 2n -> *rows n", "n", "cannot be divided along 'n'"),
        ("*rows n n, n -> *rows n", "n", "twice in a shape"),
        ("*rows k, k -> *rows k", "k", "stands for a number"),
    ],
)
def test_a_size_that_is_none(line, along, says):
    operator = Operator("test", "op(Tensor a, Tensor b, int k=2) -> Tensor", line)
    with pytest.raises(ValueError, match=says):
        sharding_rule(operator, (along,))


def test_placements_go_with_the_tensors_that_are_passed():
    values = ["a", ["b", "c", None], "d", None]
    assert placements_passed([0, [1, 2, 3], None, 4], values) == [0, 1, 2, None]


def test_a_rule_that_is_registered_comes_before_the_line():
    name = "extension_cpp::fused_op"
    args = torch.empty(4, 8), torch.empty(8), 1.0
    of_line = list(sharding_rule(operators()[name])(*args))
    assert list(rule_of(name, operators())(*args)) == [*of_line, ([1], [1, 0])]
    assert rule_of("extension_cpp::linear_scan", {}) is not None
    assert rule_of("extension_cpp::relu", {}) is None


def test_along_needs_a_line():
    with pytest.raises(ValueError, match="is declared without a line of shapes"):
        registration.register_sharding("extension_cpp::linear_scan", along=("n",))

"""examples/language_model.py: what it trains on, and that both models are one.

It uses linear_scan, add_rms_norm, swiglu and softmax_cross_entropy.
"""

import functools
import math
import sys

import pytest
import torch
from scratch import ROOT

sys.path.insert(0, str(ROOT / "examples"))

import language_model
from language_model import ALPHABET, KEYS, LINE, PAIRS

from extension_cpp.ops import linear_scan


def test_every_line_answers_what_it_asks():
    text = language_model.lines(200, torch.Generator().manual_seed(0))
    for line in ("".join(ALPHABET[k] for k in row) for row in text.tolist()):
        *pairs, question = line.removesuffix("\n").split(" ")
        values = dict(pair.split("=") for pair in pairs)
        key, answer = question.split("?")
        assert len(values) == PAIRS
        assert set(values) <= set(KEYS)
        assert values[key] == answer


def test_the_least_loss_is_that_of_what_is_drawn():
    # By counting: as many lines as keys in an order, digits, and questions.
    count = math.perm(len(KEYS), PAIRS) * 10**PAIRS * PAIRS
    assert language_model.best_loss() == pytest.approx(math.log(count) / LINE)


def test_the_plain_scan_is_the_operator():
    decay, input = torch.rand(2, 3, 11, 4, dtype=torch.float64)
    expected = linear_scan(decay, input, dim=1)
    torch.testing.assert_close(language_model.plain_scan(decay, input), expected)


def test_both_models_train_alike(tmp_path, capsys):
    options = "--no-compile --steps 8 --batch 8 --length 60 --width 16 --layers 1 --device cpu"
    plot = tmp_path / "curves.png"
    assert language_model.main([*options.split(), "--rate", "0.05", "--plot", str(plot)]) == 0
    output = capsys.readouterr().out
    assert "ours" in output
    assert plot.stat().st_size > 0


def test_what_is_compiled_is_one_graph_and_trains_alike(tmp_path, monkeypatch, capsys):
    # Of the compiler all but the kernels, which take it a minute.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    options = "--steps 8 --batch 8 --length 60 --width 16 --layers 1 --device cpu --rate 0.05"
    assert language_model.main([*options.split(), "--plot", str(tmp_path / "curves.png")]) == 0
    assert "ours, compiled" in capsys.readouterr().out

    scan = language_model.linear_scan

    def break_the_graph(*args, **kwargs):
        torch._dynamo.graph_break()
        return scan(*args, **kwargs)

    monkeypatch.setattr(language_model, "linear_scan", break_the_graph)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        language_model.main([*options.split(), "--plot", str(tmp_path / "curves.png")])


def test_another_scan_is_noticed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(language_model, "plain_scan", lambda decay, input: input)
    options = "--no-compile --steps 8 --batch 8 --length 60 --width 16 --layers 1 --device cpu"
    plot = str(tmp_path / "curves.png")
    assert language_model.main([*options.split(), "--rate", "0.05", "--plot", plot]) == 1
    assert "WRONG: the curves differ" in capsys.readouterr().out

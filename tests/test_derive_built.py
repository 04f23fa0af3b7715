"""templates/derive: operators of many definitions are built, and pass as they were made."""

import sys
from pathlib import Path

import pytest
from definitions import PLACES
from scratch import ROOT, copy_repository, git, quickly, under_git
from test_templates_built import (
    EVERY,
    FLOAT32,
    TRACED,
    battery,
    build,
    check_types,
    keep_operators,
    select,
    succeed,
    tool,
)

sys.path.insert(0, str(ROOT / "benchmarks"))

import derived

pytestmark = pytest.mark.slow

# What .ci/run builds: numbers, tensors that broadcast, of float32 beside half types; a switch and
# an optional tensor, of parts as another is; several dtypes, rows, and sums over columns; both of
# several dtypes, float8 among them; values for rows, and one number; labels, with sums over
# columns; rows of float32 beside half types, and gradients of a result.
FEW = ["moving_average", "biased_gate", "kept_scores", "kept_codes", "norm_and_codes"]
FEW += ["scaled_rms_norm", "adjusted_loss", "norm_and_total", "clipped"]
# What takes longest and sees a formula's values no better, of those that differ most.
COSTLY = f"{TRACED} or saved_tensors or properties or determinism"
THOROUGH = ["kept_codes"]
# One of each kind at least.
SHARE = [
    *(
        "softcap",
        "tanh_gelu",
        "tanh_affine",
        "scaled_bias_relu",
        "added",
        "rounded",
        "log",
        "integer_power",
    ),
    *("between_tensors", "focal", "atan2", "select", "softplus_bt", "elu_a", "counted", "maximum"),
    *(
        "remainder",
        "swish_gate",
        "gated_residual",
        "soft_threshold",
        "leaky",
        "rotary",
        "reflected",
    ),
    *("select_by_a_number", "debiased", "corrected_moment"),
    *("product_or_sign", "weighted_bce", "learned_steps", "modulated", "binary_cross_entropy"),
    *("inverted_dropout", "optional_mask", "same_labels", "power_of_labels", "codes", "of_codes"),
    *("clamped_and_inside", "positive", "masked_out", "scaled_exp"),
    *("small_codes", "of_small_codes", "rounded_to_codes", "softmax_of_codes"),
    # Row-wise.
    *("log_softmax", "logsumexp", "entropy", "soft_cross_entropy", "residual_norm", "layer_norm"),
    *("standardised", "normalised", "length", "cosine", "weighted_sum", "variance", "spread"),
    *(
        "rms_norm",
        "affine_of_mean",
        "log_softmax_and_logsumexp",
        "optional_layer_norm",
        "offset_rms_norm",
    ),
    *("gated_softmax", "softmax_less_a_constant", "select_by_a_number_of_rows"),
    *("masked_softmax", "masked_layer_norm", "mean_of_two_masks", "loss_of_labels", "row_codes"),
    *("above_the_mean", "counted_labels", "masked_log_softmax"),
    *("softmax_with_sinks", "weighted_loss", "softmax_of_temperatures", "advantage_loss"),
    *("pinball", "scale_norm", "contrastive"),
    *("smoothed_loss", "ignoring_loss", "weighted_by_class", "margin_of_one_hot", "norm_up_to"),
    *("masked_by_length", "column_masked", "weighted_columns"),
    # Over everything.
    *("dice_loss", "masked_mse", "mse_in_float32", "standardized", "squares_or_not", "shadowed"),
    *("weighted_mean", "limited", "sum_and_squares", "straight_scale", "moved_by_mean"),
    *("masks_alone", "where_positive", "weighted_or_not"),
    # Of tensors that hold several.
    *("packed_swiglu", "three_gates", "gate_and_residual", "gate_codes", "of_packed_codes"),
    *("halves_of_halves", "rotary_embedding", "rotary_of_constants", "rotary_of_both"),
    *("rotary_halves", "sum_and_difference"),
    # Of float32 beside half types.
    *("layer_scale", "moments", "kept_in_float32", "norm_of_float32_weight"),
    *("residual_in_float32", "softmax_left_in_float32", "tempered", "state_first"),
    "norm_and_total",
    # Whose gradients are made of a result, or are those of several tensors.
    *("shared_by_switch", "norm_with_two_shifts", "norms_of_wide"),
    # Of those that write to their arguments.
    *("ema_", "sgd_step", "adamw_step", "accumulate_"),
    *("silu_of_sum", "residual_relu", "residual_step", "layer_norm_of_sum", "hard_choice"),
]
VALUES = f"(forward or backward or double_backward) and {FLOAT32} or gradcheck or signature"
# Of those that differ most, too: several results, rows with an optional tensor, a kernel by hand.
DIFFERENT = ["rotary", "offset_rms_norm", "neighbours"]
BESIDES = f"(opcheck or vmap or strides or saved_tensors or bad_inputs) and {FLOAT32}"

# Integers that float32, and float64, do not hold.
LARGE_LABELS = """
import torch
from extension_cpp.ops import kept_scores

for ignore in (2**24, 2**53):
    k = torch.tensor([ignore - 1, ignore, ignore + 1])
    ones = torch.ones(3)
    kept = kept_scores(ones, ones * 0, ones > 0, k, ignore=ignore)[1]
    assert kept.tolist() == [True, False, True], kept
"""

# What the template's kernel computes: with a definition that says so it passes, derivatives too.
NEIGHBOURS = """
import torch
from torch import Tensor


def neighbours(input: Tensor, other: Tensor, *, alpha: float = 1.0) -> Tensor:
    padded = torch.nn.functional.pad(input, (1, 1))
    return (padded[..., :-2] + input + padded[..., 2:]) * (1 + alpha) + other
"""


def make(folder: Path, names: list[str]) -> Path:
    """A copy of the repository with operators of some definitions, and of NEIGHBOURS, built."""
    root = under_git(copy_repository(folder))
    keep_operators(root, {"fused_op"})
    git(root, "add", "--all")
    tool(root, *(["--from", PLACES[name]] for name in names))
    (folder / "neighbours.py").write_text(NEIGHBOURS)
    tool(root, ["--from", f"{folder}/neighbours.py:neighbours", "--template", "kernel"])
    for command in (["ruff", "check"], ["ruff", "format", "--check"]):
        succeed(sys.executable, "-m", *command, "--no-cache", "extension_cpp", cwd=root)
    build(root, **quickly())
    check_types(root, "extension_cpp")
    return root


def test_a_few_derived_operators_pass_the_whole_battery(tmp_path: Path) -> None:
    root = make(tmp_path, FEW)
    names = select([*FEW, "neighbours"])
    thorough = names if EVERY else select(THOROUGH)
    battery(root, f"({names}) and {FLOAT32} and (not ({COSTLY}) or {thorough})")
    succeed(sys.executable, "-c", LARGE_LABELS, cwd=root)


def test_derived_operators_pass_as_they_were_made(tmp_path: Path) -> None:
    # All of them take ten minutes on two cores.
    names = list(PLACES) if EVERY else SHARE
    root = make(tmp_path, names)
    names = [*names, "neighbours"]
    battery(root, f"({select(names)}) and ({VALUES})")
    battery(root, f"({select(DIFFERENT)}) and ({FLOAT32 if EVERY else BESIDES})")
    tool(root, *(["--remove", name] for name in names))
    assert git(root, "diff", "--stat") == ""


def test_worked_operators_are_what_their_definitions_give(tmp_path: Path) -> None:
    """In values and gradients, by the code as it is shipped: optimised."""
    places = derived.definitions(ROOT)
    worked = {name: place for name, place in places.items() if name.endswith(derived.SUFFIX)}
    derived.make(tmp_path, worked)
    derived.build(tmp_path)
    said = succeed(sys.executable, "tests/compare_derived.py", cwd=tmp_path)
    assert said.endswith(" pairs, 0 differences\n")

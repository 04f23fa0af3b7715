"""A small language model by this package's operators and by plain PyTorch: same curve, other speed.

The model is of minGRU blocks (L. Feng and others, "Were RNNs All We Needed?", 2024): linear_scan
over time, add_rms_norm for the residual step, swiglu in the feed-forward layer, and
softmax_cross_entropy. It learns to recall: lines such as `k=7 q=2 m=9 x=0 q?2`, in which the last
digit follows from what stands before. How low the loss can be is known, since the rest is drawn at
random.

    python examples/language_model.py
    python examples/language_model.py --width 1024 --layers 8 --length 1024    # on a GPU

Trains from the same weights on the same text by our operators and by PyTorch's, each eager and
compiled, as one graph; prints held-out loss, speed and, on a GPU, peak memory; saves the curves as
a picture. Exit status 1 if the curves differ, or nothing was learned.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from extension_cpp.nn import AddRMSNorm, SoftmaxCrossEntropyLoss, SwiGLU
from extension_cpp.ops import linear_scan

# ----- text

KEYS = "abcdefghijklmnopqrstuvwxyz"
ALPHABET = f"{KEYS}0123456789=? \n"
PAIRS = 4
# `k=7 q=2 m=9 x=0 q?2` and the end of the line
LINE = 4 * PAIRS + 4


def best_loss() -> float:
    """What nobody can know of a character, in nats: the mean over a line."""
    keys = sum(math.log(len(KEYS) - k) for k in range(PAIRS))
    return (keys + PAIRS * math.log(10) + math.log(PAIRS)) / LINE


def lines(count: int, generator: torch.Generator) -> Tensor:
    """So many random lines, as indices in the alphabet: `(count, LINE)`."""
    index = {character: k for k, character in enumerate(ALPHABET)}
    keys = torch.rand(count, len(KEYS), generator=generator).argsort(1)[:, :PAIRS]
    values = torch.randint(10, (count, PAIRS), generator=generator) + index["0"]
    asked = torch.randint(PAIRS, (count, 1), generator=generator)
    text = torch.full((count, LINE), index[" "])
    for pair in range(PAIRS):
        text[:, 4 * pair] = keys[:, pair]
        text[:, 4 * pair + 1] = index["="]
        text[:, 4 * pair + 2] = values[:, pair]
    text[:, -4] = keys.gather(1, asked)[:, 0]
    text[:, -3] = index["?"]
    text[:, -2] = values.gather(1, asked)[:, 0]
    text[:, -1] = index["\n"]
    return text


def batches(options: argparse.Namespace, seed: int) -> Iterator[Tensor]:
    """Texts of whole lines, each with the character before it: `(batch, length + 1)`."""
    generator = torch.Generator().manual_seed(seed)
    per_text = max(1, options.length // LINE)
    while True:
        text = lines(options.batch * per_text, generator).view(options.batch, -1)
        yield F.pad(text, (1, 0), value=ALPHABET.index("\n")).to(options.device)


# ----- the model, by our operators and by PyTorch's


def plain_scan(decay: Tensor, input: Tensor) -> Tensor:
    """`h[t] = decay[t] * h[t - 1] + input[t]` over dimension 1, by doubling the step."""
    step = 1
    while step < decay.shape[1]:
        before = F.pad(input[:, :-step], (0, 0, step, 0))
        input = input + decay * before
        decay = decay * F.pad(decay[:, :-step], (0, 0, step, 0), value=1.0)
        step *= 2
    return input


class PlainAddRMSNorm(nn.RMSNorm):
    def forward(self, input: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        total = input + residual
        return super().forward(total), total


class PlainSwiGLU(SwiGLU):
    def forward(self, input: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(input)) * self.up(input))


class Block(nn.Module):
    """Shapes: `(batch, time, width)` and the sum so far, of the same, to two of the same."""

    def __init__(self, width: int, ours: bool) -> None:
        super().__init__()
        self.ours = ours
        norm, feed_forward = (AddRMSNorm, SwiGLU) if ours else (PlainAddRMSNorm, PlainSwiGLU)
        self.before_scan, self.before_feed_forward = (norm(width, eps=1e-6) for _ in range(2))
        self.gate, self.candidate, self.out = (nn.Linear(width, width) for _ in range(3))
        self.feed_forward = feed_forward(width, 2 * width)

    def forward(self, input: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        normalised, residual = self.before_scan(input, residual)
        gate = torch.sigmoid(self.gate(normalised))
        new = gate * self.candidate(normalised)
        state = linear_scan(1 - gate, new, dim=1) if self.ours else plain_scan(1 - gate, new)
        normalised, residual = self.before_feed_forward(self.out(state), residual)
        return self.feed_forward(normalised), residual


class LanguageModel(nn.Module):
    """Indices `(batch, time)` to logits `(batch, time, len(ALPHABET))`."""

    def __init__(self, width: int, layers: int, ours: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(ALPHABET), width)
        self.blocks = nn.ModuleList(Block(width, ours) for _ in range(layers))
        self.norm = (AddRMSNorm if ours else PlainAddRMSNorm)(width, eps=1e-6)
        self.head = nn.Linear(width, len(ALPHABET))
        self.loss = SoftmaxCrossEntropyLoss() if ours else nn.CrossEntropyLoss()

    def forward(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """Of a text, the mean loss of its characters after the first, and their logits."""
        input, target = text[:, :-1], text[:, 1:]
        residual = self.embedding(input)
        hidden = torch.zeros_like(residual)
        for block in self.blocks:
            hidden, residual = block(hidden, residual)
        logits = self.head(self.norm(hidden, residual)[0])
        return self.loss(logits.flatten(0, 1), target.flatten()), logits


# ----- training


@dataclass
class Run:
    """One way to train, and what came of it."""

    name: str
    ours: bool
    compiled: bool
    losses: list[float] = field(default_factory=list)
    held_out: float = math.nan
    answers: float = math.nan  # the share that is right
    milliseconds: float = math.nan
    peak_mib: float = math.nan


def train(run: Run, options: argparse.Namespace, weights: dict[str, Tensor]) -> None:
    model = LanguageModel(options.width, options.layers, run.ours).to(options.device)
    model.load_state_dict(weights)
    forward = torch.compile(model, fullgraph=True) if run.compiled else model
    optimizer = torch.optim.Adam(model.parameters(), lr=options.rate)
    on_gpu = options.device == "cuda"

    def step(text: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss, _ = forward(text)
        loss.backward()
        optimizer.step()
        return loss.detach()

    found, times = [], []
    texts = batches(options, seed=1)
    for k in range(options.steps):
        if on_gpu and k == min(5, options.steps - 1):  # compiled, and the optimizer has its state
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        text = next(texts)
        begun = time.perf_counter()
        found.append(step(text))
        if on_gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
        if sys.stderr.isatty():
            print(f"\r{run.name}: step {k + 1} of {options.steps}", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    run.losses = torch.stack(found).tolist()
    run.milliseconds = 1e3 * statistics.median(times[min(5, len(times) - 1) :])
    if on_gpu:
        run.peak_mib = torch.cuda.max_memory_allocated() / 2**20
    with torch.no_grad():
        text = next(batches(options, seed=2))
        loss, logits = model(text)
    right = logits[:, LINE - 2 :: LINE].argmax(-1) == text[:, LINE - 1 :: LINE]
    run.held_out, run.answers = loss.item(), right.float().mean().item()


def furthest(runs: Sequence[Run], steps: int) -> float:
    """How far the curves come apart in their first steps, as a share of the loss.

    Later they do, as rounding grows: also of plain PyTorch, eager and compiled.
    """
    curves = torch.tensor([run.losses[:steps] for run in runs], dtype=torch.float64)
    return ((curves.amax(0) - curves.amin(0)) / curves.mean(0)).max().item()


def draw(runs: Sequence[Run], path: Path) -> None:
    from matplotlib.figure import Figure  # asked for here: the rest does without

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for run, style in zip(runs, ("-", "--", "-.", ":"), strict=False):
        axes.plot(run.losses, style, label=f"{run.name}, {run.milliseconds:.1f} ms a step")
    axes.axhline(best_loss(), color="gray", linewidth=0.8, label="the least there can be")
    axes.set(xlabel="step", ylabel="loss, nats a character")
    axes.legend()
    figure.savefig(path, dpi=150)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=32, help="texts a step")
    parser.add_argument("--length", type=int, default=100, help="characters of a text")
    parser.add_argument("--width", type=int, default=128, help="channels")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rate", type=float, default=3e-3, help="of Adam")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compile", action="store_true", help="eager alone")
    parser.add_argument("--plot", type=Path, default=Path("language_model.png"))
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    torch.manual_seed(0)
    weights = LanguageModel(options.width, options.layers, ours=False).state_dict()
    runs = [Run("PyTorch", False, False), Run("ours", True, False)]
    if not options.no_compile:
        runs += [Run("PyTorch, compiled", False, True), Run("ours, compiled", True, True)]
    where = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    count = sum(weight.numel() for weight in weights.values())
    print(f"{where}, torch {torch.__version__}, {count / 1e6:.1f} million weights")
    print(f"the least loss there can be: {best_loss():.4f}\n")
    print(f"{'':<18} {'held-out loss':>13} {'answers':>8} {'ms a step':>10} {'peak MiB':>9}")
    for run in runs:
        train(run, options, weights)
        peak = "" if math.isnan(run.peak_mib) else f"{run.peak_mib:.0f}"
        print(
            f"{run.name:<18} {run.held_out:>13.4f} {run.answers:>8.1%} {run.milliseconds:>10.2f} "
            f"{peak:>9}",
            flush=True,
        )
    steps = min(20, options.steps)
    apart = furthest(runs, steps)
    print(f"\ncurves: within {apart:.1e} of each other over the first {steps} steps")
    draw(runs, options.plot)
    print(f"drawn in {options.plot}")
    if apart > 1e-3:
        print("WRONG: the curves differ")
        return 1
    if any(run.held_out > 0.8 * run.losses[0] for run in runs):
        print("WRONG: nothing was learned")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

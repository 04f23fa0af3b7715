"""The templates: what each is for, and what of it depends on the kind alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from schema import Schema, parse

TEMPLATES = Path(__file__).resolve().parent
LIST = "Tensor[]"


@dataclass(frozen=True)
class Kind:
    """A template.

    Attributes:
        schema: its own.
        fits: what schemas it is for, in words.
        input: the shape of every tensor among the arguments, in the notation of csrc/notation.h.
        outputs: those of the results; the last stands for all that follow.
        host: the host function of csrc that it calls, where it has no kernel of its own.
        lists: whether it takes lists of tensors.
        backward_takes: the tensors that the backward takes; "input" is the first of the operator.
        torch_backward: the same in PyTorch calls, for `--backward torch`; `{factor}` stands for
            the numbers' part.
    """

    schema: str
    fits: str
    input: str = "*rows n"
    outputs: tuple[str, ...] = ("*rows n",)
    host: str = "rowwise"
    lists: bool = False
    backward_takes: tuple[str, ...] = ("grad_output", "input")
    torch_backward: str = ""

    def accepts(self, schema: Schema) -> bool:
        own = parse_template(self.schema)
        lists = any(a.type == LIST for a in schema.arguments)
        return (
            own.mutates == schema.mutates
            and (own.outputs > 1) == (schema.outputs > 1)
            and (self.lists or not lists)
        )


def parse_template(text: str) -> Schema:
    schema = parse(text.replace("my_op", "template_op", 1))
    return Schema(text, "my_op", schema.arguments, schema.outputs)


MY_OP = "my_op(Tensor input, Tensor other, float alpha=1.0)"
ONE_OUTPUT = "operators that take a fixed number of tensors and return one new tensor"
KINDS = {
    "elementwise": Kind(
        f"{MY_OP} -> Tensor",
        ONE_OUTPUT,
        input="*shape",
        outputs=("*shape",),
        host="elementwise",
        torch_backward="2 * grad_output * input{factor}",
    ),
    "rowwise": Kind(
        f"{MY_OP} -> Tensor",
        ONE_OUTPUT,
        backward_takes=("grad_output",),
        torch_backward="(grad_output - grad_output.mean(-1, keepdim=True)){factor}",
    ),
    "reduction": Kind(
        f"{MY_OP} -> Tensor",
        ONE_OUTPUT,
        outputs=("*rows",),
        torch_backward="2 * grad_output.unsqueeze(-1) * input{factor}",
    ),
    "multi_output": Kind(
        f"{MY_OP} -> (Tensor, Tensor)",
        "operators that take a fixed number of tensors and return several new tensors",
        outputs=("*rows n", "*rows:sum"),
        backward_takes=("grad_output", "input", "mean"),
        torch_backward="(((term := 2 * (input - mean.unsqueeze(-1)) * grad_output)"
        " - term.mean(-1, keepdim=True)){factor}).to(input.dtype)",
    ),
    "kernel": Kind(
        f"{MY_OP} -> Tensor",
        "operators that return one new tensor",
        lists=True,
        backward_takes=("grad_output",),
        torch_backward="sum(torch.nn.functional.pad(grad_output, (1, 1))"
        ".narrow(-1, k, grad_output.shape[-1]) for k in range(3)){factor}",
    ),
    "inplace": Kind(
        "my_op(Tensor(a!) input, Tensor other, float alpha=1.0) -> ()",
        "operators that write to an argument, Tensor(a!), take a fixed number of tensors and "
        "return nothing",
        input="*shape",
        outputs=(),
    ),
}


@dataclass(frozen=True)
class Options:
    """What the command line asks for besides the schema."""

    cpu: bool = True
    cuda: bool = True
    grad: bool = True
    backward: str = "operator"  # or "torch"
    cuda_source: tuple[str, str] | None = None  # the name and the text of a file
    shapes: str | None = None  # the line, where it is not that of the template

    @property
    def own_backward(self) -> bool:
        return self.grad and self.backward == "operator"

    @property
    def devices(self) -> tuple[str, ...]:
        return ("cpu",) * self.cpu + ("cuda",) * self.cuda

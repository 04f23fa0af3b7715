"""One call of an operator, or of its public function, ready to be tested in many ways."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from extension_cpp.battery.failure import CheckError, fail, name_of, op_name, show
from extension_cpp.battery.layouts import LAYOUTS
from extension_cpp.battery.samples import Sample
from extension_cpp.battery.spec import OpSpec, is_written
from extension_cpp.battery.tensors import (
    as_leaves,
    as_pairs,
    exact_copies,
    gradients,
    random_like,
    replace_tensors,
    tensors_in,
    to_float64,
)
from extension_cpp.battery.tolerance import difference, tolerance
from extension_cpp.registration.signature import is_differentiable, is_float8


def arguments_of(op: Any, sample: Sample) -> list[tuple[Any, Any]]:
    """(argument of the schema, value) for everything that a sample passes."""
    arguments = op._schema.arguments
    by_name = {argument.name: argument for argument in arguments}
    pairs = list(zip(arguments, sample.args, strict=False))
    return pairs + [(by_name[name], value) for name, value in sample.kwargs.items()]


@dataclasses.dataclass(frozen=True)
class Case:
    """One call as a function of its tensors, `case(*case.tensors)`, with everything else fixed.

    It returns a flat tuple: the outputs, then the arguments that were written to. These are copies,
    so that the call is functional, unless it is made with `in_place=True`.
    """

    spec: OpSpec
    device: str
    dtype: torch.dtype
    op: Any
    label: str
    function: Callable[..., Any]
    reference: Callable[..., Any] | None
    sample: Sample
    tensors: tuple[Tensor, ...] = ()
    layout: str = ""
    # Of the tensors: names in the schema, and whether they are written to.
    names: tuple[str, ...] = dataclasses.field(default=(), init=False)
    written: tuple[bool, ...] = dataclasses.field(default=(), init=False)

    def __post_init__(self) -> None:
        names, written = [], []
        for argument, value in arguments_of(self.op, self.sample):
            found = tensors_in(value)
            names += [
                argument.name if t is value else f"{argument.name}[{i}]"
                for i, t in enumerate(found)
            ]
            written += [is_written(argument)] * len(found)
        tensors = self.tensors or tensors_in((self.sample.args, self.sample.kwargs))
        # Writing to a leaf that requires grad would be the caller's mistake.
        tensors = tuple(t.detach() if w else t for t, w in zip(tensors, written, strict=True))
        object.__setattr__(self, "names", tuple(names))
        object.__setattr__(self, "written", tuple(written))
        object.__setattr__(self, "tensors", tensors)

    def __call__(self, *tensors: Tensor, in_place: bool = False) -> tuple[Tensor, ...]:
        return self._apply(self.function, tensors, in_place)

    def expected(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """What the reference gives; codes of float8 without PyTorch's gradient."""
        assert self.reference is not None
        found = self._apply(self.reference, tensors, False)
        return tuple(o if is_differentiable(o) else o.detach() for o in found)

    def _apply(
        self, function: Callable[..., Any], tensors: Sequence[Tensor], in_place: bool
    ) -> tuple[Tensor, ...]:
        if not in_place:
            pairs = zip(tensors, self.written, strict=True)
            tensors = [t.clone() if written else t for t, written in pairs]
        sample = self.bind(tensors)
        outputs = tensors_in(function(*sample.args, **sample.kwargs))
        written = [t for t, written in zip(tensors, self.written, strict=True) if written]
        # A public function may return what it wrote to.
        outputs = [o for o in outputs if not any(o is t for t in written)]
        return (*outputs, *written)

    def bind(self, tensors: Sequence[Any]) -> Sample:
        """The call with other tensors."""
        values = iter(tensors)
        args = replace_tensors(self.sample.args, values)
        return Sample(*args, **replace_tensors(self.sample.kwargs, values))

    def outputs_only(self, results: Sequence[Tensor]) -> Sequence[Tensor]:
        """Without the arguments that were written to."""
        return results[: len(results) - sum(self.written)]

    @property
    def wanted(self) -> list[int]:
        """The tensors that require grad."""
        return [i for i, t in enumerate(self.tensors) if t.requires_grad]

    @property
    def order(self) -> int:
        """Of the derivatives to look at where first ones suffice."""
        return int(self.spec.differentiable and self.dtype.is_floating_point)

    def copies(self) -> list[Tensor]:
        """Leaves to call it with in place: copies where it writes."""
        return exact_copies(self.tensors) if any(self.written) else as_leaves(self.tensors)

    def laid_out(self, name: str, tensors: Sequence[Tensor]) -> Case:
        return dataclasses.replace(self, tensors=tuple(tensors), layout=name)

    def with_gradients(self, wanted: Collection[int]) -> Case:
        """The case where of the tensors that require grad these alone do."""
        every = self.wanted
        tensors = [
            t.detach().requires_grad_(i in wanted) if i in every else t
            for i, t in enumerate(self.tensors)
        ]
        names = ", ".join(self.names[i] for i in wanted)
        return self.laid_out(f"gradients of {names} alone" if names else "no gradients", tensors)

    def layouts(self, *, each: bool = False) -> Iterator[Case]:
        """The case in every layout that applies; with `each`, also with one tensor at a time in it.

        No tensor that is written to is expanded. Of layouts that are one for the shapes at hand,
        as some are where sizes are 0 or 1, the first alone is yielded.
        """
        seen = set()
        everything = tuple(range(len(self.tensors)))
        groups = [everything]
        if each and len(everything) > 1:
            groups += [(i,) for i in everything]
        for name, layout in LAYOUTS.items():
            for group in groups if name != "contiguous" else groups[:1]:
                tensors, changed = list(self.tensors), False
                for i in group:
                    new = None if self.written[i] and "expanded" in name else layout(tensors[i])
                    if new is not None:
                        tensors[i] = new.requires_grad_(tensors[i].requires_grad)
                        changed = True
                places = tuple((t.stride(), t.storage_offset()) for t in tensors)
                if changed and places not in seen:
                    seen.add(places)
                    only = "" if group == everything else f", {self.names[group[0]]} only"
                    yield self.laid_out(name + only, tensors)

    # --- saying what is wrong

    def __str__(self) -> str:
        values = iter(self.tensors)
        args = [show(replace_tensors(value, values)) for value in self.sample.args]
        kwargs = [
            f"{key}={show(replace_tensors(value, values))}"
            for key, value in self.sample.kwargs.items()
        ]
        return f"{self.label}({', '.join(args + kwargs)})"

    def fail(self, problem: str, *, detail: str = "", see: str = "python") -> NoReturn:
        """Raises with the problem, the call, details, and where to look.

        Args:
            problem: what is wrong, in a line.
            detail: more lines.
            see: "kernel", "backward", "fake", "python", or the place itself.
        """
        where = f"on {self.device}" + (f", {self.layout}" if self.layout else "")
        fail(self.spec, problem, call=f"{self} {where}", detail=detail, see=see, device=self.device)

    @contextlib.contextmanager
    def explain(self, doing: str, *, see: str = "python") -> Iterator[None]:
        """Says which call it was when something raises."""
        try:
            yield
        except CheckError:
            raise
        except Exception as error:
            detail = f"{type(error).__name__}: {error}"
            if len(detail) > 4000:
                detail = f"{detail[:3000]}\n...\n{detail[-1000:]}"
            try:
                self.fail(f"{doing} raised", detail=detail, see=see)
            except CheckError as failure:
                raise failure from error

    # --- comparing with the reference

    def compare(
        self,
        actual: Sequence[Tensor],
        expected: Sequence[Tensor],
        what: str,
        *,
        names: Sequence[str] = (),
        order: int = 0,
        see: str = "kernel",
    ) -> None:
        """Compares results with those of the reference, of which floating ones are in float64."""
        if len(actual) != len(expected):
            self.fail(f"{what}: {len(actual)} tensors, {len(expected)} expected", see=see)
        if not names:
            names = (
                [f"output {i}" for i in range(len(actual))] if len(actual) > 1 else ["the output"]
            )
        for name, a, e in zip(names, actual, expected, strict=True):
            if a.is_complex() and e.is_complex():
                a, e = as_pairs(a, e)
            quantised = not a.is_floating_point() or is_float8(a)
            given = self.spec.tolerances.get(a.dtype if quantised else self.dtype)
            rtol, atol = given or (0.0, 0.0)
            if a.is_floating_point():
                # What has one dtype for all has it for float64, too.
                if e.dtype not in (torch.float64, a.dtype):
                    self.fail(
                        f"the reference gives {e.dtype} for torch.float64: it must follow it",
                        see=f"the reference, {name_of(self.spec.reference)}",
                    )
                e = e.double()
                # Most agree by the least tolerance, which is the soonest known.
                if given is None:
                    least = tolerance(a, e, self.tensors, order, least=True)
                    if difference(a, e, *least) is None:
                        continue
                rtol, atol = given or tolerance(a, e, self.tensors, order)
            found = difference(a, e, rtol, atol)
            if found is not None:
                problem = f"{what} differs from the reference ({self.device}, {self.dtype})"
                self.fail(problem, detail=f"{name}: {found}", see=see)

    def stay_finite(self) -> None:
        """Results are numbers wherever those of the reference are, in float64 and in the dtype."""

        def results(call: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
            outputs = [o for o in call(*inputs) if is_differentiable(o)]
            ends = [o for o in outputs if o.requires_grad] if self.order else []
            found = [o.detach() for o in outputs]
            if ends:
                ones = [torch.ones_like(o) for o in ends]
                found += gradients(ends, [inputs[i] for i in self.wanted], ones)
            return found

        with self.explain("a call on large numbers", see="kernel"):
            actual = results(self, as_leaves(self.tensors))
        exact = results(self.expected, to_float64(self.tensors))
        try:
            plain = results(self.expected, as_leaves(self.tensors))
        except RuntimeError:
            plain = exact  # a number, as what masks choose, may be none of a half type
        if len({len(actual), len(exact), len(plain)}) > 1:
            return  # results of other dtypes: of the comparison of values
        for a, e, p in zip(actual, exact, plain, strict=True):
            rounded = e.to(a.dtype).to(e.dtype)
            wrong = p.to(e.dtype).isfinite() & rounded.isfinite() & ~a.to(e.dtype).isfinite()
            if wrong.any():
                at = tuple(int(i) for i in wrong.nonzero()[0])
                self.fail(
                    f"of large numbers a result is none ({self.device}, {self.dtype})",
                    detail=f"{int(wrong.sum())} of {a.numel()} elements, the first at {at}: "
                    f"expected {e[at].item():.10g}, got {a[at].item():.10g}. PyTorch's own "
                    "operations do not overflow there on the way, nor divide by zero.",
                    see="kernel",
                )

    def agree(
        self,
        *,
        order: int = 0,
        run: Callable[..., Sequence[Tensor]] | None = None,
        cotangent_layout: Callable[[Tensor], Tensor | None] | None = None,
        constant_cotangents: bool = False,
    ) -> None:
        """Compares the call with its reference.

        Args:
            order: 0 for the outputs, 1 for gradients too, 2 for gradients of gradients too.
            run: what to call instead of the function itself, with the tensors.
            cotangent_layout: the layout of the outputs' gradients.
            constant_cotangents: whether the outputs' gradients have no gradients of their own.
        """
        inputs, upcast = self.copies(), to_float64(self.tensors)
        with contextlib.nullcontext() if order else torch.no_grad():
            with self.explain("forward", see="fake" if run else "kernel"):
                outputs = run(*inputs) if run else self(*inputs, in_place=True)
            expected = self.expected(*upcast)
        self.compare(outputs, expected, "forward")
        if not order or not self.wanted:
            return
        # What the reference has a gradient for, the operator must have one for.
        pairs = [(o, e) for o, e in zip(outputs, expected, strict=True) if e.requires_grad]
        for o, _ in pairs:
            if not o.requires_grad:
                self.fail("an output does not require grad, the reference's does", see="backward")
        if not pairs:
            return
        cotangents = random_like(o for o, _ in pairs)
        if cotangent_layout is not None:
            laid_out = [cotangent_layout(c) for c in cotangents]
            cotangents = [
                c if new is None else new for c, new in zip(cotangents, laid_out, strict=True)
            ]
        cotangents = [c.requires_grad_(order > 1 and not constant_cotangents) for c in cotangents]
        upcast_cotangents = to_float64(cotangents)
        inputs, upcast = [inputs[i] for i in self.wanted], [upcast[i] for i in self.wanted]
        names = [f"the gradient of {self.names[i]}" for i in self.wanted]
        again = order > 1
        with self.explain("backward", see="backward"):
            actual = gradients([o for o, _ in pairs], inputs, cotangents, create_graph=again)
        wanted = gradients([e for _, e in pairs], upcast, upcast_cotangents, create_graph=again)
        self.compare(actual, wanted, "backward", names=names, order=1, see="backward")
        if not again:
            return
        pairs = [(a, e) for a, e in zip(actual, wanted, strict=True) if e.requires_grad]
        for name, a, e in zip(names, actual, wanted, strict=True):
            if e.requires_grad and not a.requires_grad:
                self.fail(
                    f"{name} has no gradient of its own: the backward is not differentiable",
                    detail="Compose it of differentiable operators, or register a formula.",
                    see="backward",
                )
        if not pairs:
            return
        second = random_like((a for a, _ in pairs), seed=2)
        differentiated = [c for c in cotangents if c.requires_grad]
        upcast_cotangents = [c for c in upcast_cotangents if c.requires_grad]
        with self.explain("double backward", see="backward"):
            actual = gradients([a for a, _ in pairs], inputs + differentiated, second)
        wanted = gradients([e for _, e in pairs], upcast + upcast_cotangents, to_float64(second))
        names = [f"the second-order gradient of {self.names[i]}" for i in self.wanted]
        names += ["the second-order gradient of the output's gradient"] * len(differentiated)
        self.compare(actual, wanted, "double backward", names=names, order=2, see="backward")


def public_case(spec: OpSpec, device: str, dtype: torch.dtype, sample: Sample) -> Case:
    label = name_of(spec.function)
    return Case(spec, device, dtype, spec.op, label, spec.function, spec.reference, sample)


def op_case(spec: OpSpec, device: str, dtype: torch.dtype, sample: Sample, op: Any = None) -> Case:
    """The operator itself, or another of the namespace, which has no reference."""
    reference = None if op not in (None, spec.op) else spec.op_reference or spec.reference
    op = op or spec.op
    return Case(spec, device, dtype, op, op_name(op), op, reference, sample)

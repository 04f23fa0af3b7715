"""The files of a derived operator."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from formatting import format_text
from instantiate import PACKAGE
from naming import camel, declared, free
from schema import Argument
from torch.autograd.function import BackwardCFunction

from . import cpp_text, python_text
from .definition import Definition, summary
from .derived import Variant, derive
from .graph import GRADIENT
from .saved import OUTPUT
from .verify import RANGES, Verified, verify

NUMBERS = {"float": "A", "int": "A", "bool": "bool"}


@dataclass
class Derived:
    """An operator's files, by name, and the schemas that they register."""

    name: str
    files: dict[str, str] = field(default_factory=dict)
    schemas: list[str] = field(default_factory=list)


def assemble(definition: Definition) -> Derived:
    """Derives an operator.

    Raises:
        NotDerived: that cannot be done; says why.
    """
    variants = derive(definition)
    verified = verify(definition, variants)
    parts = Operator(definition, variants, verified)
    files = {
        "__init__.py": "",
        f"{definition.name}.cpp": parts.cpp(),
        "ops.py": parts.ops(),
        "spec.py": parts.spec(),
    }
    return Derived(
        definition.name,
        {name: format_text(name, text) for name, text in files.items()},
        [schema for _, schema, _ in parts.declarations()],
    )


class Backward:
    """The backward operator of a variant: None of it where every gradient is passed on."""

    def __init__(self, operator: Operator, variant: Variant) -> None:
        self.variant = variant
        self.name = f"{operator.name}{suffix(variant)}_backward"
        self.constant = f"k{camel(self.name)}"
        self.struct = camel(self.name)
        used = variant.uses(variant.backward)
        self.numbers = [a for a in operator.schema.settings if a.name in used]
        self.tensors = [GRADIENT, *variant.saved]
        self.arguments = [*self.tensors, *(a.name for a in self.numbers)]
        count = len(variant.computed)
        result = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
        arguments = [f"Tensor {name}" for name in self.tensors]
        arguments += [f"{a.type} {a.name}" for a in self.numbers]
        self.schema = f"{self.name}({', '.join(arguments)}) -> {result}"
        shape = "..." if operator.broadcasts and set(variant.saved) - {OUTPUT} else "*shape"
        self.line = f"{', '.join([shape] * len(self.tensors))} -> {', '.join([shape] * count)}"


def suffix(variant: Variant) -> str:
    return "".join(f"_without_{name}" for name in variant.absent)


class Operator:
    """The texts of one operator."""

    def __init__(
        self, definition: Definition, variants: Sequence[Variant], verified: Verified
    ) -> None:
        self.definition, self.variants, self.verified = definition, variants, verified
        self.schema = definition.schema
        self.name = definition.name
        self.tensors = variants[0].tensors
        self.broadcasts = len(self.tensors) > 1 and verified.broadcasts
        self.backwards = [Backward(self, v) for v in variants if v.computed]
        headers = [path.read_text() for path in (PACKAGE / "csrc").rglob("*.*h")]
        taken = set().union(*map(declared, headers))
        names = [a.name for a in self.schema.arguments]
        self.in_cpp = cpp_text.spelled([*names, GRADIENT, OUTPUT], taken=["output", "inputs"])
        self.in_cpp |= {GRADIENT: GRADIENT, OUTPUT: OUTPUT}
        self.host = cpp_text.spelled([self.name], taken)[self.name]
        self.in_python = {name: name for name in [*names, GRADIENT, OUTPUT]}
        text, self.described = summary(definition)
        self.summary = text or f"Computes {self.formula()}."

    def formula(self) -> str:
        """The definition in a few words: its expression, where it is one."""
        lines = inspect.getsource(self.definition.function).strip().splitlines()
        returned = re.fullmatch(r"return (.+)", lines[-1].strip())
        if returned is None or len(self.definition.function.__code__.co_varnames) > len(
            self.schema.arguments
        ):
            return f"{self.name} of each element"
        expression = re.sub(r"\b(?:torch\.nn\.functional|torch|F|math)\.", "", returned[1])
        return f"`{expression}`"

    @property
    def backward_struct(self) -> str:
        return camel(f"{self.name}_backward")

    def argument(self, name: str) -> Argument:
        return next(a for a in self.schema.arguments if a.name == name)

    # ----- C++

    def declarations(self) -> list[tuple[str, str, str]]:
        """For each operator the name of its constant, its schema, its line of shapes."""
        shape = "..." if self.broadcasts else "*shape"
        line = f"{', '.join([shape] * len(self.tensors))} -> {shape}"
        own = (f"k{camel(self.name)}", self.schema.text, line)
        return [own, *((b.constant, b.schema, b.line) for b in self.backwards)]

    def cpp(self) -> str:
        declarations = "\n".join(
            f'const Operator {constant}{{"{schema}", "{line}"}};'
            for constant, schema, line in self.declarations()
        )
        functors, hosts = [], [self.forward_host()]
        for variant in self.variants:
            functors.append(self.forward_functor(variant))
        for backward in self.backwards:
            functors.append(self.backward_functor(backward))
            hosts.append(self.backward_host(backward))
        names = [self.name, *(b.name for b in self.backwards)]
        functions = [self.host, *(b.name for b in self.backwards)]
        definitions = "\n".join(
            f"  m.def(extension_cpp::{constant}.schema());"
            for constant, _, _ in self.declarations()
        )
        implementations = "\n".join(
            f'  m.impl("{name}", TORCH_BOX(&extension_cpp::{function}));'
            for name, function in zip(names, functions, strict=True)
        )
        head = self.summary.splitlines()[0].removeprefix("Computes ").rstrip(".").replace("`", "")
        return f"""// {head}
#include "elementwise.h"

namespace extension_cpp {{
namespace {{

{declarations}

{chr(10).join(functors)}
{(chr(10) * 2).join(hosts)}

}}  // namespace
}}  // namespace extension_cpp

TORCH_LIBRARY_FRAGMENT(extension_cpp, m) {{
{definitions}
}}

TORCH_LIBRARY_IMPL(extension_cpp, BACKEND, m) {{
{implementations}
}}
"""

    def struct(self, variant: Variant) -> str:
        return camel(f"{self.name}{suffix(variant)}")

    def numbers_of(self, variant: Variant) -> list[Argument]:
        used = variant.uses(variant.forward)
        return [a for a in self.schema.settings if a.name in used]

    def forward_functor(self, variant: Variant) -> str:
        numbers = {a.name: NUMBERS[a.type] for a in self.numbers_of(variant)}
        return cpp_text.functor(
            self.struct(variant),
            *(variant.tensors, numbers, variant.forward, variant.names, self.in_cpp),
        )

    def backward_functor(self, backward: Backward) -> str:
        numbers = {a.name: NUMBERS[a.type] for a in backward.numbers}
        computed = backward.variant.computed
        comment = f"// The gradients of {listed(computed)}.\n" if len(computed) > 1 else ""
        return comment + cpp_text.functor(
            backward.struct,
            *(backward.tensors, numbers, backward.variant.backward),
            *(backward.variant.names, self.in_cpp),
        )

    def forward_host(self) -> str:
        parameters = ", ".join(f"{a.info.cpp} {self.in_cpp[a.name]}" for a in self.schema.arguments)
        head = f"Tensor {self.host}({parameters})"
        constant = f"k{camel(self.name)}"
        if len(self.variants) == 1:
            (variant,) = self.variants
            used = [a.name for a in self.schema.arguments]
            arguments = ", ".join(self.in_cpp[name] for name in used)
            return (
                f"{head} {{ return elementwise<{self.struct(variant)}>({constant}, {arguments}); }}"
            )
        given = ", ".join(self.in_cpp[name] for name in self.tensors)
        calls = []
        for variant in self.variants:
            calls.append((self.condition(variant), self.into(variant)))
        (first, call), *others = calls
        text = f"if ({first}) {{\n    {call}\n  }}"
        for condition, call in others[:-1]:
            text += f" else if ({condition}) {{\n    {call}\n  }}"
        text += f" else {{\n    {others[-1][1]}\n  }}"
        return f"""{head} {{
  const CheckedInputs inputs = {constant}.check({given});
  Tensor output = inputs.new_output();
  {text}
  return output;
}}"""

    def condition(self, variant: Variant) -> str:
        optional = self.definition.named("Tensor?")
        given = [name for name in optional if name in variant.tensors]
        return " && ".join(f"{self.in_cpp[name]}.has_value()" for name in given)

    def into(self, variant: Variant) -> str:
        optional = self.definition.named("Tensor?")
        tensors = [
            f"{'*' if name in optional else ''}{self.in_cpp[name]}" for name in variant.tensors
        ]
        numbers = [self.in_cpp[a.name] for a in self.numbers_of(variant)]
        arguments = ", ".join(["output", *tensors, *numbers])
        return f"elementwise_into<{self.struct(variant)}>({arguments});"

    def backward_host(self, backward: Backward) -> str:
        parameters = [f"const Tensor& {self.in_cpp[name]}" for name in backward.tensors]
        parameters += [f"{a.info.cpp} {self.in_cpp[a.name]}" for a in backward.numbers]
        count = len(backward.variant.computed)
        result = "Tensor" if count == 1 else f"std::tuple<{', '.join(['Tensor'] * count)}>"
        arguments = ", ".join(self.in_cpp[name] for name in backward.arguments)
        return (
            f"{result} {backward.name}({', '.join(parameters)}) {{\n"
            f"  return elementwise<{backward.struct}>({backward.constant}, {arguments});\n}}"
        )

    # ----- Python

    def ops(self) -> str:
        functions = [self.public(), self.setup_context(), self.backward()]
        functions += [self.backward_in_torch(b) for b in self.backwards]
        text = "\n\n".join(functions)
        imports = ["import torch", "from torch import Tensor"]
        imports.append("from extension_cpp import checks, registration")
        if self.broadcasts and self.backwards:
            imports.append("from extension_cpp.broadcasting import summed_gradients")
        if "math." in text:
            imports.insert(0, "import math")
        if "F." in text:
            imports.append("import torch.nn.functional as F")
        first = self.summary.splitlines()[0].rstrip(".")
        return f'"""{self.name}: {lower_first(first)}."""\n\n' + "\n".join(
            [*imports, "", "", text, "", self.registrations(), ""]
        )

    def public(self) -> str:
        parameters = ", ".join(a.python_parameter for a in self.schema.arguments)
        arguments = ", ".join(a.name for a in self.schema.arguments)
        checks = "".join(
            f'    checks.check_number("{self.name}", "{a.name}", {a.name})\n'
            for a in self.schema.settings
            if a.type in ("float", "int")
        )
        head = f"def {self.name}({parameters}) -> Tensor:\n"
        return (
            f'{head}    """{indented(self.docstring())}\n    """\n{checks}'
            f"    return torch.ops.extension_cpp.{self.name}({arguments})\n"
        )

    def docstring(self) -> str:
        main, *others = self.tensors
        lines = [self.summary, ""]
        lines += ["Half types are computed in float32 and rounded once.", "", "Args:"]
        for a in self.schema.arguments:
            lines += wrapped(f"{a.name}: {self.describe(a)}", "    ", "        ")
        if self.broadcasts:
            shape = (
                "of the common shape, in the layout on which the dense inputs of that shape agree"
            )
        elif others:
            shape = f"with the shape and dtype of `{main}`, in the layout on which the dense "
            shape += "inputs agree"
        else:
            shape = f"with the shape and dtype of `{main}`, and its layout where it is dense"
        shape += ", else contiguous" if others else ""
        derivative = "Differentiable to any order, in reverse and forward mode."
        if self.broadcasts:
            derivative += (
                " The gradient of an input that was broadcast is a deterministic sum, accumulated "
                "in float32 (float64 for float64)."
            )
        lines += ["", "Returns:", *wrapped(f"A tensor {shape}. {derivative}", "    ", "    ")]
        wrong = "a dtype, device or shape other than the above." if others else "another dtype."
        lines += ["", "Raises:", f"    RuntimeError: {wrong}"]
        numbers = [a.name for a in self.schema.settings if a.type in ("float", "int")]
        if numbers:
            named = " or ".join(f"`{name}`" for name in numbers)
            lines += [f"    TypeError: a tensor for {named} whose derivative would be lost."]
        return "\n".join(lines)

    def describe(self, a: Argument) -> str:
        main = self.tensors[0]
        if a.name == main:
            text = "of any shape and layout, float64, float32, float16 or bfloat16, on CPU or CUDA."
        elif a.is_tensor:
            like = f"that of `{main}`" if len(self.tensors) == 2 else "those of the others"
            shape = (
                f"a shape that broadcasts with {like}; dtype" if self.broadcasts else "shape, dtype"
            )
            text = f"{shape} and device of `{main}`"
            text += ", or None." if a.type == "Tensor?" else "."
        else:
            text = {"float": "a number", "int": "an integer"}.get(a.type, "a switch")
            text += "." if a.type == "bool" else "; not differentiable."
        if own := self.described.get(a.name):
            return f"{own.rstrip('.')}; {text}"
        return text

    @property
    def optional(self) -> list[str]:
        return self.definition.named("Tensor?")

    def saved(self) -> list[str]:
        found = {name for b in self.backwards for name in b.variant.saved}
        return [name for name in (*self.tensors, OUTPUT) if name in found]

    def context(self, name: str) -> str:
        """Where the context of autograd keeps a number."""
        return f"ctx.{free(name, dir(BackwardCFunction))}"

    def setup_context(self) -> str:
        kept = {a.name for b in self.backwards for a in b.numbers}
        saved = self.saved()
        needed = {*saved, *(self.tensors if self.broadcasts else self.optional)}
        targets = []
        for a in self.schema.arguments:
            if a.name in kept:
                targets.append(self.context(a.name))
            else:
                targets.append(a.name if a.name in needed else "_")
        lines = []
        if set(targets) != {"_"}:
            unpacked = f"({targets[0]},)" if len(targets) == 1 else ", ".join(targets)
            lines.append(f"{unpacked} = inputs")
        if saved:
            lines.append(f"ctx.save_for_backward({', '.join(saved)})")
        lines += [f"ctx.has_{name} = {name} is not None" for name in self.optional]
        if self.broadcasts:
            shapes = [
                f"None if {n} is None else {n}.shape" if n in self.optional else f"{n}.shape"
                for n in self.tensors
            ]
            lines.append(f"ctx.shapes = {', '.join(shapes)}")
        return function("_setup_context", ["ctx", "inputs", "output"], lines or ["pass"])

    def backward(self) -> str:
        lines = []
        if saved := self.saved():
            unpacked = f"({saved[0]},)" if len(saved) == 1 else ", ".join(saved)
            lines.append(f"{unpacked} = ctx.saved_tensors")
        for variant in self.variants[1:]:
            test = " or ".join(
                f"ctx.has_{name}" for name in self.optional if name in variant.tensors
            )
            absent = " or ".join(f"ctx.has_{name}" for name in variant.absent)
            condition = f"not {absent}" if " or " not in absent else f"not ({absent})"
            if test:
                condition += f" and {test.replace(' or ', ' and ')}"
            lines += [f"if {condition}:", *(f"    {x}" for x in self.returned(variant))]
        lines += self.returned(self.variants[0])
        return function("_backward", ["ctx", GRADIENT], lines)

    def returned(self, variant: Variant) -> list[str]:
        """The lines that call a variant's backward and return a gradient for every argument."""
        lines, results = [], {}
        for name in variant.passed_on:
            results[name] = self.passed_on(name)
        if variant.computed:
            backward = next(b for b in self.backwards if b.variant is variant)
            operator = f"torch.ops.extension_cpp.{backward.name}"
            numbers = [self.context(a.name) for a in backward.numbers]
            arguments = [*backward.tensors, *numbers]
            shapes = [f"ctx.shapes[{self.tensors.index(name)}]" for name in variant.computed]
            if self.broadcasts:
                whole = variant.computed == self.tensors
                given = "ctx.shapes" if whole else f"[{', '.join(shapes)}]"
                call = f"summed_gradients({', '.join([operator, given, *arguments])})"
            else:
                call = f"{operator}({', '.join(arguments)})"
            grads = [f"grad_{name}" for name in variant.computed]
            several = len(grads) > 1 or self.broadcasts
            targets = f"({grads[0]},)" if several and len(grads) == 1 else ", ".join(grads)
            lines.append(f"{targets} = {call}")
            results |= dict(zip(variant.computed, grads, strict=True))
        names = [a.name for a in self.schema.arguments]
        values = [results.get(name, "None") for name in names]
        lines.append(f"return {', '.join(values)}")
        return lines

    def passed_on(self, name: str) -> str:
        if not self.broadcasts:
            return GRADIENT
        return f"{GRADIENT}.sum_to_size(ctx.shapes[{self.tensors.index(name)}])"

    def backward_in_torch(self, backward: Backward) -> str:
        return python_text.function(
            f"_{backward.name.removeprefix(self.name + '_')}_in_torch",
            backward.arguments,
            *(backward.variant.backward, backward.variant.names, self.in_python, GRADIENT),
        )

    def registrations(self) -> str:
        names = [self.name, *(b.name for b in self.backwards)]
        fakes = [f'registration.register_fake("extension_cpp::{name}")' for name in names]
        vmaps = [f'registration.register_vmap("extension_cpp::{name}")' for name in names]
        own = f'"extension_cpp::{self.name}", _backward, setup_context=_setup_context'
        autograd = [f"registration.register_autograd({own})"]
        for b in self.backwards:
            reference = f"_{b.name.removeprefix(self.name + '_')}_in_torch"
            autograd.append(
                f'registration.register_autograd("extension_cpp::{b.name}", reference={reference})'
            )
        return "\n".join([*fakes, *autograd, *vmaps])

    # ----- spec

    def spec(self) -> str:
        imports = "from extension_cpp.testing import OpSpec"
        samples, given = "", ""
        if self.needs_samples:
            imports += ", Sample"
            samples, given = f"{self.samples()}\n\n", ", samples=samples"
        text = f"{imports}\n{self.definition.source}\n\n{samples}"
        text += f'spec = OpSpec(name="{self.name}", reference={self.name}{given})\n'
        future = "from __future__ import annotations\n"
        return future + text.replace(future, "") if future in text else text

    @property
    def needs_samples(self) -> bool:
        usual = all(values == RANGES[0] for values in self.verified.ranges.values())
        return not usual or self.verified.numbers is not None

    def samples(self) -> str:
        """Calls with values for which the definition is defined."""
        numbers = self.verified.numbers
        if numbers is None:
            numbers = {
                a.name: (float(a.default) if a.default else 1.75)
                for a in self.schema.settings
                if a.type != "bool"
            }
        lines = []
        shapes = ["shape"] * len(self.tensors)
        calls = [(shapes, True)]
        if self.broadcasts:
            calls.append((["shape", *(["shape[1:]"] * (len(shapes) - 1))], False))
        for chosen, flag in calls:
            lines.append(f"    yield {self.sample(chosen, numbers, flag, absent=False)}")
        if self.optional:
            lines.append(f"    yield {self.sample(shapes, numbers, False, absent=True)}")
        elif any(a.type == "bool" for a in self.schema.settings) and not self.broadcasts:
            lines.append(f"    yield {self.sample(shapes, numbers, False, absent=False)}")
        where = (
            " for which it is defined"
            if any(r != RANGES[0] for r in self.verified.ranges.values())
            else " of its own for each number"
        )
        return f"# With values{where}.\ndef samples(make, shape):\n" + "\n".join(lines) + "\n"

    def sample(
        self, shapes: Sequence[str], numbers: dict[str, float], flag: bool, absent: bool
    ) -> str:
        values = []
        for a in self.schema.arguments:
            if a.is_tensor:
                low, high = self.verified.ranges[a.name]
                bounds = "" if (low, high) == RANGES[0] else f", low={low}, high={high}"
                shape = shapes[self.tensors.index(a.name)]
                missing = absent and a.name in self.optional
                values.append("None" if missing else f"make({shape}{bounds})")
            else:
                values.append(str(flag) if a.type == "bool" else repr(numbers[a.name]))
        return f"Sample({', '.join(values)})"


def function(name: str, parameters: Sequence[str], lines: Iterable[str]) -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return f"def {name}({', '.join(parameters)}):\n{body}\n"


def indented(text: str) -> str:
    return text.replace("\n", "\n    ").replace("\n    \n", "\n\n")


def wrapped(text: str, first: str, others: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, 96, initial_indent=first, subsequent_indent=others)


def lower_first(text: str) -> str:
    return text[:1].lower() + text[1:] if not text[:2].isupper() else text


def listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last

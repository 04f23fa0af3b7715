"""The ops.py of a derived operator."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from naming import all_free
from schema import Argument

from . import packed_file, packed_words, python_text
from .body import Body, Branch
from .graph import WIDE, is_const
from .packed_plan import PackedBackward, PackedPlan
from .plan import Backward, Plan
from .refusal import taken
from .row_integers import picking
from .saved import OUTPUT
from .variant import Result, Variant

WIDTH = 96


def ops_file(plan: Plan) -> str:
    functions = [public(plan)]
    if plan.differentiable:
        functions += [setup_context(plan), backward(plan)]
    if plan.has_columns(plan.name):
        functions.append(forward_in_torch(plan))
    functions += [backward_in_torch(plan, b) for b in plan.backwards]
    text = "\n\n".join(functions)
    called = python_text.called(f"{text}\n{registrations(plan)}")
    if plan.name in called:
        raise taken(f"the operator's name '{plan.name}'")
    imports = ["import math"] if "math" in called else []
    imports += ["import torch", "from torch import Tensor"]
    if "F." in text:
        imports.append("import torch.nn.functional as F")
    ours = ["checks", *(["real_math"] if "real_math" in called else []), "registration"]
    imports.append(f"from extension_cpp import {', '.join(ours)}")
    if plan.of_all:
        imports.append("from extension_cpp.batching import by_example")
    if any(map(plan.has_columns, [op.name for op in plan.declared])):
        imports.append("from extension_cpp.batching import with_columns")
    if helpers := [name for name in ("stand_in", "to_sum") if f"{name}(" in text]:
        imports.append(f"from extension_cpp.broadcasting import {', '.join(helpers)}")
    if "sum_dtype(" in text:
        imports.append("from extension_cpp.shapes import sum_dtype")
    (first, *_) = plan.summary.splitlines()
    head = f"{plan.name}: {lower_first(first.removeprefix('Computes ').rstrip('.'))}."
    namespace = "_ops = torch.ops.extension_cpp"
    return "\n".join(
        [
            python_text.docstring(head),
            "",
            *imports,
            "",
            namespace,
            "",
            "",
            text,
            "",
            registrations(plan),
            "",
        ]
    )


def function(name: str, parameters: Sequence[str], lines: Sequence[str]) -> str:
    return "\n".join([f"def {name}({', '.join(parameters)}):", *(f"    {x}" for x in lines), ""])


def lower_first(text: str) -> str:
    return text if text[:2].isupper() else text[:1].lower() + text[1:]


# ----- the public function


def public(plan: Plan) -> str:
    parameters = [a.python_parameter for a in plan.arguments]
    if plan.keyword_only:
        parameters.insert(-len(plan.keyword_only), "*")
    count = len(plan.results)
    result = "Tensor" if count == 1 else f"tuple[{', '.join(['Tensor'] * count)}]"
    result = "None" if plan.written else result
    call = f"_ops.{plan.name}({plan.passed}){results_of(plan)}"
    lines = [
        f"def {plan.name}({', '.join(parameters)}) -> {result}:",
        *textwrap.indent(python_text.docstring(docstring(plan) + "\n"), "    ").splitlines(),
        *(
            f'    checks.check_number("{plan.name}", "{name}", {name})'
            for name in plan.differentiated_numbers
        ),
        f"    {'' if plan.written else 'return '}{call}",
        "",
    ]
    return "\n".join(lines)


def results_of(plan: Plan) -> str:
    """What the public function takes of what the operator returns."""
    if not plan.statistics:
        return ""
    return "[0]" if len(plan.results) == 1 else f"[:{len(plan.results)}]"


def docstring(plan: Plan) -> str:
    several = len(plan.tensors) > 1
    arguments = [wrapped(f"{a.name}: {description(plan, a)}", "    ") for a in plan.arguments]
    raised = "a dtype, device or shape other than the above." if several else "another dtype."
    if plan.written:
        raised = f"{raised[:-1]}, or memory that is shared with another argument in part."
    lines = [
        *(plan.summary, "", "Half types are computed in float32 and rounded once.", ""),
        *([*said_of_statistics(plan), ""] if plan.statistics else []),
        *("Args:", *arguments, ""),
        *(SAID_OF_WRITES if plan.written else ["Returns:", wrapped(returned_tensors(plan)), ""]),
        *("Raises:", wrapped(f"RuntimeError: {raised}", "    ")),
    ]
    if numbers := plan.differentiated_numbers:
        named = " or ".join(f"`{name}`" for name in numbers)
        lines.append(wrapped(f"TypeError: a tensor for {named} whose derivative would be lost."))
    return "\n".join(lines)


SAID_OF_WRITES = (
    "Not differentiable: a derivative through what it wrote raises an error.",
    "",
    "All is read before anything is written, an argument that is another one, too.",
    "",
    "Under `torch.compile` and `torch.export`, which see no memory, arguments may share it in",
    "part: these compute on copies where a write could reach another tensor.",
    "",
)


def said_of_statistics(plan: Plan) -> list[str]:
    of, shape = " of each row", f"of the shape `{plan.main}.shape[:-1]`"
    if plan.of_all:
        of, shape = "", "without dimensions"
    text = f"`torch.ops.extension_cpp.{plan.name}` returns {listed(plan.statistics)}{of} besides, "
    text += f"for the backward: constants {shape}, in float32 (float64 for float64)."
    return textwrap.wrap(text, WIDTH, break_on_hyphens=False)


def wrapped(text: str, hanging: str = "") -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent="    ",
        subsequent_indent=f"    {hanging}",
        break_on_hyphens=False,
    )


def returned_tensors(plan: Plan) -> str:
    """What the results are like, and what there is to say of their gradients."""
    text = returned_rows(plan) if plan.is_of_rows else returned_elements(plan)
    others = [said_of_dtype(plan, k) for k, result in enumerate(plan.results) if result.stored]
    text = " ".join([text, *others])
    if not plan.differentiable:
        return text
    if any(result.dtype for result in plan.results):
        alike = any(not result.stored for result in plan.results)
        has = f" has the dtype of `{plan.main}` and" if alike else ""
        text = f"{text} The rest{has} is differentiable to any order, in reverse and forward mode"
    else:
        text = f"{text} Differentiable to any order, in reverse and forward mode"
    text += ", but for what the definition detaches." if plan.stops_gradients else "."
    if plan.broadcasts:
        text += " The gradient of an input that was broadcast is a deterministic sum, accumulated "
        text += "in float32 (float64 for float64)."
    first = plan.variants[0]
    summed = [*first.columns, *first.single]
    if columns := [name for name in summed if name in {*first.computed, *first.shared}]:
        named = " and ".join(f"`{name}`" for name in columns)
        text += f" The gradient{'s' if len(columns) > 1 else ''} of {named} "
        text += "are deterministic sums" if len(columns) > 1 else "is a deterministic sum"
        text += " over the rows, accumulated in float32 (float64 for float64)."
    return text


WIDE_IN_WORDS = "float32 (float64 for float64)"
ORDINALS = ("first", "second", "third", "fourth")


def said_of_dtype(plan: Plan, k: int) -> str:
    """Of a result that has a dtype of its own."""
    name, dtype = plan.results[k].name, plan.results[k].dtype
    what = f"`{name}`"
    if len(plan.results) == 1:
        what = "It"
    elif name.startswith(OUTPUT):
        what = f"The {ORDINALS[k]}" if k < len(ORDINALS) else f"Number {k + 1}"
    if plan.results[k].is_wide:
        return f"{what} is {WIDE_IN_WORDS}."
    beyond = f"; values beyond {dtype} may become any" if k in plan.converted else ""
    return f"{what} is {dtype} and has no derivative{beyond}."


def names_of(results: Sequence[Result]) -> str:
    """`y` and `rstd`, where they have names."""
    names = [r.name for r in results if not r.name.startswith(OUTPUT)]
    return f" {listed(names)}" if len(names) == len(results) else ""


def listed(names: Sequence[str]) -> str:
    *others, last = (f"`{name}`" for name in names)
    return f"{', '.join(others)} and {last}" if others else last


def returned_elements(plan: Plan) -> str:
    main = plan.main
    if isinstance(plan, PackedPlan):
        return packed_words.returned(plan)
    others = [name for name in plan.tensors if name != main]
    alike = "shape" if any(result.stored for result in plan.results) else "shape and dtype"
    if plan.broadcasts:
        text = "of the common shape, in the layout on which the dense inputs of that shape agree"
    elif others:
        text = f"with the {alike} of `{main}`, in the layout on which the dense inputs agree"
    else:
        text = f"with the {alike} of `{main}`, and its layout where it is dense"
    text += ", else contiguous" if others else ""
    count = len(plan.results)
    what = "A tensor" if count == 1 else f"{counted(count)} tensors{names_of(plan.results)}, each"
    return f"{what} {text}."


def returned_rows(plan: Plan) -> str:
    """Of what looks at whole rows, or reduces over everything."""
    main, kind = plan.main, "" if plan.of_all else "contiguous "
    if len(plan.results) == 1:
        return f"A {kind}tensor with {shape_of_rows(plan.results[0], main)}."
    shapes = [shape_of_rows(result, main) for result in plan.results]
    tensors = f"{counted(len(shapes))} {kind}tensors"
    if len({*shapes}) == 1:
        return f"{tensors}{names_of(plan.results)}, each with {shapes[0]}."
    pairs = zip(plan.results, shapes, strict=True)
    return f"{tensors}: {'; '.join(f'`{r.name}` with {shape}' for r, shape in pairs)}."


def counted(number: int) -> str:
    return {2: "Two", 3: "Three", 4: "Four"}.get(number, str(number))


def shape_of_rows(result: Result, main: str) -> str:
    if not result.of_row:
        text = f"the shape of `{main}`" if result.stored else f"the shape and dtype of `{main}`"
        layout = ", in its layout where the dense inputs agree on it, else contiguous"
        return text + layout * result.of_all
    if result.of_all:
        return "no dimensions" + f" and the dtype of `{main}`" * (not result.stored)
    sizes = f"{main}.shape[:-1]" if result.is_squeezed else f"(*{main}.shape[:-1], 1)"
    return f"the shape `{sizes}`" + f" and the dtype of `{main}`" * (not result.stored)


def description(plan: Plan, a: Argument) -> str:
    """What the author says of an argument, and what holds for all operators."""
    main = plan.main
    if plan.is_of_rows and a.name in plan.variants[0].columns:
        otherwise = (
            f"; None counts as {number}"
            if (number := plan.variants[0].otherwise.get(a.name)) is not None
            else ""
        )
        what = "a value for each column, `(columns,)`"
        text = f"{of_dtype_beside(plan, a, what)}{otherwise}."
    elif shape := plan.variants[0].rows.get(a.name):
        shown = {"*rows 1": "(..., 1)", "*rows": "(...)", "1": "(1,)", "()": "()"}[shape]
        what = "one number" if a.name in plan.variants[0].single else "a value for each row"
        text = f"{of_dtype_beside(plan, a, f'{what}, `{shown}`')}."
        if a.name in picking(plan.variants[0]):
            text = f"{text.rstrip('.')}; NaN comes of one that is not in [0, columns)."
    elif isinstance(plan, PackedPlan) and a.is_tensor:
        text = packed_words.described(plan, a.name)
    elif plan.is_of_rows and a.name == main and not plan.of_all:
        text = "`(..., columns)`, of any layout, float64, float32, float16 or bfloat16, on CPU or "
        text += "CUDA."
    elif a.name == main:
        text = "of any shape and layout, float64, float32, float16 or bfloat16, on CPU or CUDA."
    elif a.is_tensor:
        shape = "shape, dtype"
        if plan.broadcasts:
            like = f"that of `{main}`" if len(plan.tensors) == 2 else "those of the others"
            shape = f"a shape that broadcasts with {like}; dtype"
        if dtype := said_dtype(plan, a):
            shape = shape.removesuffix(", dtype").removesuffix("; dtype")
            shape = f"{shape}, on the" if plan.broadcasts else f"the {shape} and on the"
            shape = f"{dtype}, of {shape}"
        else:
            shape = f"{shape} and"
        text = f"{shape} device of `{main}`{', or None' if a.type == 'Tensor?' else ''}."
    else:
        text = {
            "float": "a number; not differentiable.",
            "int": "an integer; not differentiable.",
            "bool": "a switch.",
        }[a.type]
    if a.name in plan.written:
        text = f"{text.rstrip('.')}; written to: no two of its elements may share memory."
    own = plan.described.get(a.name)
    return f"{own.rstrip('.')}; {text}" if own else text


def said_dtype(plan: Plan, a: Argument) -> str | None:
    """The dtype of its own that a tensor has, in words."""
    return WIDE_IN_WORDS if a.name in plan.variants[0].wide else plan.dtypes.get(a.name)


def of_dtype_beside(plan: Plan, a: Argument, what: str) -> str:
    """What a tensor of another shape than the rows' is like, of their dtype or its own."""
    if dtype := said_dtype(plan, a):
        return f"{dtype}, {what}, on the device of `{plan.main}`"
    return f"{what}; dtype and device of `{plan.main}`"


# ----- autograd


def context(plan: Plan, name: str) -> str:
    """Where the context of autograd keeps a number."""
    return f"ctx.{plan.in_context[name]}"


CONSTANTS = "# What is returned for the backward is constant: it gets no gradients of zeros."
FOUND_AGAIN = "# What the forward found is found again, for derivatives by the inputs."


def setup_context(plan: Plan) -> str:
    kept = {a.name for b in plan.backwards for a in b.numbers}
    needed = {*plan.saved, *(plan.tensors if needs_shapes(plan) else plan.optional)}
    needed |= {plan.main} if plan.keeps_dtype else set()
    targets = [
        context(plan, a.name) if a.name in kept else a.name if a.name in needed else "_"
        for a in plan.arguments
    ]
    targets = targets[: len(plan.arguments) - len(plan.keyword_only)]
    lines = []
    if set(targets) != {"_"}:
        lines.append(f"{unpacked(targets)} = inputs")
    for a in plan.keyword_only:
        if a.name in kept:
            lines.append(f'{context(plan, a.name)} = keyword_only_inputs["{a.name}"]')
    constants = [f"output[{k}]" for k, result in enumerate(plan.results) if result.dtype]
    if plan.statistics or plan.kept:
        names = ["_"] * len(plan.results)
        for name, k in plan.kept.items():
            names[k] = name
        lines.append(f"{unpacked([*names, *plan.statistics])} = output")
        constants = [*plan.statistics, *constants]
    if plan.statistics or leaves_gradients_out(plan):
        lines.append("ctx.set_materialize_grads(False)")
    if constants:
        lines.append(f"ctx.mark_non_differentiable({', '.join(constants)})")
    if plan.saved:
        lines.append(f"ctx.save_for_backward({', '.join(plan.saved)})")
    lines += [f"ctx.dtype = {plan.main}.dtype"] if plan.keeps_dtype else []
    lines += [f"ctx.has_{name} = {name} is not None" for name in plan.optional]
    if needs_shapes(plan):
        for attribute in ("shape", "dtype") if plan.has_wide else ("shape",):
            values = [
                f"None if {name} is None else {name}.{attribute}"
                if name in plan.optional
                else f"{name}.{attribute}"
                for name in plan.tensors
            ]
            lines.append(f"ctx.{attribute}s = {', '.join(values)}")
    inputs = ["inputs", "keyword_only_inputs"] if plan.keyword_only else ["inputs"]
    made = function("_setup_context", ["ctx", *inputs, "output"], lines or ["pass"])
    return f"{CONSTANTS}\n{made}" if plan.statistics else made


def leaves_gradients_out(plan: Plan) -> bool:
    """Whether no zeros are made for gradients: of one result that may have one it is there."""
    return len(plan.differentiable) == 1 < len(plan.results)


def unpacked(names: Sequence[str]) -> str:
    return f"({names[0]},)" if len(names) == 1 else ", ".join(names)


def backward(plan: Plan) -> str:
    lines = [f"{unpacked(plan.saved)} = ctx.saved_tensors"] if plan.saved else []
    gradients = [str(result.gradient) for result in plan.differentiable]
    if leaves_gradients_out(plan) and not plan.statistics:
        lines += materialised(plan, gradients)
    first, *others = plan.variants
    for variant in others:
        given = [name for name in plan.optional if name in variant.tensors]
        conditions = [f"ctx.has_{name}" for name in given]
        conditions += [f"not ctx.has_{name}" for name in variant.absent]
        lines.append(f"if {' and '.join(conditions)}:")
        lines += [f"    {line}" for line in returned(plan, variant)]
    if plan.statistics:
        lines += materialised(plan, gradients)
    last = max(k for k, result in enumerate(plan.results) if not result.dtype)
    parameters = ["ctx"]
    for result in plan.results[: last + 1]:
        parameters.append(f"_{result.gradient}" if result.dtype else result.gradient)
    if plan.statistics or last + 1 < len(plan.results):
        parameters.append("*_")
    return function("_backward", parameters, [*lines, *returned(plan, first)])


def materialised(plan: Plan, gradients: Sequence[str]) -> list[str]:
    """The lines for results that are not used: of several they have gradients of zeros."""
    like = plan.like_results
    nones = ["None" for a in plan.arguments if not a.kwarg_only]
    lines = [f"if {' and '.join(f'{name} is None' for name in gradients)}:"]
    lines.append(f"    return {', '.join(nones)}" if len(nones) > 1 else "    return None")
    pairs = zip(plan.differentiable, gradients, strict=True)
    for result, name in pairs if len(gradients) > 1 else []:
        shape = f"{like}.shape[:-1]" if result.is_squeezed else f"(*{like}.shape[:-1], 1)"
        shape = "()" if plan.of_all else shape
        dtype = f", dtype=sum_dtype({like}.dtype)" if result.is_wide else ""
        if plan.variants[0].stored(like) == WIDE:
            dtype = "" if result.is_wide else ", dtype=ctx.dtype"
        zeros = f"torch.zeros_like({like}{dtype})"
        if result.of_row:
            zeros = f"{like}.new_zeros({shape}{dtype})"
        lines.append(f"{name} = {zeros} if {name} is None else {name}")
    return lines


def returned(plan: Plan, variant: Variant) -> list[str]:
    """The lines that return a gradient for every argument."""
    operator = plan.backward_of(variant)
    results = {
        name: passed_on(plan, variant, name, gradient)
        if operator is None or name not in operator.results
        else gradient
        for name, gradient in variant.passed_on.items()
    }
    names = [a.name for a in plan.arguments if not a.kwarg_only]
    if operator is None:
        comment = [] if results else ["# It is zero everywhere."]
        return [*comment, f"return {', '.join(results.get(name, 'None') for name in names)}"]
    function = f"_ops.{operator.name}"
    given = [*operator.given, *(context(plan, a.name) for a in operator.numbers)]
    call = f"{function}({', '.join(given)})"
    own = [*variant.computed, *variant.shared]
    conditions = {name: given_where(plan, variant, name) for name in own}
    shaped = [of_shape(plan, operator, name) for name in operator.unread]
    if name := variant.says_dtype:
        like = operator.like
        shaped.append(f"{name} = stand_in({like}, {like}.shape, ctx.dtype)")
    is_summed = any(name in variant.single for name in operator.results)
    if not (is_summed or variant.shared or any(conditions.values())) and (
        plan.tensors == operator.results == variant.computed == names
        or (names[:1] == operator.results and not results.keys() - {*names[:1]})
    ):
        nones = "".join(", None" for _ in names[len(operator.results) :])
        return [*shaped, f"return {call}{nones}"]
    others = [*plan.tensors, *plan.kept, *(str(result.gradient) for result in plan.results)]
    gradients = all_free({name: f"grad_{name}" for name in operator.results}, others)
    of_rows = {name: summed_over_rows(operator, name, g) for name, g in gradients.items()}
    results |= {name: of_rows[other] for name, other in variant.shared.items()}
    for name, gradient in of_rows.items():
        if operator.may_lack(name):
            gradient = f"{results[name]} if {name} is None else {gradient}"
        results[name] = gradient
    for name, condition in conditions.items():
        if condition:
            gradient = results[name]
            gradient = f"({gradient})" if " if " in gradient else gradient
            results[name] = f"{gradient} if {condition} else None"
    is_tuple = len(gradients) > 1
    targets = unpacked([*gradients.values()]) if is_tuple else gradients[operator.results[0]]
    values = [results.get(name, "None") for name in names]
    return [*shaped, f"{targets} = {call}", f"return {', '.join(values)}"]


def summed_over_rows(operator: Backward, name: str, gradient: str) -> str:
    """The gradient of a tensor of one number, of those that the backward operator returns."""
    shape = operator.variant.single.get(name)
    if shape is None:
        return gradient
    whole = f"{gradient}.sum()"
    if name not in operator.variant.wide:
        whole = f"{whole}.to({operator.of_own_dtype}.dtype)"
    return f"{whole}.reshape(1)" if shape == "1" else whole


def needs_shapes(plan: Plan) -> bool:
    """Whether gradients are summed to shapes that are those of no saved tensor."""
    for variant in plan.variants:
        operator = plan.backward_of(variant)
        summed = operator.results if operator else []
        if len(variant.tensors) > 1 and ({*variant.passed_on} - {*summed}):
            return plan.broadcasts
    return any(b.unread for b in plan.backwards)


def of_shape(plan: Plan, operator: Backward, name: str) -> str:
    """The line that makes what the backward operator takes for a tensor's shape."""
    k = plan.tensors.index(name)
    dtype = f", ctx.dtypes[{k}]" if plan.has_wide else ""
    unless = ""
    if (other := operator.variant.shared.get(name)) is not None:
        unless = f", unless=ctx.shapes[{plan.tensors.index(other)}]"
    function = "to_sum" if operator.may_lack(name) else "stand_in"
    return f"{name} = {function}({operator.gradients[0]}, ctx.shapes[{k}]{dtype}{unless})"


def given_where(plan: Plan, variant: Variant, name: str) -> str:
    """When a tensor has a gradient that is not zero everywhere; "" where that is always so.

    Forward mode takes no gradients that do not depend on those of the results.
    """

    def where(body: Body) -> str:
        if not isinstance(body, Branch):
            node = body[variant.tensors.index(name)]
            return str(not is_const(node.args[0] if node.op == "col_sum" else node, 0))
        yes, no, switch = where(body.yes), where(body.no), context(plan, body.switch)
        if yes == no:
            return yes
        if {yes, no} == {"True", "False"}:
            return switch if yes == "True" else f"not {switch}"
        return f"({yes} if {switch} else {no})"

    found = where(variant.gradients)
    parts = [f"ctx.has_{name}"] if name in variant.otherwise else []
    return " and ".join([*parts, *([found] if found != "True" else [])])


def passed_on(plan: Plan, variant: Variant, name: str, gradient: str) -> str:
    if not plan.broadcasts or len(variant.tensors) == 1:
        return gradient
    return f"{gradient}.sum_to_size(ctx.shapes[{plan.tensors.index(name)}])"


def forward_in_torch(plan: Plan) -> str:
    parameters = [a.name for a in plan.arguments]
    return in_torch(plan, "_in_torch", parameters, has_statistics=True)


def in_torch(plan: Plan, name: str, parameters: Sequence[str], has_statistics: bool = False) -> str:
    """The definition, as primitive operations; perhaps all that the operator returns."""

    def results(variant: Variant) -> Body:
        return variant.returned if has_statistics else variant.forward

    if isinstance(plan, PackedPlan):
        return packed_file.in_torch(plan, name, parameters)
    variant = plan.variants[0]
    body, names = results(variant), variant.names
    spelling = {a.name: a.name for a in plan.arguments}
    if len(plan.variants) > 1:
        # The last is that without any of them.
        *conditional, last = plan.variants
        body = results(last)
        for other in reversed(conditional):
            given = [f"{n} is not None" for n in plan.optional if n in other.tensors]
            condition = " and ".join(given)
            body, spelling[condition] = Branch(condition, results(other), body), condition
        names = {node: name for v in reversed(plan.variants) for node, name in v.names.items()}
    rounded = [not r.stored for r in plan.results]
    rounded += [False] * len(plan.statistics) if has_statistics else []
    return python_text.function(
        *(name, parameters, body, names, spelling),
        like=plan.main,
        in_wide=in_wide(plan, [n for n in variant.own if n not in variant.wide], rounded),
        unsqueezed=variant.squeezed,
        otherwise=variant.otherwise,
        of_rows=[
            *(".squeeze(-1)" if r.is_squeezed or r.of_all else "" for r in plan.results),
            *([".squeeze(-1).detach()"] * len(plan.statistics) if has_statistics else []),
        ],
        flattened=plan.tensors if plan.of_all else (),
    )


def in_wide(
    plan: Plan, tensors: Sequence[str], rounded: Sequence[bool], says_dtype: str = ""
) -> python_text.InWide | None:
    if not plan.has_wide:
        return None
    return python_text.InWide(tensors, plan.optional, rounded, says_dtype)


def backward_in_torch(plan: Plan, backward: Backward) -> str:
    if isinstance(plan, PackedPlan) and isinstance(backward, PackedBackward):
        return packed_file.backward_in_torch(plan, backward)
    variant = backward.variant
    spelling = {name: name for name in backward.arguments}
    formula = (backward.body, variant.names, spelling)
    text = python_text.function(
        backward.in_torch,
        backward.arguments,
        *formula,
        like=backward.like,
        in_wide=in_wide(
            plan,
            [n for n in backward.tensors if not (variant.stored(n) or n in variant.statistics)],
            [name not in variant.wide for name in backward.results],
            variant.says_dtype,
        ),
        otherwise={n: k for n, k in variant.otherwise.items() if n in backward.tensors},
        unsqueezed=[
            *(r.gradient for r in backward.differentiated if r.is_squeezed),
            *(r.gradient for r in backward.differentiated if r.of_all and r.of_row),
            *(name for name in variant.squeezed if name in backward.tensors),
        ],
        of_rows=variant.shapes_of_rows(backward.results),
        is_backward=True,
        flattened=[n for n in backward.tensors if n not in backward.rows] if plan.of_all else (),
        summed_to={n: backward.may_lack(n) for n in backward.results} if backward.sums else None,
    )
    return f"{FOUND_AGAIN}\n{text}" if variant.statistics else text


PROMOTES = (
    "# As PyTorch's arithmetic, which promotes: under autocast half and float32 meet in float32."
)


def registrations(plan: Plan) -> str:
    def register(what: str, *names: str, rest: str = "") -> str:
        ops = ", ".join(f'"extension_cpp::{name}"' for name in names)
        return f"registration.register_{what}({ops}{rest})"

    names = [op.name for op in plan.declared]
    functions = ["_in_torch", *(b.in_torch for b in plan.backwards)]
    columns = {
        name: f', with_columns("extension_cpp::{name}", {in_torch})'
        for name, in_torch in zip(names, functions, strict=True)
        if plan.has_columns(name)
    }
    plain = [name for name in names if name not in columns]
    if plan.of_all:  # whose line has no place for a batch
        plain, columns = [], {name: f', by_example("extension_cpp::{name}")' for name in names}
    if plan.written:
        return "\n".join(register(what, plan.name) for what in ("fake", "mutation", "vmap"))
    lines = [
        register("fake", *names),
        register("autograd", plan.name, rest=", _backward, setup_context=_setup_context")
        if plan.differentiable
        else register("no_autograd", plan.name),
        *(register("autograd", b.name, rest=f", reference={b.in_torch}") for b in plan.backwards),
        *(register("vmap", name, rest=rest) for name, rest in columns.items()),
        *([register("vmap", *plain)] if plain else []),
    ]
    if plan.autocast:
        lines += [PROMOTES, register("autocast", plan.name, rest=f', "{plan.autocast}"')]
    return "\n".join(lines)

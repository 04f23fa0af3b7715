"""Makes an operator's files out of a template's and a schema.

A template is real code for a schema of its own. cpp.py and python.py say how each place of it that
depends on the schema is written, for any schema: they give the same list of places for every
operator. Instantiating writes the list twice, for the template's schema and for the new one, and
replaces each piece of the first, wherever the template has it, by its counterpart. So the templates
hold the text, and those files only what varies; with its own schema a template comes out as it is,
which a test holds.
"""

from __future__ import annotations

import re
from pathlib import Path

from batching_rules import with_rules
from cpp import Cpp
from formatting import format_text
from given_shapes import check_line, documented, with_dtypes
from kinds import KINDS, PACKAGE, TEMPLATES, Kind, Options, notation
from naming import declared, spell, whole_words, with_stand_ins
from places import Places, backward_schema, shapes
from python import Python, Spec
from schema import Refusal, Schema


def instantiate(kind: str, schema: Schema, options: Options) -> dict[str, str]:
    """Returns the files of the new operator's folder, by name, formatted where the formatters are
    at hand. Schema and options are as fitted() returns them.
    """
    check_shapes(KINDS[kind], schema, options)
    own = KINDS[kind].schema
    as_it_is = Options(backward="operator" if options.own_backward else "torch")
    stand_ins, arguments, operator = with_stand_ins(schema)
    files = {"__init__.py": ""}
    for path in sorted((TEMPLATES / kind).glob("[!_]*.*")):
        make = {"ops.py": Python, "spec.py": Spec}.get(path.name, Cpp)
        old = make(own, KINDS[kind], as_it_is, backward_schema(KINDS[kind], own))
        new = make(stand_ins, KINDS[kind], options, backward_schema(KINDS[kind], schema))
        text = replace(adapt(path.name, path.read_text(), options), old, new)
        files[path.name.replace("my_op", schema.name)] = new.complete(path.name, text)
    files["ops.py"] = with_rules(files["ops.py"], KINDS[kind], schema, options)
    shared = "\n".join(path.read_text() for path in (PACKAGE / "csrc").rglob("*.*h"))
    files = spell(files, arguments, operator, declared(shared))
    files["ops.py"] = documented(files["ops.py"], schema, options)
    files = {name: format_text(name, text) for name, text in files.items()}
    return by_backend(files, schema.name, options)


def fitted(kind: str, schema: Schema, options: Options) -> tuple[Schema, Options]:
    """The schema and the options for the template, with what the line of shapes says of dtypes.

    Raises:
        Refusal: the template is not for the schema, or the line says nothing.
    """
    check_fits(kind, schema)
    return with_dtypes(schema, options)


def check_fits(kind: str, schema: Schema) -> None:
    if KINDS[kind].accepts(schema):
        return
    fitting = [name for name, other in KINDS.items() if other.accepts(schema)]
    raise Refusal(
        f"the template '{kind}' is for {KINDS[kind].fits}, which {schema.name} is not; "
        f"for its schema there {'is' if len(fitting) == 1 else 'are'}: {', '.join(fitting)}"
    )


def check_shapes(kind: Kind, schema: Schema, options: Options) -> None:
    """Refuses a line of shapes that the package would refuse when it is imported."""
    line = options.shapes or shapes(kind, schema)
    main = schema.main.name
    dtypes = (*notation()["DTYPES"], *notation()["RULES"])
    if not options.shapes and f":{main}" in line and main in dtypes:
        raise Refusal(f"the argument's name '{main}' means a dtype in the shapes: choose another")
    check_line(kind, schema, options)


def by_backend(files: dict[str, str], name: str, options: Options) -> dict[str, str]:
    """Parts a source for both backends where they differ: one is left out, or CUDA has its own."""
    both, cpu, cuda = f"{name}.cpp", f"{name}_cpu.cpp", f"{name}_cuda.cu"
    if both in files and (options.cuda or len(options.devices) == 1):
        files |= dict.fromkeys((cpu, cuda), files.pop(both))
    if options.no_cpu:
        files[cpu] = schemas_alone(files[cpu])
    if options.no_cuda:
        files.pop(cuda)
    elif options.cuda:
        files[cuda] = take_in(options.cuda, files[cuda])
    return files


def take_in(path: Path, generated: str) -> str:
    """Puts an existing CUDA source into the generated one: whole, and its launch is left to edit.

    One that registers the operator itself takes its place.
    """
    file = path.name
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(f"--cuda {path}: {error}") from None
    for header in re.findall(r"#\s*include\s*[<\"](torch/extension\.h|pybind11/[^>\"]*)", source):
        raise Refusal(
            f"{file} includes {header}, which asks for ATen and Python: leave out all that is "
            "about PyTorch (host functions of at::Tensor, PYBIND11_MODULE), and keep the kernels"
        )
    if "TORCH_LIBRARY_IMPL" in source:
        registered = re.compile(r'm\.impl\(\s*"(\w+)"')
        names = registered.findall(source)
        if missing := [name for name in registered.findall(generated) if name not in names]:
            raise Refusal(
                f"{file} registers operators, but not {' and '.join(missing)}. Add it, or take its "
                "TORCH_LIBRARY_IMPL out to have one generated; --no-grad and --backward torch need "
                "no backward operator"
            )
        return source
    bounds = r"(?:__launch_bounds__\([^)]*\)\s*)?"
    kernels = re.findall(rf"__global__\s+[^;{{(]*?{bounds}(\w+)\s*\(", source)
    if not kernels:
        raise Refusal(f"{file} has no kernel: no __global__ function, and no TORCH_LIBRARY_IMPL")
    if re.search(r"\bint\s+main\s*\(", source):
        raise Refusal(f"{file} has a main(): leave it out, the operator's host function is instead")
    own = source.removesuffix("\n")
    own = f"// clang-format off: {file}, as it was.\n{own}\n// clang-format on\n\n"
    # By its whole name, where the template has one of that name in the operator's namespace.
    hidden = [kernel for kernel in kernels if re.search(rf"\b{kernel}\b", generated)]
    names = [f"::{kernel}" if kernel in hidden else kernel for kernel in kernels]
    launches = ", ".join(f"{name}<<<...>>>" for name in names)
    comment = f"// EDIT: launch {launches} here, from {file}, in place of the template's kernel.\n"
    call = r"\s*(?=dispatch_floating\(|elementwise_into<|return (?:elementwise|rowwise|scanned)<)"
    text = re.sub(call, lambda _: f"\n  {comment}  ", generated, count=1)
    return format_text("kernel.cu", re.sub(r"(?m)^(?=namespace)", lambda _: own, text, count=1))


def adapt(file: str, text: str, options: Options) -> str:
    """Takes out of a template's file what the options leave out."""
    if file.endswith((".h", ".cpp", ".cu")):
        if not options.own_backward:
            text = re.sub(r"(inline )?const Operator kMyOpBackward\{[^;]*;\n", "", text)
            text = re.sub(r".*(kMyOpBackward\.schema|m\.impl\(\"my_op_backward\").*\n", "", text)
            text = drop_paragraphs(text, r"(?i)my_?op_?backward")
            text = re.sub(r"\n  HOST_DEVICE A backward\(.*\n| and its derivative(?=,)", "", text)
        return text
    if len(options.devices) == 1:
        text = text.replace("on CPU or CUDA", f"on {options.devices[0].upper()}")
    if not options.own_backward:
        text = text.replace(', "extension_cpp::my_op_backward")', ")")
        text = re.sub(r'.*"extension_cpp::my_op_backward".*\n', "", text)
        # What is the operator's reference otherwise.
        text = text.replace("_ops.my_op_backward", "_backward_in_torch")
        text = re.sub(r"(?<=# EDIT: the backward) operator(.*), from which.*", r",\1.", text)
    if options.no_grad:
        text = drop_paragraphs(text, r"^def _")
        text = re.sub(r"register_autograd\((.*?), _backward.*", r"register_no_autograd(\1)", text)
        text = re.sub(
            r"Differentiable to any order[^.]*\.",
            "Not differentiable: asking for a gradient is an error.",
            text,
        )
    return text


def schemas_alone(text: str) -> str:
    """A source for the CPU without its kernels: the schemas are defined there alone."""
    kernels = r"template|Tensor|void|std::tuple|TORCH_LIBRARY_IMPL"
    return drop_paragraphs(text, rf"^(?:{kernels}|#include \"cpu/)")


def drop_paragraphs(text: str, unwanted: str) -> str:
    """Drops what starts in the first column after a blank line where a pattern is found in it."""
    pieces = re.split(r"(?<=\n\n)(?=\S)", text)
    return "".join(x for x in pieces if not re.search(unwanted, x, re.M)).rstrip("\n") + "\n"


def pattern(fragment: str, block: bool) -> str:
    """A regular expression for the fragment, however it is wrapped."""
    tokens = re.findall(r"\w+|[^\w\s]", fragment)
    text = r"\s*".join(map(re.escape, tokens))
    # A word is a whole word, and formatters add a comma before a bracket that closes on a line of
    # its own.
    text = re.sub(r"\\s\*(\\[)\]}])", r"\\s*,?\\s*\1", text)
    text = re.sub(r"^(?=\w)|(?<=\w)$", r"\\b", text)
    if block:
        return rf"(?<=\n)[ \t]*{text}[ \t]*\n"
    if tokens[0] in ",*+":  # an operator goes with the white space before it
        text = rf"\s*{text}"
    return text


def replace(text: str, old: Places, new: Places) -> str:
    """Replaces the old operator's fragments and names by the new one's."""
    each = zip((False, True), old.fragments(), new.fragments(), strict=True)
    pairs = [
        (o, n, block) for block, os, ns in each for o, n in zip(os, ns, strict=True) if o.strip()
    ]
    # The longest first, for some are part of others.
    pairs.sort(key=lambda pair: -len(pair[0]))
    expression = re.compile("|".join(f"({pattern(o, block)})" for o, _, block in pairs))
    found: list[str] = []

    def keep(match: re.Match[str]) -> str:
        _, fragment, block = pairs[match.lastindex - 1]  # type: ignore[operator]
        start = match.start() if block else text.rfind("\n", 0, match.start()) + 1
        indent = re.match(r" *", text[start:])[0]  # type: ignore[index]
        lines = "".join(f"{indent}{line}\n" for line in fragment.splitlines())
        found.append(lines if block else lines.removeprefix(indent).removesuffix("\n"))
        return f"\0{len(found) - 1}\0"

    text = expression.sub(keep, text)
    # Names, outside of what was just written.
    prefixes = ("", "grad_", "contiguous_")
    names = {f"{prefix}{old.main.name}": f"{prefix}{new.main.name}" for prefix in prefixes}
    text = re.sub(whole_words(names), lambda match: names[match[0]], text)
    text = text.replace(old.name, new.name).replace(old.camel, new.camel)
    return re.sub(r"\0(\d+)\0", lambda match: found[int(match[1])], text)

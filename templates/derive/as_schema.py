"""A template's files for a definition, of which no formula is derived.

The definition gives the schema, is the reference, and has the derivatives: the operator's are those
that PyTorch takes of it. So it may be made of anything that PyTorch differentiates.
"""

from __future__ import annotations

import dataclasses
import re
import textwrap

from formatting import format_text
from given_shapes import returning
from instantiate import drop_paragraphs, fitted, instantiate
from kinds import KINDS, Options, sides
from places import shapes

from .definition import Definition, summary
from .ops_file import lower_first
from .python_text import docstring
from .refusal import NotDerived
from .variant import of_dtype

# What stands above the derivative.
COMMENT = """\
# EDIT: the definition's derivative. The definition is computed besides the kernel for it; a formula
# saves that: _setup_context and _backward, as in templates/{kind}/ops.py.
"""


def with_template(definition: Definition, kind: str, options: Options) -> dict[str, str]:
    """The files of an operator whose kernel is the template's.

    Raises:
        NotDerived: the template is one of results that no definition has, or of none.
        Refusal: the template does not take the schema.
    """
    if definition.written:
        raise NotDerived(
            f"--from with --template {kind}: the function writes to its arguments; leave it out, "
            f'or start from the schema, "{definition.head} -> ()"'
        )
    if KINDS[kind].schema.mutates:
        raise NotDerived(
            f"--from with --template {kind}: the function writes to no argument; start from the "
            "schema, Tensor(a!)"
        )
    if definition.said_shapes and options.shapes is None:
        raise NotDerived(
            f"--from with --template {kind}: an annotation says a shape, and that of the result is "
            "not known: say all of them by --shapes, *rows n, *rows 1 -> *rows n"
        )
    several = KINDS[kind].schema.outputs > 1
    if several and not KINDS[kind].lists:
        raise NotDerived(
            f"--from with --template {kind}: what the template returns besides its result no "
            "definition says; start from the schema"
        )
    dtypes = [definition.stored(a.name) for a in definition.schema.tensors]
    result_dtypes = definition.result_dtypes
    if (several or any(dtypes) or any(result_dtypes)) and options.shapes is None:
        # In plain PyTorch a number of the row has the dtype of the row.
        line = shapes(KINDS[kind], definition.schema).replace(":sum", "")
        said = dtypes, result_dtypes
        line = " -> ".join(
            ", ".join(map(of_dtype, *pair)) for pair in zip(sides(line), said, strict=True)
        )
        options = dataclasses.replace(options, shapes=line)
    schema, options = fitted(kind, definition.schema, options)
    files = instantiate(kind, schema, dataclasses.replace(options, backward="torch"))
    imported = f"from extension_cpp.operators.{schema.name}.definition import {schema.name}"
    ops, spec = files["ops.py"], files["spec.py"]
    if not options.no_grad:
        ops = drop_paragraphs(ops, r"^def (_setup_context|_backward|_backward_in_torch)\(")
        given = r"(\"extension_cpp::\w+\"), _backward, setup_context=_setup_context\s*"
        comment = COMMENT.format(kind=kind if several else "kernel")
        registered = rf"{comment}registration.register_autograd(\1, reference=_definition)"
        ops = re.sub(rf"registration.register_autograd\(\s*{given}\)", registered, ops)
        ops = ops.replace("import torch\n", f"import torch\n{imported} as _definition\n", 1)
    if several:  # all of which are for users
        ops = returning(ops, schema, options)
    text, _ = summary(definition)
    if text:
        (first, *_) = text.splitlines()
        head = f"{schema.name}: {lower_first(first.rstrip('.'))}."
        ops = re.sub(r'^"""EDIT: .*"""', lambda match: docstring(head), ops)
        text = textwrap.indent(text, "    ").strip()
        ops = re.sub(
            r'(?<=    )"""EDIT: .*((?s:.*?))"""', lambda match: docstring(text + match[1]), ops
        )
    reference = f"={schema.name}"
    if re.search(r"\bdetach\(|\bno_grad\(", definition.source):
        reference += ", stops_gradients=True"
    spec = drop_paragraphs(spec, r"^def (op_)?reference\(")
    spec = re.sub(r"\b(?:op_)?reference=(?:op_)?reference", f"reference{reference}", spec)
    files |= {"ops.py": ops, "spec.py": f"{imported}\n{spec}", "definition.py": definition.source}
    return {name: format_text(name, text) for name, text in files.items()}

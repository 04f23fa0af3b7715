"""Makes an operator from a function or a schema: it passes its tests before a line is edited.

    python templates/new_op.py --from softcap.py:softcap
    python templates/new_op.py --from scan.py:scan --template kernel --shapes "*rows n -> *rows n"
    python templates/new_op.py "softcap(Tensor x, float cap) -> Tensor"
    python templates/new_op.py "scan(Tensor x, int block=128) -> Tensor" --template kernel --no-grad
    python templates/new_op.py --remove softcap

templates/README.md says more.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from given_shapes import works_as_it_is
from instantiate import fitted, instantiate
from kinds import KINDS, TEMPLATES, Options
from places import backward_schema
from repository import Changes, Repository
from schema import Refusal, Schema, parse, stop


def main(argv: list[str] | None = None, root: Path = TEMPLATES.parent) -> None:
    options = parse_arguments(argv)
    changes = Changes(root)
    try:
        if options.shapes is not None and not options.shapes.strip():
            raise Refusal("--shapes says nothing: leave it out, or say the shape of every tensor")
        make = remove if options.remove is not None else derive if options.source else add
        changes, closing = make(Repository(root), options)
        plan = changes.show()
        if not options.dry_run:
            changes.apply()
        print(plan, closing, sep="\n" if closing else "")
    except Refusal as refusal:
        stop(f"new_op.py: {refusal}")
    except KeyboardInterrupt:
        done = "the changes were made" if changes.applied else "nothing was changed"
        raise SystemExit(f"new_op.py: stopped; {done}") from None


def parse_arguments(argv: list[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        description="Makes an operator from a function or a schema, or takes one out again.",
        epilog="More in templates/README.md.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "schema",
        nargs="?",
        default="",
        help='"name(Tensor x, float alpha=1.0) -> Tensor", as in torch.library',
    )
    what.add_argument(
        "--from",
        dest="source",
        metavar="FILE.py:FUNCTION",
        help="derive all of it from a function of tensors in PyTorch; with --template all but the "
        "kernel",
    )
    what.add_argument("--remove", metavar="NAME", help="take an operator out, whole")
    parser.add_argument(
        "--template",
        choices=sorted(KINDS),
        help="what to start from; default: by the schema",
    )
    parser.add_argument(
        "--shapes", metavar="LINE", help="of the tensors, as csrc/notation.h explains it"
    )
    parser.add_argument(
        "--cuda", metavar="FILE.cu", type=Path, help="an existing kernel source for the CUDA side"
    )
    backend = parser.add_mutually_exclusive_group()
    backend.add_argument("--no-cuda", action="store_true", help="for the CPU alone")
    backend.add_argument("--no-cpu", action="store_true", help="for CUDA alone")
    gradient = parser.add_mutually_exclusive_group()
    gradient.add_argument(
        "--no-grad", action="store_true", help="without derivatives; asking for one is an error"
    )
    gradient.add_argument(
        "--backward",
        choices=("operator", "torch"),
        help="a registered operator with kernels of its own (default), or made of torch calls",
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be done")
    options = parser.parse_args(argv, Options())
    derived = Options(source=options.source, shapes=options.shapes, dry_run=options.dry_run)
    if options.source and not options.template and options != derived:
        parser.error(
            "--from derives all of an operator, and takes --shapes and --dry-run alone, or "
            "--template for a kernel of your own"
        )
    if options.source and options.backward != "operator":
        parser.error("--from and --backward exclude each other: the derivative is the function's")
    if options.no_cuda and options.cuda:
        parser.error("--no-cuda and --cuda exclude each other")
    return options


def add(repository: Repository, options: Options) -> tuple[Changes, str]:
    """The changes, and what to say when they are made."""
    schema = parse(options.schema)
    kind = options.template or default_kind(schema, options.cuda is not None)
    schema, options = fitted(kind, schema, options)
    schemas = [schema.text]
    if options.own_backward and not schema.mutates:
        schemas.append(backward_schema(KINDS[kind], schema))
    repository.check_free(schemas)
    files = instantiate(kind, schema, options)
    works = works_as_it_is(KINDS[kind], schema, options)
    has_gradients = not (options.no_grad or schema.mutates)
    closing = next_steps(repository, schema.name, options, works, has_gradients)
    return repository.add(schema.name, files, schemas), closing


def derive(repository: Repository, options: Options) -> tuple[Changes, str]:
    """The changes, and what to say when they are made."""
    from derive.as_schema import with_template
    from derive.assemble import assemble
    from derive.definition import read

    definition = read(options.source, options.shapes)
    name = definition.name
    repository.check_free([name])
    closing = next_steps(repository, name, options)
    if options.template:
        files = with_template(definition, options.template, options)
        schemas = [definition.schema.text]
    else:
        derived = assemble(definition)
        files, schemas = derived.files, derived.schemas
        repository.check_free(schemas)
        closing = "".join(f"\n{line}\n" for line in derived.taken_for) + closing
    return repository.add(name, files, schemas), closing


def next_steps(
    repository: Repository,
    name: str,
    options: Options,
    works: bool = True,
    has_gradients: bool = True,
) -> str:
    """What to say when an operator is made, which passes its tests as it is or does not."""
    if options.dry_run:
        return ""
    folder = (repository.operators / name).relative_to(repository.root)
    what = f"what to edit is marked EDIT: (grep -rn EDIT: {folder}). "
    if not options.source and works:
        what += "It works as it is:"
    elif not options.source:
        gradients = " and the gradients in ops.py" if has_gradients else ""
        what += (
            "It does not work as it is: what it computes is the template's, for other shapes or "
            "dtypes than those given. Edit the kernel or formula first, then the reference in "
            f"spec.py{gradients}; until then this fails:"
        )
    elif options.template:
        what += "Until the kernel is yours, its values are not the function's:"
    else:
        what = "it agrees with its definition, and there is nothing to edit:"
    return (
        f"\nNext: {what}\n    make check OP={name}\n    python templates/new_op.py --remove {name}"
    )


def default_kind(schema: Schema, own_kernel: bool) -> str:
    """The simplest that takes the schema; for a kernel of one's own the one with raw pointers."""
    kernels = ["kernel", "multi_output_kernel", "inplace_kernel"]
    preferred = kernels * own_kernel + ["elementwise", "inplace", "multi_output"] + kernels
    return next((kind for kind in preferred if KINDS[kind].accepts(schema)), "elementwise")


def remove(repository: Repository, options: Options) -> tuple[Changes, str]:
    """The changes, and what to say when they are made."""
    assert options.remove is not None
    name = options.remove.removesuffix("/")  # as a shell completes it
    changes = repository.remove(name)
    uses = [f"    {use}" for use in repository.uses(name)]
    closing = [f"\nStill using {name}:", *uses] if uses else []
    closing += [] if options.dry_run else ["\nNext: make build"]
    return changes, "\n".join(closing)


if __name__ == "__main__":
    main()

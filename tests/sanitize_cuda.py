"""Calls of operators on the GPU, for compute-sanitizer: `make sanitize-cuda`, or OP=name for one.

Every sample of a spec, in every layout, with all its gradients; and as it is, with the gradient of
each tensor alone, for which there may be other kernels; in all dtypes. Nothing is compared.

PyTorch hands out memory in blocks of 512 bytes and more, so that an access just past a tensor goes
unnoticed. With `--exact`, each tensor has an allocation of its own, and there are calls with
inputs of whole words of 16 bytes alone: of others the loops in `csrc/cuda` read whole words of
which a part is the tensor's, the ends of which would be reported.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator

import torch

from extension_cpp import testing
from extension_cpp.battery.calls import samples
from extension_cpp.battery.case import Case, op_case
from extension_cpp.battery.tensors import gradients, random_like

WORD = 16  # bytes


def is_whole(case: Case) -> bool:
    """Whether every tensor is whole words, and begins at one."""
    return all(
        t.is_contiguous() and t.numel() * t.element_size() % WORD == 0 and not t.storage_offset()
        for t in case.tensors
    )


def calls(specs: Iterable[testing.OpSpec], device: str, *, exact: bool) -> Iterator[Case]:
    for spec in specs:
        for dtype in spec.dtypes if device in spec.devices else ():
            for shape in spec.shapes:
                for sample in samples(spec, device, dtype, shape):
                    case = op_case(spec, device, dtype, sample)
                    if exact and not is_whole(case):
                        continue
                    laid_out = () if exact else tuple(case.layouts())
                    yield from laid_out or (case,)  # what has no tensor has no layout
                    if case.order and len(case.wanted) > 1:
                        yield from (case.with_gradients([i]) for i in case.wanted)


def call(case: Case) -> None:
    with case.explain("the call", see="kernel"):
        inputs = case.copies()
        outputs = case.outputs_only(case(*inputs))
        outputs = [output for output in outputs if output.requires_grad]
        if case.order and outputs:
            gradients(outputs, [inputs[i] for i in case.wanted], random_like(outputs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*", help="names; all operators if there are none")
    parser.add_argument("--exact", action="store_true", help="an allocation for each tensor")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no GPU")
    if options.exact:
        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    specs = {spec.name: spec for spec in testing.find_specs()}
    if unknown := set(options.operators) - set(specs):
        parser.error(f"no operator {', '.join(sorted(unknown))}; there are {', '.join(specs)}")
    chosen = [specs[name] for name in options.operators or specs]
    count = dict.fromkeys((spec.name for spec in chosen), 0)
    # By this thread: another may still free what it kept of the last backward when Python ends,
    # which aborts the process.
    with torch.autograd.set_multithreading_enabled(False):
        for case in calls(chosen, "cuda", exact=options.exact):
            call(case)
            count[case.spec.name] += 1
    torch.cuda.synchronize()
    print(f"{sum(count.values())} calls")
    if without := [name for name, calls_of_it in count.items() if not calls_of_it]:
        # Of those that were named it is an error, unless none is whole, and of all together.
        said = f"no sample to call of {', '.join(without)}"
        is_error = not options.exact if options.operators else not any(count.values())
        if is_error:
            parser.error(said)
        print(said)


if __name__ == "__main__":
    main()

"""`make sanitize-cuda` needs a GPU; what it calls is the same on the CPU."""

import pytest
import sanitize_cuda

from extension_cpp.battery.calls import Recorder
from extension_cpp.battery.tensors import tensors_in
from extension_cpp.operators.fused_op.spec import spec


@pytest.mark.parametrize("exact", [False, True])
def test_the_operator_and_its_backward_are_called(exact: bool) -> None:
    with Recorder(spec.namespace) as recorder:
        for case in sanitize_cuda.calls([spec], "cpu", exact=exact):
            sanitize_cuda.call(case)
    called = {op.name().removeprefix("extension_cpp::") for op, _, _ in recorder.calls}
    assert called == {"fused_op", "fused_op_backward"}
    given = [t for op, args, _ in recorder.calls if op == spec.op for t in tensors_in(args)]
    strided = [t for t in given if not t.is_contiguous()]
    ragged = [t for t in given if t.numel() * t.element_size() % sanitize_cuda.WORD]
    assert (not strided and not ragged) if exact else (strided and ragged)

"""The battery over every operator, on every device there is. A new spec adds its tests by itself.

The checks stand in `extension_cpp/battery`. One check of one operator:
`pytest tests/test_operators.py -k "fused_op and strides"`.
"""

import inspect
import sys

import pytest
from process_state import unchanged_process

from extension_cpp import testing

SPECS = testing.find_specs()


def _id(value):
    if isinstance(value, testing.OpSpec):
        return value.name
    return str(value).removeprefix("torch.")


@pytest.fixture(autouse=True)
def _unchanged(_threads):
    """A check leaves the process as it found it, so that none depends on those before it."""
    # pytest has filters of its own for each phase of a test.
    with unchanged_process("warnings' filters"):
        yield


def over(check):
    """Parametrises a test by the operators, devices and dtypes that a check applies to."""
    names = [p for p in inspect.signature(check).parameters if p in ("spec", "device", "dtype")]
    cases = testing.CHECKS[check.__name__].arguments(SPECS)

    def parametrise(test):
        # A check for other devices, or for a kind of operator that is not there, makes no test
        # rather than a skipped one.
        test.__test__ = bool(cases)
        ids = ["-".join(map(_id, case)) for case in cases]
        return pytest.mark.parametrize(names, cases, ids=ids)(test)

    return parametrise


@over(testing.check_forward)
def test_forward(spec, device, dtype):
    testing.check_forward(spec, device, dtype)


@over(testing.check_backward)
def test_backward(spec, device, dtype):
    testing.check_backward(spec, device, dtype)


@over(testing.check_double_backward)
def test_double_backward(spec, device, dtype):
    testing.check_double_backward(spec, device, dtype)


@over(testing.check_layouts)
def test_layouts(spec, device, dtype):
    testing.check_layouts(spec, device, dtype)


@over(testing.check_gradcheck)
def test_gradcheck(spec, device):
    testing.check_gradcheck(spec, device)


@over(testing.check_opcheck)
def test_opcheck(spec, device):
    testing.check_opcheck(spec, device)


@over(testing.check_strides)
def test_strides(spec, device):
    testing.check_strides(spec, device)


@over(testing.check_side_effects)
def test_side_effects(spec, device):
    testing.check_side_effects(spec, device)


@over(testing.check_signature)
def test_signature(spec, device):
    testing.check_signature(spec, device)


@over(testing.check_registrations)
def test_registrations(spec, device):
    testing.check_registrations(spec, device)


@over(testing.check_bad_inputs)
def test_bad_inputs(spec, device):
    testing.check_bad_inputs(spec, device)


@over(testing.check_wrong_tensors)
def test_wrong_tensors(spec, device):
    testing.check_wrong_tensors(spec, device)


@over(testing.check_no_gradient)
def test_no_gradient(spec, device):
    testing.check_no_gradient(spec, device)


@over(testing.check_missing_backend)
def test_missing_backend(spec, device):
    testing.check_missing_backend(spec, device)


@over(testing.check_traffic)
def test_traffic(spec, device):
    testing.check_traffic(spec, device)


@over(testing.check_compile)
def test_compile(spec, device):
    testing.check_compile(spec, device)


@over(testing.check_inductor)
def test_inductor(spec, device):
    testing.check_inductor(spec, device)


@pytest.mark.slow
@over(testing.check_inductor)
def test_inductor_every_layout(spec, device):
    testing.check_inductor(spec, device, thorough=True)


@over(testing.check_mutation)
def test_mutation(spec, device):
    testing.check_mutation(spec, device)


@over(testing.check_dynamic)
def test_dynamic(spec, device):
    testing.check_dynamic(spec, device)


@over(testing.check_export)
def test_export(spec, device):
    testing.check_export(spec, device)


@over(testing.check_transforms)
def test_transforms(spec, device):
    testing.check_transforms(spec, device)


@over(testing.check_saved_tensors)
def test_saved_tensors(spec, device):
    testing.check_saved_tensors(spec, device)


@over(testing.check_compiled_transforms)
def test_compiled_transforms(spec, device):
    testing.check_compiled_transforms(spec, device)


@pytest.mark.slow
@over(testing.check_compiled_transforms)
def test_every_compiled_transform(spec, device):
    testing.check_compiled_transforms(spec, device, thorough=True)


@over(testing.check_vmap)
def test_vmap(spec, device):
    testing.check_vmap(spec, device)


@over(testing.check_autocast)
def test_autocast(spec, device):
    testing.check_autocast(spec, device)


@over(testing.check_determinism)
def test_determinism(spec, device, dtype):
    testing.check_determinism(spec, device, dtype)


@over(testing.check_memory)
def test_memory(spec, device):
    testing.check_memory(spec, device)


@over(testing.check_streams)
def test_streams(spec, device):
    testing.check_streams(spec, device)


@over(testing.check_cuda_graph)
def test_cuda_graph(spec, device):
    testing.check_cuda_graph(spec, device)


@over(testing.check_second_device)
def test_second_device(spec, device):
    testing.check_second_device(spec, device)


@over(testing.check_properties)
def test_properties(spec, device):
    testing.check_properties(spec, device)


@pytest.mark.parametrize("namespace", sorted({spec.namespace for spec in SPECS}))
def test_namespace(namespace):
    testing.check_namespace(namespace)


def test_every_check_runs():
    tests = vars(sys.modules[__name__])
    missing = [n for n in testing.CHECKS if n.replace("check_", "test_", 1) not in tests]
    assert not missing

"""The battery over every operator, on every device there is. A new spec adds its tests by itself.

The checks stand in `extension_cpp/battery`. Each makes a test here, `check_strides` that is called
`test_strides`; one that can be thorough makes another, which is slow. One check of one operator:
`pytest tests/test_operators.py -k "fused_op and strides"`.
"""

import functools
import inspect

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


def _test(check, **options):
    """A test of a check for the operators, devices and dtypes that it applies to."""

    @functools.wraps(check.run)
    def test(arguments):
        check.run(*arguments, **options)

    # What pytest is to ask for, in place of the check's own parameters.
    test.__signature__ = inspect.signature(lambda arguments: None)
    cases = check.arguments(SPECS)
    # A check for other devices, or for a kind of operator that is not there, makes no test rather
    # than a skipped one.
    test.__test__ = bool(cases)
    ids = ["-".join(map(_id, case)) for case in cases]
    return pytest.mark.parametrize("arguments", cases, ids=ids)(test)


for _name, _check in testing.CHECKS.items():
    _test_name = _name.replace("check_", "test_", 1)
    globals()[_test_name] = _test(_check)
    if "thorough" in inspect.signature(_check.run).parameters:
        globals()[f"{_test_name}_thorough"] = pytest.mark.slow(_test(_check, thorough=True))


@pytest.mark.parametrize("namespace", sorted({spec.namespace for spec in SPECS}))
def test_namespace(namespace):
    testing.check_namespace(namespace)

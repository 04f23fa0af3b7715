"""The battery is itself tested: it finds what is broken, and nothing where nothing is."""

import inspect

import pytest
from mutants import broken, sound

from extension_cpp import testing

SOUND = [sound.FusedOp, sound.ScaleInPlace, sound.Centre, sound.Round]
MUTANTS = [
    mutant
    for mutant in vars(broken).values()
    if inspect.isclass(mutant)
    and hasattr(mutant, "caught_by")
    and getattr(mutant, "only_on", "cpu") in testing.devices()
]
_operators = {}


def spec_of(operator):
    # An operator is defined once in a process.
    if operator not in _operators:
        _operators[operator] = operator()
    return _operators[operator].spec()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_caught(mutant):
    with pytest.raises(testing.CheckError) as caught:
        testing.check(spec_of(mutant), checks=[mutant.caught_by])
    assert mutant.says in str(caught.value)
    assert f"{mutant.name}: " in str(caught.value)
    assert "look at: " in str(caught.value)


# Each costs seconds; the operators of the package go through them.
COSTLY = {"check_opcheck", "check_compile", "check_compiled_transforms", "check_memory"}


@pytest.mark.parametrize("operator", SOUND, ids=lambda operator: operator.__name__)
def test_sound_operator_passes(operator):
    testing.check(spec_of(operator), checks=sorted(testing.CHECKS.keys() - COSTLY))


@pytest.mark.slow
@pytest.mark.parametrize("operator", SOUND, ids=lambda operator: operator.__name__)
def test_sound_operator_passes_everything(operator):
    testing.check(spec_of(operator), thorough=True)


def test_every_check_has_a_mutant():
    classes = [value for value in vars(broken).values() if inspect.isclass(value)]
    caught_by = {getattr(mutant, "caught_by", None) for mutant in classes}
    # A second device is rare, and what Dynamo makes of a transform is its own.
    assert testing.CHECKS.keys() - caught_by == {"check_second_device", "check_compiled_transforms"}


def test_unknown_check():
    with pytest.raises(ValueError, match="no check is called"):
        testing.check(spec_of(sound.Round), checks=["check_froward"])

"""The files of a derived operator."""

from __future__ import annotations

from dataclasses import dataclass

from formatting import format_text

from .cpp_file import cpp_file
from .definition import Definition
from .derived import derive
from .ops_file import ops_file
from .plan import Plan
from .spec_file import spec_file
from .verify import Disagrees, verify


@dataclass
class Assembled:
    """An operator's files, by name, and the schemas that they register."""

    files: dict[str, str]
    schemas: list[str]


def assemble(definition: Definition) -> Assembled:
    """Derives an operator.

    Raises:
        NotDerived: that cannot be done; says why.
    """
    plan = planned(definition)
    files = {name: format_text(name, text) for name, text in texts(plan).items()}
    return Assembled(files, [op.schema for op in plan.declared])


def planned(definition: Definition) -> Plan:
    """What is to be printed, once it agrees with the definition."""
    # As PyTorch's is, then as one that is equal to it: what a definition says twice is computed
    # once, and what a row has in common stands outside of its sums.
    for factored, nan_is_infinite in ((True, False), (False, False), (True, True)):
        variants = derive(definition, factored)
        try:
            return Plan(definition, variants, verify(definition, variants, nan_is_infinite))
        except Disagrees as error:
            refusal = error
    raise refusal


def texts(plan: Plan) -> dict[str, str]:
    """The files, not yet formatted."""
    return {
        "__init__.py": "",
        f"{plan.name}.cpp": cpp_file(plan),
        "ops.py": ops_file(plan),
        "spec.py": spec_file(plan),
    }

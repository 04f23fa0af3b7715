"""The definitions of which the tests derive operators, by name, and their files."""

import re
import sys
from pathlib import Path

from scratch import ROOT

sys.path.insert(0, str(ROOT / "templates"))

from derive.assemble import planned, texts
from derive.definition import read

LISTS = [
    Path(__file__).with_name(f"{name}.py")
    for name in (
        "derived_functions",
        "derived_in_place_functions",
        "derived_packed_functions",
        "derived_row_functions",
        "derived_total_functions",
        "derived_wide_functions",
    )
]
PLACES = {
    name: f"{file}:{name}"
    for file in LISTS
    for name in re.findall(r"^def (\w+)\(", file.read_text(), re.M)
}
# Of a file with another.
HEAD = """
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

"""


def written(name: str) -> dict[str, str]:
    """The files that are derived of a definition, not yet formatted."""
    return texts(planned(read(PLACES[name])))

"""What every test of registrations starts from."""

from __future__ import annotations

import warnings

import pytest
import torch


@pytest.fixture(autouse=True)
def quiet_and_fresh():
    """Errors on warnings of ours; starts every test with an empty compile cache."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        yield

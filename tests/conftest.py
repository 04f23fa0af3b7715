import pytest
import torch

# Tests whose kernels are to be run by several threads.
THREADED = {"test_forward", "test_backward", "test_determinism"}


@pytest.fixture(autouse=True)
def _threads(request):
    """One thread: there is a test process per core, and waiting threads get in the way."""
    torch.set_num_threads(2 if request.node.originalname in THREADED else 1)

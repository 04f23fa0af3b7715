import os

import pytest
import torch

# One process of pytest-xdist per core: threads of each would only get in each other's way. Two at
# least, so that kernels are run by more than one.
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


@pytest.fixture(autouse=True, scope="session")
def _threads():
    torch.set_num_threads(max(2, (os.cpu_count() or 2) // WORKERS))

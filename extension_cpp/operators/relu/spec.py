import torch

from extension_cpp.operators.relu.ops import relu
from extension_cpp.testing import OpSpec

spec = OpSpec(name="relu", function=relu, reference=lambda input: torch.relu(input))

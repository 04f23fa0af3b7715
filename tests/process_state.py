"""What a test could leave behind in its process, for another to stumble over."""

import contextlib
import sys
import warnings

import torch
import torch._dynamo.config
import torch._functorch.config
import torch._inductor.config
import torch.autograd.forward_ad as fwAD
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

CONFIGS = (torch._dynamo.config, torch._functorch.config, torch._inductor.config)


def process_state():
    """By name, the modes, levels, settings and generators of PyTorch, and Python's own."""
    state = {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "forward grad mode": torch._C._is_fwd_grad_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "multithreaded backward": torch._C._is_multithreading_enabled(),
        "level of forward AD": fwAD._current_level,
        "excluded dispatch keys": torch._C._dispatch_tls_local_exclude_set().raw_repr(),
        "functorch transforms": torch._C._are_functorch_transforms_active(),
        "single-level functions": torch._C._functorch.get_single_level_autograd_function_allowed(),
        "dispatch modes": [type(m) for m in _get_current_dispatch_mode_stack()],
        "function modes": torch._C._len_torch_function_stack(),
        "saved-tensor hooks": torch._C._autograd._top_saved_tensors_default_hooks(False),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic, warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "filled memory": torch.utils.deterministic.fill_uninitialized_memory,
        "TF32 and its like": torch.get_float32_matmul_precision(),
        "autocast": [
            (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in ("cpu", "cuda")
        ],
        "autocast's cache": torch.is_autocast_cache_enabled(),
        "compiling": torch.compiler.is_compiling(),
        "torch.compile's stance": torch._dynamo.eval_frame._stance.stance,
        "torch.compile's code": bool(torch._dynamo.convert_frame.output_codes.seen),
        "torch's generator": torch.get_rng_state().tolist(),
        "warnings' filters": list(warnings.filters),
        "warnings' function": warnings.showwarning,
        "profiler": sys.getprofile(),
        "tracer": sys.gettrace(),
        "C stack for Dynamo": torch._dynamo.get_recursion_limit(),
    }
    for config in CONFIGS:
        for name, value in config.get_config_copy().items():
            state[f"{config.__name__}.{name}"] = value
    if torch.cuda.is_available():
        state["current GPU"] = torch.cuda.current_device()
        state["current stream"] = torch.cuda.current_stream()
        state["CUDA's generator"] = torch.cuda.get_rng_state().tolist()
    return state


def changes(before, after):
    """What differs, a line each."""
    return [
        f"{name}: {before[name]} before, {after[name]} after"
        for name in before
        if before[name] != after[name]
    ]


@contextlib.contextmanager
def unchanged_process(*but):
    """Fails where the state after differs from that before, in more than what is named."""
    torch.compiler.reset()  # what tests before this one compiled is not to be kept
    before = process_state()
    yield
    found = [line for line in changes(before, process_state()) if line.split(":")[0] not in but]
    assert not found, "left behind in the process:\n" + "\n".join(found)

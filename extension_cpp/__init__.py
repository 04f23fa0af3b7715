"""PyTorch operators in C++ and CUDA: functions in `extension_cpp.ops`, modules in `.nn`."""

from extension_cpp import _loader

__version__ = "0.1.0"

# `python -m extension_cpp.testing` builds the libraries before it loads them.
if not _loader.running_as_program(f"{__name__}.testing"):
    try:
        _loader.load()
        # The operators are registered by now; these modules add what is Python about them.
        from extension_cpp import nn as nn
        from extension_cpp import ops as ops
    except ImportError as error:
        # `python -m extension_cpp` imports this file first, and is there to explain the error.
        if not _loader.running_as_program(__name__):
            raise
        _loader.failure = error

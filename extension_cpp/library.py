"""The former place of :mod:`extension_cpp.registration`."""

from extension_cpp.registration import *  # noqa: F403

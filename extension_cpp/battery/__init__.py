"""The checks of extension_cpp.testing, one module per topic."""

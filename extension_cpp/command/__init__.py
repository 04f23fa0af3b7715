"""`python -m extension_cpp.testing`: builds what changed, checks one operator, and times it."""

"""Operators to test the battery with: sound ones, and the same broken in one place each."""

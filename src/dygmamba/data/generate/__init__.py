"""Synthetic event streams with a known forgetting law."""

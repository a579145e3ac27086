"""Synthetic event streams with a known decay law."""

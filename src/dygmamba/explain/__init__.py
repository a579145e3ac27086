"""Explanations: which past events and features moved a score, and what a model has learned to forget."""

"""Requests: the arguments of the public calls, a dataclass for each, checked in one place.

Python functions, commands and worker processes build the same request. No module here imports torch, numba or pyarrow,
so that a mistake is reported at once.
"""

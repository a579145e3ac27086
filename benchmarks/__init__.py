"""Benchmarks, run from a checkout: each checks a fast path against its reference before it times both."""

"""Audit of a dataset or a model: what a test period can show, and what a score depends on.

The package is not called `audit`, because it would hide the function `dygmamba.audit`.
"""

"""Benchmarks of `dygmamba bench NAME`: the module NAME has `run(device, log)`, which returns the rows of a table.

A module with `write(rows, folder)` also writes the table and a chart to files.
"""

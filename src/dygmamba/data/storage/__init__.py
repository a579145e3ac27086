"""Datasets on disk: file format, versions, memory-mapped columns, lookup by name, export and conversion."""

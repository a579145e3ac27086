"""Runs on disk by name, and the list of them, without torch and pyarrow."""

from dygmamba.runs.run_list import list_runs as list_runs
from dygmamba.runs.run_names import find_run as find_run

"""Check the arguments of public functions: what the modules of the api use of it."""

from dygmamba.core.argument_types import check_arguments as check_arguments
from dygmamba.runs.run_names import get_run_path as get_run_path

"""Check the arguments of public functions: the part of `core.argument_types` that the modules of the api use."""

from dygmamba.core.argument_types import check_arguments as check_arguments
from dygmamba.core.argument_types import get_run_path as get_run_path

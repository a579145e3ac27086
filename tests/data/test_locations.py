"""Valid names of datasets."""

import pytest

from dygmamba.core.errors import ConfigError
from dygmamba.data.storage.locations import check_dataset_name
from raising import raises


@pytest.mark.parametrize("name", ["..", "...", "a/b", "/etc/x", "a\0", "a\n", "\x1b[2J", "", "-x", "é" * 101])
def test_a_name_cannot_leave_its_folder(name):
    """Names with separators, control characters or too many bytes are refused."""
    with raises("invalid-dataset-name", ConfigError):
        check_dataset_name(name)

"""What can name a dataset."""

import pytest

from dygmamba.core.errors import ConfigError
from dygmamba.data.storage.dataset import checked_name


@pytest.mark.parametrize("name", ["..", "...", "a/b", "/etc/x", "a\0", "a\n", "\x1b[2J", "", "-x", "é" * 101])
def test_a_name_leads_out_of_no_folder(name):
    """What climbs, hides, steers a terminal or is too long names no dataset."""
    with pytest.raises(ConfigError, match="cannot name a dataset"):
        checked_name(name)

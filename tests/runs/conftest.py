import pytest

from trained import copy_run


@pytest.fixture(scope="session")
def trained(trees_run, tmp_path_factory):
    """The directory of a run of two trees; copies of it lie beside it, where they find its dataset."""
    return copy_run(trees_run, tmp_path_factory.mktemp("runs")).path

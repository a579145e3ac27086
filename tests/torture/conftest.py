"""One undisturbed run for all; in the long mode no test is cut off."""

import pytest

from torture_cases import CPU, SECONDS, SETTINGS, state, tiny_dataset


def pytest_collection_modifyitems(items):
    for item in items:
        if "torture" in item.path.parts:
            item.add_marker(pytest.mark.torture)
            if SECONDS:
                item.add_marker(pytest.mark.timeout(0))


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A data folder with the dataset `tiny`."""
    folder = tmp_path_factory.mktemp("data")
    tiny_dataset(folder)
    return folder


@pytest.fixture(scope="session")
def dataset(data):
    from dygmamba.data.library import open_dataset

    return open_dataset("tiny", data)


@pytest.fixture(scope="session")
def whole(dataset, tmp_path_factory):
    """A run that nobody disturbed."""
    from dygmamba.runs.link import start_link_run

    fit = start_link_run(dataset, "dyg-mamba", 0, SETTINGS, CPU, tmp_path_factory.mktemp("whole"))
    fit()
    return fit.run


@pytest.fixture(scope="session")
def expected(whole):
    """What every disturbed run must end as."""
    return state(whole)

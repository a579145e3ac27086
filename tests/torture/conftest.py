"""One undisturbed run for all; in the long mode no test is cut off."""

import pytest

from torture_cases import CPU, SECONDS, SETTINGS, TALLY, state, tiny_dataset

FINE = {"rounds", "kills", "cuts", "done", "refused"}  # all else that is counted is a failure


def pytest_collection_modifyitems(items):
    for item in items:
        if "torture" in item.path.parts:
            item.add_marker(pytest.mark.torture)
            if SECONDS:
                item.add_marker(pytest.mark.timeout(0))


def pytest_terminal_summary(terminalreporter):
    """What was tried and what came of it, in the long mode."""
    if not (SECONDS and TALLY):
        return
    terminalreporter.section("torture")
    line = "{:<36} {:>8} {:>8} {:>8} {:>8}  {}".format
    terminalreporter.write_line(line("family", "rounds", "kills", "done", "refused", "wrong"))
    for name, found in sorted(TALLY.items()):
        wrong = ", ".join(f"{count} {what}" for what, count in found.items() if what not in FINE) or "0"
        figures = (found["rounds"], found["kills"] + found["cuts"], found["done"], found["refused"])
        terminalreporter.write_line(line(name, *figures, wrong))
    inputs = sum(found["done"] + found["refused"] for found in TALLY.values())
    kills = sum(found["kills"] for found in TALLY.values())
    cuts = sum(found["rounds"] for name, found in TALLY.items() if name.startswith("power cut"))
    terminalreporter.write_line(f"in all: {kills:,} kills, {cuts:,} power cuts, {inputs:,} fuzzed inputs")


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A data folder with the dataset `tiny`."""
    folder = tmp_path_factory.mktemp("data")
    tiny_dataset(folder)
    return folder


@pytest.fixture(scope="session")
def dataset(data):
    from dygmamba.data.storage.library import open_dataset

    return open_dataset("tiny", data)


@pytest.fixture(scope="session")
def whole(dataset, tmp_path_factory):
    """A run that nobody disturbed."""
    from dygmamba.runs.link_training import start_link_run

    fit = start_link_run(dataset, "dyg-mamba", 0, SETTINGS, CPU, tmp_path_factory.mktemp("whole"))
    fit()
    return fit.run


@pytest.fixture(scope="session")
def expected(whole):
    """What every disturbed run must end as."""
    return state(whole)

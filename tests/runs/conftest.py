"""A small trained run that tests of foreign and crafted directories copy."""

import pytest

import dygmamba as dm


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The directory of a run of two trees; copies of it lie beside it, where they find its dataset."""
    data = dm.generate(nodes=30, events=300, communities=3)
    out = tmp_path_factory.mktemp("trained") / "runs"
    return dm.train(data, "trees", epochs=1, rounds=2, device="cpu", out=out)[0].path

"""Rankings in both directions: destinations of a source, and sources of a destination."""

import pytest

import dygmamba as dm
from dygmamba.core.errors import ConfigError
from trained import TREES

TICKETS = [(f"t{k}", f"agent{k % 3}", f"2024-03-{1 + k // 10:02d}T{k % 10:02d}:00") for k in range(200)]


@pytest.fixture(scope="module")
def helpdesk(tmp_path_factory):
    """A run on tickets and agents, which share no id; every ticket has one event."""
    data = dm.read(TICKETS, bipartite=True, name="helpdesk")
    (run,) = dm.train(data, "trees", out=tmp_path_factory.mktemp("helpdesk"), **TREES)
    return run


def test_ranked_sources_have_the_scores_of_their_pairs(helpdesk):
    """For all destinations: sources by falling score, which is that of the pair; each one has an event as a source."""
    table = helpdesk.rank(destinations=["agent1", "agent2"], k=5).to_pylist()
    assert [(row["dst"], row["rank"]) for row in table] == [
        (agent, rank) for agent in ("agent1", "agent2") for rank in range(1, 6)
    ]
    assert all(row["src"].startswith("t") for row in table)
    scored = helpdesk.score([(row["src"], row["dst"]) for row in table]).to_pylist()
    # scores are compared in 32 bits
    assert [row["score"] for row in table] == pytest.approx([row["score"] for row in scored], rel=1e-5)
    every = helpdesk.rank(destinations="agent1", k=200).to_pylist()
    assert {row["src"] for row in every} == {ticket for ticket, _, _ in TICKETS}
    assert sum(row["probability"] for row in every) == pytest.approx(1)


def test_only_given_and_new_sources_are_ranked(helpdesk):
    """Candidates are ids of sources; those that the destination met are left out on demand."""
    kept = helpdesk.rank(destinations="agent1", candidates=["t1", "t2", "t4"], only_new=True).to_pylist()
    assert [row["src"] for row in kept] == ["t2"]  # agent1 took t1 and t4


def test_one_side_is_given(helpdesk):
    """Neither and both are one sentence; an id of the other side is a node without events, with a warning."""
    for given in ({}, {"sources": "t1", "destinations": "agent1"}):
        with pytest.raises(ConfigError, match="either `sources`"):
            helpdesk.rank(**given)
    found = helpdesk._predictor.rank(None, "t1", 3)
    assert found.wrong_sides.only_sources == ("t1",)

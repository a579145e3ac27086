"""What users ask of a live state: the tables of a predictor that reads all events at once."""

import pytest

from contract_cases import BLENDED, build
from dygmamba.explain.pairs import explain_pair
from dygmamba.live.state import LiveState
from dygmamba.models.classifiers import NodeClassifier
from live_cases import first_events, make_dataset, predictor_of, with_all

END = first_events()[-1][2]
LATER = [
    ("0", "3", END + 1, 1.0, "a"),
    ("2", "0", END - 4, 0.5, "b"),  # late
    ("5", "5", END + 1, 1.0, "c"),
    ("3", "2", END + 1, 0.0, "a"),
]
NEW = [("unseen", "2", END - 4, 0.5, "b"), ("4", "unseen", END + 1, 1.0, "c")]


def ask_links(predictor):
    """Tables of scores and rankings, with and without a time, and an explanation."""
    yield predictor.score([("0", "3"), ("unseen", "2"), ("2", "absent")]).table
    yield predictor.score([("0", "3", END - 2), ("3", "2", END + 1)]).table
    yield predictor.top({"src": ["0", "unseen"]}, 3).table
    yield predictor.top({"src": ["0"]}, 3, only_new=True).table
    explanation = explain_pair(predictor, ("0", "3"), orders=1)
    yield explanation.logit, explanation.reasons


def ask_known_links(predictor):
    """The same of known nodes only."""
    yield predictor.score([("0", "3"), ("2", "5")]).table
    yield predictor.score([("0", "3", END - 2), ("3", "2", END + 1)]).table
    yield predictor.top({"src": ["0"]}, 3).table


def ask_nodes(predictor):
    """Classes of all nodes and of some."""
    yield predictor.classify().table
    yield predictor.classify({"src": ["0", "unseen"]}, k=1).table


def ask_embeddings(predictor):
    """Embeddings of nodes at two times."""
    yield predictor.embed({"src": ["0", "unseen"]}).table
    yield predictor.embed({"src": ["0"]}, END - 2).table


@pytest.mark.parametrize(
    ("case", "ask", "wrap"),
    [
        (("trees", {}), ask_links, None),
        (("dyg-mamba", {}), ask_links, None),
        (("dyg-mamba", {}), ask_embeddings, None),
        (("dyg-mamba", {}), ask_nodes, NodeClassifier),
        (("tgn", {}), ask_known_links, None),
        (BLENDED, ask_known_links, None),
    ],
    ids=["trees", "dyg-mamba", "embeddings", "nodes", "tgn", "blend"],
)
def test_tables_equal_those_of_all_events_at_once(case, ask, wrap):
    """Ids, times, scores, ranks, probabilities, reasons, bit for bit, after single appends."""
    dataset = make_dataset(first_events())
    scorer = build(case, dataset.store, dataset.store)
    known = predictor_of(scorer if wrap is None else wrap(scorer.encoder).eval(), dataset)
    events = [*LATER, *([] if scorer.stateful else NEW)]
    state = LiveState.open(known)
    for event in events:
        state.append(make_dataset([event]))
    with state.read() as live:
        for got, want in zip(ask(live), ask(with_all(known, dataset, events)), strict=True):
            assert got == want

"""Some answers of a run one by one, with reasons where the model has them: values that a page shows as they are."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

from dygmamba.data.store import Dataset
from dygmamba.data.tensor_file import seal_of
from dygmamba.engine.folder import RunFolder
from dygmamba.files.writing import write_text
from dygmamba.report.calendar import Calendar
from dygmamba.report.sheets import Cell, Grid, Section
from dygmamba.report.summary import node_names
from dygmamba.runs.tested import Answers
from dygmamba.sampling.view import PairBatch

NAME, VERSION = "examples.json", 1  # another version's are made again
USUAL, MISSED, ALARMS = 4, 3, 3
REASONS = 3  # of each

Reason = tuple[str, float]  # in words, and by how much it moves the logit
Why = Callable[[PairBatch], list[list[Reason]]]


@dataclass(frozen=True, slots=True)
class Example:
    """A question, the score it got, the truth, and why; ids and time as the user writes them."""

    kind: str
    src: str
    dst: str
    time: str
    score: float
    true: bool
    reasons: tuple[Reason, ...] = ()


def examples(answers: Answers, dataset: Dataset, why: Why | None = None) -> list[Example]:
    """Usual events evenly along the test, the real events that scored lowest, the random pairs that scored highest."""
    chosen = _chosen(answers)
    rows = torch.tensor([row for _, row in chosen], dtype=torch.int64)
    src, dst, when = answers.src[rows], answers.dst[rows], dataset.store.time[answers.event[rows]]
    said = why(PairBatch.of(src, dst, when)) if why and len(rows) else [[] for _ in chosen]
    calendar, score = Calendar.of(dataset), torch.sigmoid(answers.logit[rows])
    names = (node_names(dataset.ids, nodes.numpy()) for nodes in (src, dst))
    return [
        Example(
            kind,
            a,
            b,
            calendar.moment(float(when[at])),
            float(score[at]),
            bool(answers.label[row] > 0),
            tuple(said[at]),
        )
        for at, ((kind, row), a, b) in enumerate(zip(chosen, *names, strict=True))
    ]


def _chosen(answers: Answers) -> list[tuple[str, int]]:
    real = (answers.label > 0).nonzero()[:, 0]
    other = (answers.label <= 0).nonzero()[:, 0]
    missed = real[torch.argsort(answers.logit[real], stable=True)][:MISSED].tolist()
    alarms = other[torch.argsort(-answers.logit[other], stable=True)][:ALARMS].tolist()
    rest = [row for row in real.tolist() if row not in missed]
    places = (
        torch.linspace(0, len(rest) - 1, USUAL + 2).long()[1:-1].tolist() if len(rest) > USUAL + 2 else []
    )
    return (
        [("an event like others", rest[place]) for place in places]
        + [("missed: real, but a low score", row) for row in missed]
        + [("false alarm: not real, but a high score", row) for row in alarms]
    )


def examples_section(shown: Sequence[Example]) -> Section | None:
    """Ten answers of the test, in the user's own ids."""
    if not shown:
        return None
    explained = any(one.reasons for one in shown)
    columns = ("pair", "time", "score", "was it real", "what it shows", *(("why",) if explained else ()))
    rows = []
    for one in shown:
        right = one.true == (one.score >= 0.5)
        row = (
            Cell(f"{one.src} → {one.dst}"),
            Cell(one.time),
            Cell(f"{one.score:.3f}", "good" if right else "bad"),
            Cell("yes" if one.true else "no"),
            Cell(one.kind, "words"),
        )
        why = "; ".join(f"{said} ({by:+.2f})" for said, by in one.reasons[:REASONS])
        rows.append((*row, Cell(why, "words")) if explained else row)
    text = "Single answers of the test: some usual ones, and its worst mistakes of both kinds."
    if explained:
        text += " Behind a reason stands by how much it moves the logit of the score: above 0 speaks for the pair."
    return Section("Examples", text, (Grid("", "", columns, tuple(rows)),))


def save_examples(run: RunFolder, shown: Sequence[Example]) -> None:
    """Keep them in the run folder; they name the weights that answered."""
    values = {"version": VERSION, "weights": seal_of(run.best), "examples": [asdict(one) for one in shown]}
    write_text(run.path / NAME, json.dumps(values, indent=1) + "\n")


def load_examples(run: RunFolder) -> list[Example] | None:
    """What save_examples wrote, unless the run has other weights since; what cannot be read is made again."""
    try:
        values = json.loads((run.path / NAME).read_text("utf-8"))
        if (values["version"], values["weights"]) != (VERSION, seal_of(run.best)):
            return None
        pairs = [
            tuple((str(said), float(by)) for said, by in one.pop("reasons")) for one in values["examples"]
        ]
        return [Example(**one, reasons=why) for one, why in zip(values["examples"], pairs, strict=True)]
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return None

"""The score had events not happened, asked of the model: the strongest ones, and a set that turns the decision.

The decision is on which side of 0 the logit is; its supporters are the events that push it there.
"""

import torch

from dygmamba.explain.explanation import Without
from dygmamba.explain.shapley import Ledger, Shares

SETS = (1, 3, 10)  # of how many of the strongest supporters the score without is told
MOST_TURNED = 10  # events of a set that turns the decision


def probability(logit: float) -> float:
    """The logistic function, as `score` has it."""
    return float(torch.sigmoid(torch.tensor(logit, dtype=torch.float64)))


def supporters(ledger: Ledger, found: Shares) -> list[int]:
    """Single events that push the logit to the side of 0 where it is, the strongest first."""
    push = found.value if found.logit >= 0 else -found.value
    ranked = push.argsort(descending=True, stable=True).tolist()
    return [
        place for place in ranked if float(push[place]) > 0 and len(ledger.game.players[place].events) == 1
    ]


def supporting(ledger: Ledger, found: Shares) -> list[list[int]]:
    """The first of them, in sets of growing size."""
    ranked = supporters(ledger, found)
    return [ranked[:size] for size in sorted({min(size, len(ranked)) for size in SETS} - {0})]


def without(ledger: Ledger, found: Shares) -> tuple[Without, ...]:
    """The score without the strongest supporters of the decision: one, three and ten of them."""
    gone = supporting(ledger, found)
    return tuple(
        _set(ledger, places, logit) for places, logit in zip(gone, ledger.without(gone).tolist(), strict=True)
    )


def turned(ledger: Ledger, found: Shares) -> Without | None:
    """A set that turns the decision: greedily the event whose absence moves the logit most, then none too many.

    Where the decision stands without all of its supporters, none is looked for.
    """

    def over(logit: float) -> bool:
        return (logit >= 0) != (found.logit >= 0)

    gone: list[int] = []
    candidates, logit = supporters(ledger, found), found.logit
    if not over(float(ledger.without([candidates])[0])):
        return None
    while not over(logit):
        tried = [place for place in candidates if place not in gone][: ledger.game.tries]
        if not tried or len(gone) == MOST_TURNED:
            return None
        after = ledger.without([[*gone, place] for place in tried])
        best = int(after.argmin() if found.logit >= 0 else after.argmax())
        gone, logit = [*gone, tried[best]], float(after[best])
    while len(gone) > 1:
        fewer = [[other for other in gone if other != place] for place in gone]
        enough = [
            one for one, logit in zip(fewer, ledger.without(fewer).tolist(), strict=True) if over(logit)
        ]
        if not enough:
            break
        gone = enough[0]
    return _set(ledger, gone, float(ledger.without([gone])[0]))


def _set(ledger: Ledger, places: list[int], logit: float) -> Without:
    players = ledger.game.players
    events = tuple(event for place in places for event in players[place].events)
    return Without(events, logit, probability(logit))

"""An exam put to a scorer, as the published protocol does it or strictly."""

from jaxtyping import Float
from torch import Tensor

from dygmamba.engine.clock import Clock, Rule
from dygmamba.engine.stream import Stream
from dygmamba.engine.walk import Advance, Walk, unwatched
from dygmamba.models.base import Scorer
from dygmamba.tasks.base import Exam

STRICT = Rule()


def examine(
    scorer: Scorer,
    stream: Stream,
    exam: Exam,
    rule: Rule = STRICT,
    seed: int = 0,
    advance: Advance = unwatched,
) -> Float[Tensor, "p"]:
    """A score per pair of an exam, on the host; a memory is told of the periods before it and of its events."""
    clock = Clock.of(stream.store, (*exam.earlier, exam.events), rule.cell)
    before = len(clock.events) - len(exam.events)
    told = clock.seen(rule.visible, before + exam.number, exam.pairs.time)
    return Walk(scorer, stream, seed, clock)(exam.pairs, told, advance)

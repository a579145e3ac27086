"""What the last scan reads of each past event at the question's time: Theorem 2, exactly, for weights in use.

The scan's output at token k is a sum over the tokens up to it, y_k = sum_j C_k (A-bar_k ... A-bar_{j+1}) B-bar_j m_j
(before the skip and the gate). At the last token, where the question stands, that sum says how much of each event is
still there. A token's m_j also holds the few tokens before it (the convolution), and below it lie further blocks: the
parts are exact for this scan, and no division of the score.

Legend: q sequences, l tokens, e inner channels, n states.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from dygmamba.models.base import Scorer
from dygmamba.nn.ssm import Direction, Stack
from dygmamba.nn.steps import System
from dygmamba.nn.tokens import Tokens
from dygmamba.ops.scan.reference import RULES
from dygmamba.sampling.view import PairView


@dataclass(frozen=True, slots=True)
class Readout:
    """Of each sequence: the terms of the sum at its last token, and how much of the state each token left is kept."""

    part: Float64[Tensor, "q l e"]
    left: Float64[
        Tensor, "q l"
    ]  # A-bar_k ... A-bar_{j+1}, the mean over channels and states; 1 at the last token
    tokens: Tokens

    @property
    def output(self) -> Float64[Tensor, "q e"]:
        """The scan's output at the last token."""
        return self.part.sum(dim=1)

    @property
    def share(self) -> Float64[Tensor, "q l"]:
        """How much of the output each part is, along its direction: 1 over all tokens, the question's among them."""
        whole = self.output
        size = whole.square().sum(dim=1).clamp(min=torch.finfo(torch.float64).tiny)
        return torch.einsum("qle,qe->ql", self.part, whole) / size[:, None]


def readout(scorer: Scorer, view: PairView) -> Readout | None:
    """The last scan of a scorer on a view, sources first, then destinations; None where there is no scan."""
    stacks = (
        [part for part in scorer.modules() if isinstance(part, Stack)]
        if isinstance(scorer, nn.Module)
        else []
    )
    seen: list[tuple[Direction, tuple[Any, ...]]] = []
    paths = [_last_forward(stack) for stack in stacks]
    hooks = [_listening(path, seen) for path in paths]
    try:
        with torch.no_grad():
            scorer(view)
            found = [parts_of(path, *given) for path, given in seen]
    finally:
        for hook in hooks:
            hook.remove()
    if not found:
        return None
    columns = [(one.part, one.left, one.tokens) for one in found]
    part, left, tokens = zip(*columns, strict=True)
    return Readout(torch.cat(part), torch.cat(left), _joined(tokens))


@torch.no_grad()
def parts_of(path: Direction, x: Tensor, z: Tensor, tokens: Tokens) -> Readout:
    """The terms of Theorem 2 at each sequence's last token, in 64 bits from the scan's own inputs."""
    step: Any = path.step  # one of STEPS
    m, system = path.system(x, z, tokens)
    real = tokens.mask[..., None]
    delta = step.size(tokens, m).double().masked_fill(~real, 0)
    u, system = m.double().masked_fill(~real, 0), System(*(_double(one) for one in system))
    last = (tokens.length - 1).clamp(min=0)
    read = system.C[torch.arange(len(last), device=last.device), last]  # [q n]
    after = delta.flip(1).cumsum(1).flip(1) - delta  # [q l e], the steps between a token and the last one
    part, left = torch.zeros_like(u), torch.zeros_like(u)
    for state in range(system.A.shape[1]):  # one by one: [q l e n] of a long past would not fit
        A = system.A[:, state]
        kept = torch.exp(after * A)
        entered = RULES[step.rule](delta * A) * delta * system.B[..., state, None] * u
        part += read[:, None, None, state] * kept * entered
        left += kept
    return Readout(part, (left / system.A.shape[1]).mean(dim=2) * tokens.mask, tokens)


def _listening(path: Direction, seen: list[tuple[Direction, tuple[Any, ...]]]) -> Any:
    """Keep what a path is given; the handle ends it."""

    def keep(_: nn.Module, given: tuple[Any, ...]) -> None:
        seen.append((path, given))

    return path.register_forward_pre_hook(keep)


def _last_forward(stack: Stack) -> Direction:
    """The direction of the last block that reads from the oldest token to the newest."""
    return next(
        part for part in stack.blocks[-1].modules() if isinstance(part, Direction) and not part.reverse
    )


def _double(one: Tensor | None) -> Any:
    return None if one is None else one.double()


def _joined(parts: tuple[Tokens, ...]) -> Tokens:
    """Sequences of several stacks as one batch."""
    names = Tokens.__dataclass_fields__
    return Tokens(*(torch.cat([getattr(one, name) for one in parts]) for name in names))


def by_event(values: Float64[Tensor, "q l"], tokens: Tokens) -> list[dict[int, float]]:
    """For each sequence, what stands at each event's token."""
    return [
        dict(zip(event[here].tolist(), value[here].tolist(), strict=True))
        for event, value, here in zip(tokens.event, values, tokens.is_event, strict=True)
    ]

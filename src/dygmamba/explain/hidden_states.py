"""What the last scan reads of each past event at the question's time: Theorem 2, exactly, for weights in use.

The scan's output at token k is a sum over the tokens up to it, y_k = sum_j C_k (A-bar_k ... A-bar_{j+1}) B-bar_j m_j
(before the skip and the gate). At the last token, where the question stands, that sum says how much of each event is
still there. A token's m_j also holds the few tokens before it (the convolution), and below it lie further blocks: the
parts are exact for this scan, and no division of the score.

Legend: q sequences, l tokens, e inner channels, n states.

How alike a model's hidden states are: within each of the two sequences of a pair, and across them.

Legend: q sequences, l tokens or patches, d width.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.nn.functional import normalize

from dygmamba.core.errors import ConfigError
from dygmamba.models.base import Scorer
from dygmamba.nn.ssm import Direction, Stack
from dygmamba.nn.steps import System
from dygmamba.nn.tokens import Tokens
from dygmamba.ops.scan.reference import RULES
from dygmamba.runs.opening import OpenRun, get_encoder
from dygmamba.sampling.view import PairBatch, PairView


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


def read_last_scan(scorer: Scorer, view: PairView) -> Readout | None:
    """The last scan of a scorer on a view, sources first, then destinations; None where there is no scan."""
    stacks = (
        [part for part in scorer.modules() if isinstance(part, Stack)]
        if isinstance(scorer, nn.Module)
        else []
    )
    seen: list[tuple[Direction, tuple[Any, ...]]] = []
    paths = [_last_forward_direction(stack) for stack in stacks]
    hooks = [_capture_inputs(path, seen) for path in paths]
    try:
        with torch.no_grad():
            scorer(view)
            found = [compute_readout(path, *given) for path, given in seen]
    finally:
        for hook in hooks:
            hook.remove()
    if not found:
        return None
    columns = [(one.part, one.left, one.tokens) for one in found]
    part, left, tokens = zip(*columns, strict=True)
    return Readout(torch.cat(part), torch.cat(left), _concatenate_tokens(tokens))


@torch.no_grad()
def compute_readout(path: Direction, x: Tensor, z: Tensor, tokens: Tokens) -> Readout:
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


def _capture_inputs(path: Direction, seen: list[tuple[Direction, tuple[Any, ...]]]) -> Any:
    """Keep what a path is given; the handle ends it."""

    def keep(_: nn.Module, given: tuple[Any, ...]) -> None:
        seen.append((path, given))

    return path.register_forward_pre_hook(keep)


def _last_forward_direction(stack: Stack) -> Direction:
    """The direction of the last block that reads from the oldest token to the newest."""
    return next(
        part for part in stack.blocks[-1].modules() if isinstance(part, Direction) and not part.reverse
    )


def _double(one: Tensor | None) -> Any:
    return None if one is None else one.double()


def _concatenate_tokens(parts: tuple[Tokens, ...]) -> Tokens:
    """Sequences of several stacks as one batch."""
    names = Tokens.__dataclass_fields__
    return Tokens(*(torch.cat([getattr(one, name) for one in parts]) for name in names))


def values_by_event(values: Float64[Tensor, "q l"], tokens: Tokens) -> list[dict[int, float]]:
    """For each sequence, what stands at each event's token."""
    return [
        dict(zip(event[here].tolist(), value[here].tolist(), strict=True))
        for event, value, here in zip(tokens.event, values, tokens.is_event, strict=True)
    ]


DIGITS = 4


@runtime_checkable
class HasTokenStates(Protocol):
    """An encoder whose hidden states can be read."""

    def states(self, view: PairView) -> tuple[Float[Tensor, "q l d"], Tokens]:
        """The state of every token, sources first, then destinations."""
        ...


def measure_state_similarity(run: OpenRun, most: int) -> dict[str, Any]:
    """Cosine similarities for the test event whose two histories are longest; the last `most` tokens of each side."""
    encoder = get_encoder(run.scorer, run.folder)
    if not isinstance(encoder, HasTokenStates):
        raise ConfigError(
            f"model '{run.about['model']}' has no states of tokens to compare; take dyg-mamba or dygformer"
        )
    stream, test = run.stream, run.stream.split.test
    store = stream.store
    shortest = torch.minimum(
        *(
            stream.index.past(node[test].to(stream.device), store.time[test].to(stream.device))[1]
            for node in (store.src, store.dst)
        )
    )
    event = test[int(shortest.argmax())][None]
    pairs = PairBatch.of(store.src[event], store.dst[event], store.time[event]).to(stream.device)
    with torch.no_grad():
        states, tokens = encoder.states(stream.view(pairs, run.scorer.requests))
    per_state = -(-tokens.mask.shape[1] // states.shape[1])  # tokens of a patch
    sides = []
    for side in range(2):
        exists = -(-int(tokens.mask[side].sum()) // per_state)
        sides.append(normalize(states[side, :exists][-most:].double(), dim=-1))
    src, dst = sides
    nodes = [tokens.node[side][tokens.mask[side]][-most * per_state :].tolist() for side in range(2)]
    return {
        "event": int(event),
        "tokens_per_state": per_state,
        "src_nodes": nodes[0],
        "dst_nodes": nodes[1],
        "src": _round_matrix(src @ src.T),
        "dst": _round_matrix(dst @ dst.T),
        "across": _round_matrix(src @ dst.T),
    }


def _round_matrix(matrix: Tensor) -> list[list[float]]:
    return [[round(value, DIGITS) for value in row] for row in matrix.tolist()]

"""Hidden states of a sequence model: what the last scan reads of each past event, and how similar states are.

The output of a scan at token k is a sum over the tokens up to it, y_k = sum_j C_k (A-bar_k ... A-bar_{j+1}) B-bar_j m_j
(before skip and gate; Theorem 2 of the paper). At the last token, that of the query, the terms say how much of each
event is left. The terms are exact for this scan, but they do not divide the score: m_j also contains the few tokens
before it (convolution), and there are further blocks below.

Shapes: q sequences, l tokens (or patches), e inner channels, n states, d width.
"""

from dataclasses import dataclass, fields, replace
from threading import get_ident
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.nn.functional import normalize

from dygmamba.core.errors import ConfigError
from dygmamba.history.view import PairBatch, PairView
from dygmamba.models.base import Scorer
from dygmamba.nn.ssm import Direction, Stack
from dygmamba.nn.steps import System
from dygmamba.nn.tokens import Tokens
from dygmamba.ops.scan.reference import RULES
from dygmamba.runs.recipes import OpenRun, get_encoder

DIGITS = 4  # of similarities


@dataclass(frozen=True, slots=True)
class Readout:
    """The terms of the scan's output at the last token of each sequence."""

    part: Float64[Tensor, "q l e"]  # one term per token
    # mean of A-bar_k ... A-bar_{j+1} over channels and states; 1 at the last token
    left: Float64[Tensor, "q l"]
    tokens: Tokens

    @property
    def output(self) -> Float64[Tensor, "q e"]:
        """Output of the scan at the last token."""
        return self.part.sum(dim=1)

    @property
    def share(self) -> Float64[Tensor, "q l"]:
        """Projection of each term on the output; sums to 1 over all tokens, including that of the query."""
        output = self.output
        size = output.square().sum(dim=1).clamp(min=torch.finfo(torch.float64).tiny)
        return torch.einsum("qle,qe->ql", self.part, output) / size[:, None]


def read_last_scan(scorer: Scorer, view: PairView) -> Readout | None:
    """Run a scorer and read out its last scan, sources first, then destinations; None if it has no scan."""
    parts = scorer.modules() if isinstance(scorer, nn.Module) else ()
    stacks = [part for part in parts if isinstance(part, Stack)]
    captured: list[tuple[Direction, tuple[Any, ...]]] = []
    hooks = [_capture_inputs(_last_forward_direction(stack), captured) for stack in stacks]
    try:
        with torch.no_grad():
            scorer(view)
            readouts = [compute_readout(direction, *inputs) for direction, inputs in captured]
    finally:
        for hook in hooks:
            hook.remove()
    if not readouts:
        return None
    part = torch.cat([readout.part for readout in readouts])
    left = torch.cat([readout.left for readout in readouts])
    return Readout(part, left, _concatenate_tokens([readout.tokens for readout in readouts]))


@torch.no_grad()
def compute_readout(direction: Direction, x: Tensor, z: Tensor, tokens: Tokens) -> Readout:
    """Compute the terms of Theorem 2 at the last token of each sequence, in 64 bits, from the inputs of a scan."""
    step: Any = direction.step  # one of STEPS
    m, system = direction.system(x, z, tokens)
    is_real = tokens.mask[..., None]
    delta = step.size(tokens, m).double().masked_fill(~is_real, 0)
    u = m.double().masked_fill(~is_real, 0)
    system = System._make(None if tensor is None else tensor.double() for tensor in system)
    last = (tokens.length - 1).clamp(min=0)
    C_last = system.C[torch.arange(len(last), device=last.device), last]  # [q n]
    after = delta.flip(1).cumsum(1).flip(1) - delta  # [q l e], sum of the steps after each token
    part, left = torch.zeros_like(u), torch.zeros_like(u)
    for state in range(
        system.A.shape[1]
    ):  # one by one: [q l e n] of a long history would not fit into memory
        A = system.A[:, state]
        kept = torch.exp(after * A)
        entered = RULES[step.rule](delta * A) * delta * system.B[..., state, None] * u
        part += C_last[:, None, None, state] * kept * entered
        left += kept
    return Readout(part, (left / system.A.shape[1]).mean(dim=2) * tokens.mask, tokens)


def _capture_inputs(direction: Direction, captured: list[tuple[Direction, tuple[Any, ...]]]) -> Any:
    """Append the inputs of a module to a list whenever it runs in this thread; return the handle of the hook."""
    own_thread = get_ident()

    def append(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        if get_ident() == own_thread:
            captured.append((direction, inputs))

    return direction.register_forward_pre_hook(append)


def _last_forward_direction(stack: Stack) -> Direction:
    """Return the direction of the last block that scans from the oldest token to the newest."""
    return next(
        part for part in stack.blocks[-1].modules() if isinstance(part, Direction) and not part.reverse
    )


def _concatenate_tokens(parts: list[Tokens]) -> Tokens:
    return Tokens(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Tokens)))


def values_by_event(values: Float64[Tensor, "q l"], tokens: Tokens) -> list[dict[int, float]]:
    """Return the value at the token of each event, for each sequence."""
    return [
        dict(zip(event[is_event].tolist(), value[is_event].tolist(), strict=True))
        for event, value, is_event in zip(tokens.event, values, tokens.is_event, strict=True)
    ]


@runtime_checkable
class HasTokenStates(Protocol):
    """An encoder whose hidden states can be read."""

    def states(self, view: PairView) -> tuple[Float[Tensor, "q l d"], Tokens]:
        """Return the state of every token, sources first, then destinations."""
        ...


def measure_state_similarity(run: OpenRun, max_states: int) -> dict[str, Any]:
    """Compute cosine similarities of hidden states within and across the two sequences of a pair.

    The pair is the test event whose shorter history is longest; of each side, the last `max_states` states are used.
    """
    encoder = get_encoder(run.scorer, run.folder.path)
    if not isinstance(encoder, HasTokenStates):
        raise ConfigError(
            f"model '{run.model}' has no token states to compare; give a run of dyg-mamba or dygformer",
            code="model-without-states",
        )
    stream, test = run.stream, run.stream.split.test
    store = stream.store
    history_length = torch.minimum(
        *(
            stream.index.past(node[test].to(stream.device), store.time[test].to(stream.device))[1]
            for node in (store.src, store.dst)
        )
    )
    event = test[int(history_length.argmax())][None]
    pairs = PairBatch.from_pairs(store.src[event], store.dst[event], store.time[event]).to(stream.device)
    view = stream.view(pairs, run.scorer.requests)
    with torch.no_grad():
        states, tokens = encoder.states(replace(view, features=encoder.scale_edges(view.features)))
    per_state = -(-tokens.mask.shape[1] // states.shape[1])  # tokens of a patch
    sides = []
    for side in range(2):
        count = -(-int(tokens.mask[side].sum()) // per_state)
        sides.append(normalize(states[side, :count][-max_states:].double(), dim=-1))
    src, dst = sides
    nodes = [tokens.node[side][tokens.mask[side]][-max_states * per_state :].tolist() for side in range(2)]
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

"""How alike a model's hidden states are: within each of the two sequences of a pair, and across them.

Legend: q sequences, l tokens or patches, d width.
"""

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from dygmamba.errors import ConfigError
from dygmamba.nn.tokens import Tokens
from dygmamba.runs.opening import OpenRun, encoder_of
from dygmamba.sampling.view import PairBatch, PairView

DIGITS = 4


@runtime_checkable
class Stated(Protocol):
    """An encoder whose hidden states can be read."""

    def states(self, view: PairView) -> tuple[Float[Tensor, "q l d"], Tokens]:
        """The state of every token, sources first, then destinations."""
        ...


def state_similarity(run: OpenRun, most: int) -> dict[str, Any]:
    """Cosine similarities for the test event whose two histories are longest; the last `most` tokens of each side."""
    encoder = encoder_of(run.scorer, run.folder)
    if not isinstance(encoder, Stated):
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
        "src": _rounded(src @ src.T),
        "dst": _rounded(dst @ dst.T),
        "across": _rounded(src @ dst.T),
    }


def _rounded(matrix: Tensor) -> list[list[float]]:
    return [[round(value, DIGITS) for value in row] for row in matrix.tolist()]

"""Reference of the scan: a plain loop in any floating-point dtype, differentiated by torch.

Legend: q sequences, l steps, d channels, n states.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import silu


def phi(x: Tensor) -> Tensor:
    """Return (e^x - 1) / x; near 0 a series, where the derivative of the quotient would lose digits."""
    small = x.abs() < 1e-3
    safe = torch.where(small, torch.ones_like(x), x)
    return torch.where(small, 1 + x / 2 * (1 + x / 3 * (1 + x / 4)), torch.expm1(safe) / safe)


# B-bar / (delta * B) as a function of delta * A: exact zero-order hold, or Mamba's Euler step.
RULES: dict[str, Callable[[Tensor], Tensor]] = {"zoh": phi, "euler": torch.ones_like}


def span_delta(span: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """Delta t_k = w1 (1 - exp(-w2 span_k)), DyG-Mamba Eq. 11: [q l], [d], [d] -> [q l d]."""
    return -w1 * torch.expm1(-w2 * span[..., None])


def scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    mask: Tensor | None = None,
    state: Tensor | None = None,
    rule: str = "zoh",
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """y_k = (C_k h_k + D u_k) silu(z_k),  h_k = exp(delta_k A) h_{k-1} + B-bar_k u_k  (DyG-Mamba Eq. 7-10).

    u, delta, z [q l d], A [d n], B, C [q l n], D [d], mask [q l] bool, state [q d n] -> y [q l d], h [q d n].
    A masked step keeps the state (its delta is 0) and outputs 0; `reverse` runs from the last step.
    """
    q, length, d = u.shape
    h = u.new_zeros(q, d, A.shape[1]) if state is None else state
    if mask is not None:  # fill instead of multiplying by 0: a NaN at a masked step must not reach a gradient
        u, delta, B, C = (x.masked_fill(~mask[..., None], 0) for x in (u, delta, B, C))
        z = None if z is None else z.masked_fill(~mask[..., None], 0)
    ys: list[Tensor] = [u[:, 0]] * length
    for k in reversed(range(length)) if reverse else range(length):
        x = delta[:, k, :, None] * A  # [q d n]
        h = torch.exp(x) * h + RULES[rule](x) * (delta[:, k] * u[:, k])[..., None] * B[:, k, None]
        ys[k] = torch.einsum("qdn,qn->qd", h, C[:, k])
    y = torch.stack(ys, dim=1)
    y = y if D is None else y + D * u
    y = y if z is None else y * silu(z)
    return (y if mask is None else y.masked_fill(~mask[..., None], 0)), h


def span_scan(
    u: Tensor,
    span: Tensor,
    w1: Tensor,
    w2: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    mask: Tensor | None = None,
    state: Tensor | None = None,
    rule: str = "zoh",
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """The scan with delta from one time span per token, span [q l] and w1, w2 [d] (Eq. 11)."""
    span = span if mask is None else span.masked_fill(~mask, 0)
    return scan(u, span_delta(span, w1, w2), A, B, C, D, z, mask, state, rule, reverse)

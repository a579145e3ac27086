"""The selective scan with the name, arguments and layouts of the mamba_ssm package, on every supported device.

Legend: b sequences, d channels, l steps, n states, g groups of channels.
"""

import torch
from torch import Tensor, cat
from torch.nn.functional import softplus

from dygmamba.core.errors import ConfigError
from dygmamba.ops.scan import scan


def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """h_t = exp(delta_t A) h_{t-1} + delta_t B_t u_t,  y_t = (C_t h_t + D u_t) silu(z_t)   (Mamba, Eq. 2, B by Euler).

    u, delta, z [b d l], A [d n], D, delta_bias [d]; B, C [b n l], [b g n l] or [d n] -> y [b d l] in u's dtype,
    and with `return_last_state` h [b d n]. Computed in float32 or wider; B or C [d n] costs one scan per channel.

    >>> import torch, dygmamba as dm
    >>> u, delta, A = torch.randn(2, 4, 9), torch.rand(2, 4, 9), -torch.rand(4, 3)
    >>> dm.ops.selective_scan_fn(u, delta, A, torch.randn(2, 3, 9), torch.randn(2, 3, 9)).shape
    torch.Size([2, 4, 9])
    """
    if any(x.is_complex() for x in (A, B, C)):
        raise ConfigError(
            "selective_scan_fn takes real A, B and C; got complex ones. Use a real A",
            code="complex-scan-input",
        )
    kind = u.dtype
    wide = torch.float64 if torch.float64 in (u.dtype, A.dtype) else torch.float32
    u, delta, A, B, C = (x.to(wide) for x in (u, delta, A, B, C))
    D, z, bias = (None if x is None else x.to(wide) for x in (D, z, delta_bias))
    delta = delta if bias is None else delta + bias[:, None]
    delta = softplus(delta) if delta_softplus else delta
    B, C = _add_group_dim(B, u), _add_group_dim(C, u)
    ys, states = [], []
    for group, part in enumerate(_split_channels(u.shape[1], B.shape[1], C.shape[1])):
        y, state = scan(
            u[:, part].mT,
            delta[:, part].mT,
            A[part],
            B[:, min(group, B.shape[1] - 1)].mT,
            C[:, min(group, C.shape[1] - 1)].mT,
            D=None if D is None else D[part],
            z=None if z is None else z[:, part].mT,
            rule="euler",
        )
        ys.append(y.mT)
        states.append(state)
    y, state = cat(ys, dim=1).to(kind), cat(states, dim=1)
    return (y, state) if return_last_state else y


def _split_channels(channels: int, of_B: int, of_C: int) -> list[slice]:
    """Return the channels of each group as slices."""
    groups = max(of_B, of_C)
    own = channels // groups
    if own * groups != channels or {of_B, of_C} - {1, groups}:
        raise ConfigError(
            f"{channels} channels cannot be divided among {of_B} groups of B and {of_C} groups of C; give B and C the "
            "same number of groups, or one, and a number of channels that is a multiple of it",
            code="scan-group-mismatch",
        )
    return [slice(group * own, (group + 1) * own) for group in range(groups)]


def _add_group_dim(x: Tensor, u: Tensor) -> Tensor:
    """B or C as [b g n l], or as [b 1 n l] if all channels share it."""
    if x.dim() == 2:
        return x[None, :, :, None].expand(u.shape[0], -1, -1, u.shape[2])
    return x[:, None] if x.dim() == 3 else x

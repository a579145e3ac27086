"""What a scan takes: one tuple for every implementation, checked once at the door.

Legend: q sequences, l steps, d channels, n states.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.ops.scan.reference import RULES

SHAPES = {
    "u": "qld",
    "delta": "qld",
    "span": "ql",
    "w1": "d",
    "w2": "d",
    "A": "dn",
    "B": "qln",
    "C": "qln",
    "D": "d",
    "z": "qld",
    "mask": "ql",
    "state": "qdn",
}

PER_STEP = ("u", "delta", "B", "C", "z")  # one row per step: these may come in half precision


class Inputs(NamedTuple):
    """The op's tensors in the order of its schema; the step is `delta`, or `span`, `w1` and `w2`."""

    u: Tensor
    delta: Tensor | None
    span: Tensor | None
    w1: Tensor | None
    w2: Tensor | None
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None
    z: Tensor | None
    mask: Tensor | None
    state: Tensor | None

    @property
    def present(self) -> dict[str, Tensor]:
        """The tensors which were given, by name."""
        return {name: t for name, t in self._asdict().items() if t is not None}

    @property
    def state_dtype(self) -> torch.dtype:
        """The state and everything that is not a token's is at least float32."""
        return torch.promote_types(self.u.dtype, torch.float32)

    def dtype_of(self, name: str) -> torch.dtype:
        """What the named tensor must be, given u."""
        kinds = dict.fromkeys(PER_STEP, self.u.dtype) | {"mask": torch.bool}
        return kinds.get(name, self.state_dtype)

    def check(self, rule: str) -> None:
        """Raise ConfigError unless shapes, dtypes and devices agree and the rule is known."""
        if rule not in RULES:
            raise ConfigError(f"scan has no rule {rule!r}; choose one of {', '.join(RULES)}")
        if self.u.dim() != 3 or self.u.shape[1] == 0:
            raise ConfigError(f"scan's u has shape {list(self.u.shape)}; give [q l d] with at least one step")
        if not self.u.dtype.is_floating_point:
            raise ConfigError(f"scan's u is {self.u.dtype}; cast the inputs to a floating type")
        q, length, d = self.u.shape
        sizes = {"q": q, "l": length, "d": d, "n": self.A.shape[-1]}
        for name, tensor in self.present.items():
            shape = [sizes[letter] for letter in SHAPES[name]]
            dtype = self.dtype_of(name)
            if list(tensor.shape) != shape:
                text = " ".join(SHAPES[name])
                raise ConfigError(f"scan's {name} has shape {list(tensor.shape)}; give [{text}] = {shape}")
            if tensor.dtype != dtype or tensor.device != self.u.device:
                got = f"{tensor.dtype} on {tensor.device}"
                raise ConfigError(f"scan's {name} is {got}; give {dtype} on {self.u.device}")


class Upstream(NamedTuple):
    """What backward is given beside the inputs."""

    y: Tensor  # what forward returned and kept
    checkpoints: Tensor
    dy: Tensor
    dstate: Tensor  # of size 0 if it is zero
    span_grad: bool  # whether the gradient of the span is wanted

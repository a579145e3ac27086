"""The inputs of a scan: one tuple for all implementations, validated once.

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
    """The op's tensors in the order of its schema; the step is given by `delta`, or by `span`, `w1` and `w2`."""

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
        """The tensors that are not None, by name."""
        return {name: t for name, t in self._asdict().items() if t is not None}

    @property
    def state_dtype(self) -> torch.dtype:
        """Dtype of the state and of all tensors without a row per token: at least float32."""
        return torch.promote_types(self.u.dtype, torch.float32)

    def dtype_of(self, name: str) -> torch.dtype:
        """Return the dtype that the named tensor must have, given u."""
        kinds = dict.fromkeys(PER_STEP, self.u.dtype) | {"mask": torch.bool}
        return kinds.get(name, self.state_dtype)

    def check(self, rule: str) -> None:
        """Raise ConfigError unless shapes, dtypes and devices agree and the rule is known."""
        if rule not in RULES:
            raise ConfigError(
                f"unknown discretisation rule {rule!r}; choose one of {', '.join(RULES)}",
                code="unknown-scan-rule",
            )
        if self.u.dim() != 3 or self.u.shape[1] == 0:
            raise ConfigError(
                f"scan's u has shape {list(self.u.shape)}; it must be [q l d] with at least one step",
                code="bad-op-shape",
            )
        if not self.u.dtype.is_floating_point:
            raise ConfigError(
                f"scan's u is {self.u.dtype}; cast the inputs to a floating-point type", code="bad-op-dtype"
            )
        q, length, d = self.u.shape
        sizes = {"q": q, "l": length, "d": d, "n": self.A.shape[-1]}
        for name, tensor in self.present.items():
            shape = [sizes[letter] for letter in SHAPES[name]]
            dtype = self.dtype_of(name)
            if list(tensor.shape) != shape:
                text = " ".join(SHAPES[name])
                raise ConfigError(
                    f"scan's {name} has shape {list(tensor.shape)}; it must be [{text}] = {shape}",
                    code="bad-op-shape",
                )
            if tensor.dtype != dtype or tensor.device != self.u.device:
                got = f"{tensor.dtype} on {tensor.device}"
                raise ConfigError(
                    f"scan's {name} is {got}; give {dtype} on {self.u.device}", code="bad-op-dtype"
                )


# the tensors in the schema of a registered operator
SCHEMA = ", ".join(
    f"Tensor{'' if kind is Tensor else '?'} {name}" for name, kind in Inputs.__annotations__.items()
)


class Upstream(NamedTuple):
    """Inputs of a backward pass in addition to those of the forward pass."""

    y: Tensor  # output of the forward pass
    checkpoints: Tensor  # states saved by the forward pass
    dy: Tensor
    dstate: Tensor  # of size 0 means zero
    span_grad: bool  # whether the gradient of the span is needed

"""Step sizes of the scan: how much of the state decays before a token is read.

Every part runs the scan with its own step, step(tokens, x, system, reverse) -> y; step.size(tokens, x) is its size.
The parts that depend on the relative span s = gap / (tau - t_1) + floor / n share one form,
Delta = w1 * g(w2 * s), w1, w2 > 0.

Legend: q sequences, l tokens, d channels, n states.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from dygmamba.nn.encodings import TimeEncoding
from dygmamba.nn.tokens import Tokens
from dygmamba.ops.scan import scan, span_scan


@dataclass(frozen=True, slots=True)
class StepConfig:
    """Sizes and constants of a step."""

    channels: int
    width: int
    floor: float  # floor / n is added to each relative span, so that events at the same time are not lost
    gap_scale: float  # mean time gap of the stream, the unit of absolute spans
    rule: str


class System(NamedTuple):
    """System matrices and gate of a scan: everything but its input and step (Eq. 7-10)."""

    A: Float[Tensor, "d n"]
    B: Float[Tensor, "q l n"]
    C: Float[Tensor, "q l n"]
    D: Float[Tensor, "d"] | None
    z: Float[Tensor, "q l d"]


def log_uniform(count: int, low: float, high: float) -> Tensor:
    """Draw numbers whose logarithm is uniform."""
    return torch.empty(count).uniform_(math.log(low), math.log(high)).exp()


class Step(nn.Module):
    """Base class of steps: a scan with the size that the subclass gives."""

    def __init__(self, config: StepConfig) -> None:
        super().__init__()
        self.rule, self.floor = config.rule, config.floor

    def size(self, tokens: Tokens, x: Tensor) -> Float[Tensor, "q l d"]:
        """Return the step size of each token and channel."""
        raise NotImplementedError

    def span(self, tokens: Tokens) -> Float[Tensor, "q l"]:
        """Return the relative span plus the floor."""
        return tokens.share + self.floor / tokens.length.clamp(min=1)[:, None]

    def forward(self, tokens: Tokens, x: Tensor, system: System, reverse: bool) -> Float[Tensor, "q l d"]:
        return scan(x, self.size(tokens, x), *system, tokens.mask, rule=self.rule, reverse=reverse)[0]


class RelativeStep(Step):
    """Delta = w1 * g(w2 * s) for a shape g given by the subclass."""

    w2_range = (1.0, 100.0)

    def __init__(self, config: StepConfig) -> None:
        super().__init__(config)
        # the logarithms are trained, so w1 and w2 stay positive as Eq. 11 demands
        self.log_w1 = nn.Parameter((10 * log_uniform(config.channels, 1e-3, 1e-1)).log())
        self.log_w2 = nn.Parameter(log_uniform(config.channels, *self.w2_range).log())

    def w1(self) -> Float[Tensor, "d"]:
        return self.log_w1.exp()

    def w2(self) -> Float[Tensor, "d"]:
        return self.log_w2.exp()

    def shape(self, x: Tensor) -> Tensor:
        """g, increasing from g(0) = 0."""
        raise NotImplementedError

    def delta(self, span: Tensor) -> Tensor:
        """Return the step sizes of spans: [q l] -> [q l d]."""
        return self.w1() * self.shape(self.w2() * span[..., None])

    def size(self, tokens: Tokens, x: Tensor) -> Float[Tensor, "q l d"]:
        return self.delta(self.span(tokens)).to(x.dtype)


class TimeSpanStep(RelativeStep):
    """Delta = w1 (1 - exp(-w2 s)), Eq. 11; computed inside the scan, so no (q, l, d) step is stored."""

    def shape(self, x: Tensor) -> Tensor:
        return -torch.expm1(-x)  # 1 - exp(-x), which would lose the digits of a short span

    def forward(self, tokens: Tokens, x: Tensor, system: System, reverse: bool) -> Float[Tensor, "q l d"]:
        span, w1, w2 = self.span(tokens), self.w1(), self.w2()
        return span_scan(x, span, w1, w2, *system, tokens.mask, rule=self.rule, reverse=reverse)[0]


class AbsoluteStep(TimeSpanStep):
    """Eq. 11 with gaps divided by the stream's mean gap instead of by tau - t_1."""

    def __init__(self, config: StepConfig) -> None:
        super().__init__(config)
        self.gap_scale = config.gap_scale

    def span(self, tokens: Tokens) -> Float[Tensor, "q l"]:
        return tokens.gap / self.gap_scale + self.floor / tokens.length.clamp(min=1)[:, None]


class LinearStep(RelativeStep):
    """Delta = w1 w2 s: unbounded."""

    def shape(self, x: Tensor) -> Tensor:
        return x


class LogarithmicStep(RelativeStep):
    """Delta = w1 log(1 + w2 s): unbounded, slower."""

    def shape(self, x: Tensor) -> Tensor:
        return torch.log1p(x)


class SigmoidStep(RelativeStep):
    """Delta = w1 (2 sigmoid(w2 s) - 1): shifted so that a span of zero forgets nothing."""

    def shape(self, x: Tensor) -> Tensor:
        return torch.tanh(x / 2)  # = 2 sigmoid(x) - 1


class ExponentialStep(RelativeStep):
    """Delta = w1 (exp(w2 s) - 1): amplifies long spans; the exponent is limited to 10 to stay finite."""

    w2_range = (0.1, 3.0)

    def shape(self, x: Tensor) -> Tensor:
        return torch.expm1(x.clamp(max=10))


class ConstantStep(Step):
    """One learned step per channel, independent of token and time: a time-invariant model (S4-like)."""

    def __init__(self, config: StepConfig) -> None:
        super().__init__(config)
        self.log_delta = nn.Parameter(log_uniform(config.channels, 1e-3, 1e-1).log())

    def size(self, tokens: Tokens, x: Tensor) -> Float[Tensor, "q l d"]:
        return self.log_delta.exp().to(x.dtype).expand_as(x)


def step_bias(channels: int) -> Tensor:
    """Draw a bias whose softplus is log-uniform in [1e-3, 1e-1] (Mamba's initialisation)."""
    delta = log_uniform(channels, 1e-3, 1e-1).clamp(min=1e-4)
    return delta + torch.log(-torch.expm1(-delta))  # the inverse of softplus, without exp(delta) - 1 near 0


class ContentStep(Step):
    """Delta = softplus(low-rank map of the token): vanilla Mamba, the ablation "without time span"."""

    def __init__(self, config: StepConfig) -> None:
        super().__init__(config)
        rank = math.ceil(config.width / 16)
        self.down = nn.Linear(config.channels, rank, bias=False)
        self.up = nn.Linear(rank, config.channels)
        nn.init.uniform_(self.up.weight, -(rank**-0.5), rank**-0.5)
        self.up.bias = nn.Parameter(step_bias(config.channels))

    def source(self, tokens: Tokens, x: Tensor) -> Tensor:
        """Return the low-rank features that the step is computed from."""
        return self.down(x)

    def size(self, tokens: Tokens, x: Tensor) -> Float[Tensor, "q l d"]:
        return softplus(self.up(self.source(tokens, x))).to(x.dtype)


class CosineStep(ContentStep):
    """Delta = softplus(low-rank map of cosines of the span): the released code's step."""

    def __init__(self, config: StepConfig) -> None:
        super().__init__(config)
        self.encode = TimeEncoding(100, decades=0.9, trainable=True)
        self.lift = nn.Linear(100, config.width)
        self.down = nn.Linear(config.width, self.up.in_features, bias=False)

    def source(self, tokens: Tokens, x: Tensor) -> Tensor:
        """Encode the relative span, map it to the model's width and down to the rank."""
        return self.down(self.lift(self.encode(self.span(tokens))))


STEPS: dict[str, type[nn.Module]] = {
    "timespan": TimeSpanStep,
    "absolute": AbsoluteStep,
    "linear": LinearStep,
    "logarithmic": LogarithmicStep,
    "sigmoid": SigmoidStep,
    "exponential": ExponentialStep,
    "constant": ConstantStep,
    "content": ContentStep,
    "cosine": CosineStep,
}

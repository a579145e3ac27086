"""DyG-Mamba (NeurIPS 2025, openreview ja2wA4UncJ) in one file of plain torch: data, model, training, evaluation.

For readers of the paper: equation numbers are the paper's, and nothing of the package is imported. The model is
the package's `dyg-mamba` with its default settings; either one loads the weights of the other.

    python examples/dyg_mamba_in_one_file.py uci.npz --length 32 --save uci.safetensors

The file has the arrays src, dst, t and optionally edge_feat [events, columns]; or it is a CSV with the header src,dst,t
and further numeric columns. Ids are whole numbers from 0. The protocol is that of the published tables (DyGLib).

Legend: p pairs, r = 2 p sequences (sources, then destinations), l tokens, d columns of a token, e = 2 d, n states.
"""

import argparse
import copy
import random
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 200  # of training and of the published AP, which is the mean over batches of 200 events


# Data ------------------------------------------------------------------------------------------------------------


def read_events(path: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return source, destination, time and edge features of all events in the order of time."""
    if path.endswith(".npz"):
        table = np.load(path)
        features = table["edge_feat"] if "edge_feat" in table else np.zeros((len(table["t"]), 0))
    else:
        table = np.genfromtxt(path, delimiter=",", names=True)
        more = [name for name in table.dtype.names if name not in ("src", "dst", "t")]
        features = np.stack([table[name] for name in more], axis=1) if more else np.zeros((len(table), 0))
    order = np.argsort(table["t"], kind="stable")
    src, dst, time = table["src"][order], table["dst"][order], table["t"][order]
    return (
        src.astype(np.int64),
        dst.astype(np.int64),
        time.astype(np.float64),
        features[order].astype(np.float32),
    )


def split_events(src: np.ndarray, dst: np.ndarray, time: np.ndarray) -> tuple[np.ndarray, ...]:
    """Split at 70 and 85 % of the timestamps and hold a tenth of the nodes out of training, as DyGLib does."""
    val_time, test_time = np.quantile(time, [0.7, 0.85])
    later = time > val_time
    population = tuple(set((src[later] + 1).tolist()).union(set((dst[later] + 1).tolist())))
    count = int(0.1 * len(np.union1d(src, dst)))
    held_out = np.array(random.Random(2020).sample(population, min(count, len(population)))) - 1
    train = ~later & ~np.isin(src, held_out) & ~np.isin(dst, held_out)
    known = np.union1d(src[train], dst[train])
    test = time > test_time
    new = test & ~(np.isin(src, known) & np.isin(dst, known))
    return tuple(np.flatnonzero(part) for part in (train, later & ~test, test, new))


class History:
    """Events of every node, sorted by time; `last` looks up those strictly before a time, without a loop."""

    def __init__(self, src: np.ndarray, dst: np.ndarray, time: np.ndarray, events: np.ndarray) -> None:
        owner = np.stack([src[events], dst[events]], axis=1).ravel()  # an event belongs to both of its nodes
        other = np.stack([dst[events], src[events]], axis=1).ravel()
        event = np.repeat(events, 2)
        order = np.argsort(owner, kind="stable")
        self.other, self.event, self.time = other[order], event[order], time[event[order]]
        self.times = np.unique(time)  # node * (number of times + 1) + rank of the time: one sorted key
        self.key = owner[order] * (len(self.times) + 1) + np.searchsorted(self.times, self.time)

    def last(self, node: np.ndarray, when: np.ndarray, most: int) -> tuple[np.ndarray, ...]:
        """Return node, event and time of the last events before `when`, oldest first, and how many there are: [r l]."""
        first = node * (len(self.times) + 1)
        start = np.searchsorted(self.key, first)
        end = np.searchsorted(self.key, first + np.searchsorted(self.times, when))  # left: strictly before
        start = np.maximum(start, end - most)
        at = np.minimum(start[:, None] + np.arange(most), len(self.key) - 1)
        return self.other[at], self.event[at], self.time[at], end - start


class Tokens:
    """The last L - 1 events of each node, then the node itself at the query time; padding is masked."""

    def __init__(
        self, history: History, features: Tensor, node: np.ndarray, when: np.ndarray, length: int
    ) -> None:
        other, event, time, count = history.last(node, when, length - 1)
        place, device = np.arange(length), features.device
        is_event, mask = place < count[:, None], place <= count[:, None]
        pad = ((0, 0), (0, 1))
        other = np.where(is_event, np.pad(other, pad), node[:, None])
        time = np.where(is_event, np.pad(time, pad), when[:, None])  # 64 bits until differences are taken
        gap = np.diff(time, axis=1, prepend=time[:, :1]) * mask
        reach = when - time[:, 0]  # tau - t_1
        span = gap / np.where(reach > 0, reach, 1.0)[:, None]

        def move(x: np.ndarray, kind: torch.dtype) -> Tensor:
            return torch.from_numpy(x).to(device, kind)

        self.node, self.mask = move(other, torch.int64), move(mask, torch.bool)
        self.age = move(when[:, None] - time, torch.float32)
        # Eq. 11's gap, plus 1 / tokens: with a step of 0 events at the same time would be ignored
        self.span = move(span, torch.float32) + 1 / move(count + 1, torch.float32)[:, None]
        rows = features[move(np.pad(event, pad), torch.int64)]
        self.edge = rows * move(is_event, torch.float32)[..., None]


# Model -----------------------------------------------------------------------------------------------------------


def log_uniform(count: int, low: float, high: float) -> Tensor:
    return torch.empty(count).uniform_(np.log(low), np.log(high)).exp()


def uniform(fan_in: int, *shape: int) -> nn.Parameter:
    bound = max(fan_in, 1) ** -0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


class Encodings(nn.Module):
    """Node, edge, time and co-occurrence encodings of each token, each mapped to `width` columns (Eq. 5, 6)."""

    def __init__(self, edge_dim: int, width: int, time_dim: int) -> None:
        super().__init__()
        # without node features Z_N = 0 W_N + b_N: a weight of 0 rows
        self.node_weight, self.node_bias = uniform(1, 0, width), uniform(1, width)
        self.edge_weight, self.edge_bias = uniform(edge_dim, edge_dim, width), uniform(edge_dim, width)
        self.omega = nn.Parameter(10 ** -torch.linspace(0, 9, time_dim), requires_grad=False)
        self.phase = nn.Parameter(torch.zeros(time_dim), requires_grad=False)
        self.time = nn.Linear(time_dim, width)
        self.f1, self.f2, self.counts = nn.Linear(1, width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, tokens: Tokens) -> Tensor:
        node = self.node_bias.expand(*tokens.node.shape, -1)
        edge = tokens.edge @ self.edge_weight + self.edge_bias
        time = self.time(torch.cos(tokens.age[..., None] * self.omega + self.phase))
        sides = torch.where(tokens.mask, tokens.node, -1).chunk(2)
        counts = [(tokens.node[:, :, None] == torch.cat([one, one])[:, None]).sum(dim=-1) for one in sides]
        f = [self.f2(F.relu(self.f1(count[..., None].float()))) for count in counts]
        return torch.cat([node, edge, time, self.counts(f[0] + f[1])], dim=-1)  # Eq. 5, then Eq. 6: [r l d]


class Block(nn.Module):
    """A residual block around the time-span-informed state space model (Eq. 7 to 11 and 13)."""

    def __init__(self, width: int, states: int, taps: int, blocks: int) -> None:
        super().__init__()
        inner = 2 * width
        self.norm, self.into = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, 2 * inner, bias=False)
        self.taps, self.bias = uniform(taps, inner, taps), nn.Parameter(torch.zeros(inner))
        self.select = uniform(inner, 2, states, inner)  # W_B and W_C
        self.log_w1 = nn.Parameter((10 * log_uniform(inner, 1e-3, 1e-1)).log())  # positive by the exponential
        self.log_w2 = nn.Parameter(log_uniform(inner, 1, 100).log())
        self.log_A = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(inner, 1))
        self.D, self.out = nn.Parameter(torch.ones(inner)), nn.Linear(inner, width, bias=False)
        with torch.no_grad():
            self.out.weight /= blocks**0.5

    def forward(self, x: Tensor, tokens: Tokens) -> Tensor:
        mask = tokens.mask[..., None]
        m, z = self.into(self.norm(x)).chunk(2, dim=-1)
        m = F.pad(
            (m * mask).mT, (self.taps.shape[1] - 1, 0)
        )  # zeros before the first token: a causal convolution
        m = F.silu(F.conv1d(m, self.taps[:, None], self.bias, groups=len(self.taps)).mT) * mask  # Eq. 7
        bound = spectral_bound(self.select).clamp(min=1)[:, None, None]
        B, C = (m @ (self.select / bound).flatten(0, 1).T).chunk(2, dim=-1)  # Eq. 13, without b_B and b_C
        delta = self.log_w1.exp() * -torch.expm1(-self.log_w2.exp() * tokens.span[..., None])  # Eq. 11
        y = scan(m, delta * mask, -self.log_A.exp(), B, C) + self.D * m  # D is Mamba's skip; 0 in Eq. 2
        return x + self.out(y * F.silu(z) * mask)  # Eq. 10, without b_out


def spectral_bound(weight: Tensor) -> Tensor:
    """Return |G^256|^(1/512) of G = W W^T: the largest singular value of each W, or at most 0.3 % more."""
    gram = weight.double() @ weight.double().mT
    size = torch.linalg.matrix_norm(gram, keepdim=True)
    power = torch.linalg.matrix_norm(torch.linalg.matrix_power(gram / size, 256), keepdim=True)
    return (size**0.5 * power ** (1 / 512)).flatten().to(weight.dtype)


def scan(m: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """C_k h_k with h_k = exp(Δ_k A) h_{k-1} + A^-1 (exp(Δ_k A) - 1) B_k m_k (Eq. 8, 9, Theorem 1): [r l e]."""
    h, ys = m.new_zeros(len(m), *A.shape), []
    for k in range(m.shape[1]):
        grown = torch.expm1(delta[:, k, :, None] * A)  # exp(Δ A) - 1 with all digits near 0: [r e n]
        h = (1 + grown) * h + grown / A * m[:, k, :, None] * B[:, k, None]
        ys.append(torch.einsum("ren,rn->re", h, C[:, k]))
    return torch.stack(ys, dim=1)


class DyGMamba(nn.Module):
    """Two sequences of tokens to one logit per pair (Fig. 2)."""

    def __init__(
        self,
        edge_dim: int,
        width: int = 50,
        time_dim: int = 100,
        blocks: int = 2,
        states: int = 16,
        out: int = 172,
    ) -> None:
        super().__init__()
        d = 4 * width
        self.encodings = Encodings(edge_dim, width, time_dim)
        self.blocks = nn.ModuleList(Block(d, states, 4, blocks) for _ in range(blocks))
        self.norm = nn.RMSNorm(d, eps=1e-5)
        self.ask, self.answer = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d)
        self.drop, self.mixed = nn.Dropout(0.1), nn.LayerNorm(d)
        self.gate_src, self.gate_dst = nn.Linear(d, 1, bias=False), nn.Linear(d, 1, bias=False)
        self.out = nn.Linear(d, out)
        self.hidden, self.logit = nn.Linear(2 * out, 172), nn.Linear(172, 1)

    def forward(self, tokens: Tokens) -> Tensor:
        x, mask = self.encodings(tokens), tokens.mask[..., None]
        for block in self.blocks:
            x = block(x, tokens)
        x = self.norm(x)
        # linear cross-attention to the other sequence of the pair: in the configuration table, not in the text
        query, key, value = self.ask(x).chunk(3, dim=-1)
        other = key.masked_fill(~mask, -torch.inf).softmax(dim=1).mT @ value * x.shape[-1] ** -0.5
        attended = query.softmax(dim=-1) @ other.roll(len(x) // 2, dims=0)
        x = self.mixed(x + self.drop(self.answer(attended)))
        # readout: a learned gate as in the released code; the text has MEAN
        gate = torch.cat(
            [one(part) for one, part in zip((self.gate_src, self.gate_dst), x.chunk(2), strict=True)]
        )
        pooled = (gate.masked_fill(~mask, -torch.inf).softmax(dim=1) * x).sum(dim=1)
        src, dst = self.out(pooled).chunk(2)
        return self.logit(F.relu(self.hidden(torch.cat([src, dst], dim=-1)))).squeeze(
            -1
        )  # Eq. 15 before its sigmoid


# Names of weights here and in the package, where a run has them in checkpoint/best.safetensors behind "model.".
PACKAGE_NAMES = (
    *(
        (f"encodings.{kind}_", f"encoder.channels.alone.{i}.align.")
        for i, kind in enumerate(("node", "edge"))
    ),
    *((f"encodings.{name}", f"encoder.channels.alone.2.encode.{name}") for name in ("omega", "phase")),
    ("encodings.time.", "encoder.channels.alone.2.align."),
    ("encodings.f1.", "encoder.channels.paired.0.encode.0.first."),
    ("encodings.f2.", "encoder.channels.paired.0.encode.0.second."),
    ("encodings.counts.", "encoder.channels.paired.0.encode.1."),
    ("norm.", "encoder.encoders.stack.norm."),
    *(
        (f"{own}.", f"encoder.mixer.{name}.")
        for own, name in (("ask", "ask"), ("answer", "out"), ("mixed", "norm"))
    ),
    *((f"gate_{side}.", f"encoder.pool_{side}.gate.") for side in ("src", "dst")),
    ("out.", "encoder.out."),
    ("hidden.", "head.hidden."),
    ("logit.", "head.out."),
)
BLOCK_NAMES = {"select": "select.weight", "log_w1": "step.log_w1", "log_w2": "step.log_w2", "D": "skip.D"}


def package_name(name: str) -> str:
    """Return the name that a weight of this file has in the package."""
    if name.startswith("blocks."):
        _, number, part = name.split(".", 2)
        inside = part if "." in part else f"paths.0.{BLOCK_NAMES.get(part, part)}"
        return f"encoder.encoders.stack.blocks.{number}.{inside}"
    return next(theirs + name[len(own) :] for own, theirs in PACKAGE_NAMES if name.startswith(own))


def save_weights(model: nn.Module, path: str) -> None:
    from safetensors.torch import save_file

    save_file({package_name(name): value.contiguous() for name, value in model.state_dict().items()}, path)


def load_weights(model: nn.Module, path: str) -> None:
    """Load weights that `save_weights` or a training run of the package wrote."""
    from safetensors.torch import load_file

    stored = {name.removeprefix("model."): value for name, value in load_file(path).items()}
    model.load_state_dict({name: stored[package_name(name)] for name in model.state_dict()})


# Training and evaluation -----------------------------------------------------------------------------------------


def average_precision_and_auc(score: np.ndarray, label: np.ndarray) -> tuple[float, float]:
    """Return AP and AUC; equal scores share one threshold."""
    order = np.argsort(-score, kind="stable")
    last = np.append(np.diff(score[order]) != 0, True)
    true = np.cumsum(label[order])[last].astype(np.float64)
    seen = np.flatnonzero(last) + 1.0
    recall, false = true / true[-1], (seen - true) / (seen - true)[-1]
    steps = np.diff(recall, prepend=0.0)
    area = np.diff(false, prepend=0.0) * (recall - steps / 2)  # trapezoids
    return float((steps * true / seen).sum()), float(area.sum())


class Experiment:
    """A stream, its split and a model."""

    def __init__(self, path: str, length: int, device: str, **sizes: int) -> None:
        self.src, self.dst, self.time, features = read_events(path)
        self.train, self.val, self.test, self.new = split_events(self.src, self.dst, self.time)
        self.features, self.length = torch.from_numpy(features).to(device), length
        every = np.arange(len(self.time))
        # training looks up training events only, evaluation every strictly earlier event
        self.past = {
            who: History(self.src, self.dst, self.time, e) for who, e in (("fit", self.train), ("", every))
        }
        self.model = DyGMamba(features.shape[1], **sizes).to(device)

    def logits(self, history: History, src: np.ndarray, dst: np.ndarray, when: np.ndarray) -> Tensor:
        nodes, times = np.concatenate([src, dst]), np.concatenate([when, when])
        return self.model(Tokens(history, self.features, nodes, times, self.length))

    def batch_logits(self, history: History, batch: np.ndarray, negative: np.ndarray) -> Tensor:
        """Return the logits of events, then those of the same sources and times with other destinations."""
        src, dst, when = (np.concatenate([x[batch]] * 2) for x in (self.src, self.dst, self.time))
        dst[len(batch) :] = negative
        return self.logits(history, src, dst, when)

    def train_epoch(self, optimizer: torch.optim.Optimizer, rng: np.random.Generator) -> float:
        self.model.train()
        pool, losses = np.unique(self.dst[self.train]), []
        for start in range(0, len(self.train), BATCH):  # in the order of time
            batch = self.train[start : start + BATCH]
            logits = self.batch_logits(self.past["fit"], batch, rng.choice(pool, len(batch)))
            label = (torch.arange(len(logits), device=logits.device) < len(batch)).float()
            loss = F.binary_cross_entropy_with_logits(logits, label)  # Eq. 16
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return float(torch.stack(losses).mean())

    @torch.no_grad()
    def evaluate(self, events: np.ndarray, known: np.ndarray, seed: int) -> dict[str, float]:
        """Return the AP and AUC of DyGLib, means over batches of 200 events, and of all events at once (pooled)."""
        self.model.eval()
        draw = np.random.RandomState(seed)  # the same negatives in every run and epoch
        sources, pool = np.unique(self.src[known]), np.unique(self.dst[known])
        scores, parts = [], []
        for start in range(0, len(events), BATCH):
            batch = events[start : start + BATCH]
            draw.randint(0, len(sources), len(batch))  # DyGLib draws sources, too, and does not use them
            negative = pool[draw.randint(0, len(pool), len(batch))]
            scores.append(
                self.batch_logits(self.past[""], batch, negative).double().cpu().numpy().reshape(2, -1)
            )
            parts.append(average_precision_and_auc(scores[-1].ravel(), np.repeat([1, 0], len(batch))))
        both = np.concatenate(scores, axis=1)
        pooled = average_precision_and_auc(both.ravel(), np.repeat([1, 0], len(events)))
        ap, auc = np.mean(parts, axis=0)
        return {"AP": float(ap), "AUC": float(auc), "pooled AP": pooled[0], "pooled AUC": pooled[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train DyG-Mamba on one stream of events.")
    parser.add_argument("events", help="file NAME.npz or NAME.csv")
    for name, default in (("length", 32), ("epochs", 100), ("patience", 20), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--load", help="weights to start from", type=Path)
    parser.add_argument("--save", help="file for the best weights", type=Path)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    rng = np.random.default_rng(given.seed)
    work = Experiment(given.events, given.length, given.device)
    if given.load:
        load_weights(work.model, str(given.load))
    optimizer = torch.optim.Adam(work.model.parameters(), lr=given.lr)
    every = np.arange(len(work.time))
    best, weights, stale = (-1.0, -1.0), copy.deepcopy(work.model.state_dict()), 0
    for epoch in range(given.epochs):
        loss = work.train_epoch(optimizer, rng)
        found = work.evaluate(work.val, every, seed=0)
        now = (found["AP"], found["AUC"])
        print(f"epoch {epoch + 1}: loss {loss:.4f}, validation AP {now[0]:.4f}", flush=True)
        if all(new >= old for new, old in zip(now, best, strict=True)):
            best, weights, stale = now, copy.deepcopy(work.model.state_dict()), 0
            if given.save:
                save_weights(work.model, str(given.save))
        else:
            stale += 1
            if stale >= given.patience:
                break
    work.model.load_state_dict(weights)
    for name, events, known, seed in (("test", work.test, every, 2), ("new nodes", work.new, work.new, 3)):
        found = work.evaluate(events, known, seed)
        print(f"{name}: " + ", ".join(f"{metric} {100 * value:.2f}" for metric, value in found.items()))


if __name__ == "__main__":
    main()

"""The encodings of tokens: the Triton kernels against the definition in float64, on a GPU or interpreted."""

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor

from dygmamba.ops.dispatch import use_reference
from dygmamba.ops.tokens.encoding import (
    ENCODING,
    FeatureRows,
    PairCounts,
    Part,
    TimeSpans,
    encode_tokens,
)
from interpreted import DEVICE, INTERPRETED, compile_for_hopper, kernels_run, on_gpu, poison
from scan_cases import assert_near

SIZE = (4, 7)  # sequences and tokens
WEIGHTS = ("first_weight", "first_bias", "second_weight", "second_bias", "weight", "bias")


def draw(
    size: tuple[int, int] = SIZE, edge: int = 4, node: int = 3, time: int = 10, hidden: int = 5, width: int = 6,
    names: Sequence[str] = ("node", "edge", "time", "counts"), scaled: bool = False,
) -> list[Part]:  # fmt: skip
    """Parts of float64 with values that float32 holds exactly; the last sequence is masked as a whole."""
    g = torch.Generator().manual_seed(sum(size) + edge + node)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g).double()

    nodes, mask = torch.randint(3, size, generator=g, dtype=torch.int32), torch.rand(size, generator=g) < 0.8
    mask[-1:] = False
    index = torch.randint(9, size, generator=g, dtype=torch.int32)
    scale = normal(edge) if scaled else None
    layers = normal(hidden, 1), normal(hidden), normal(hidden, hidden), normal(hidden)
    omega = (10 ** -torch.linspace(0, 3, time)).double()
    parts = {
        "node": FeatureRows(normal(9, node), nodes, mask, None, normal(node, width), normal(width)),
        "edge": FeatureRows(normal(9, edge), index, mask, scale, normal(edge, width), normal(width)),
        "time": TimeSpans(normal(*size).abs(), omega, normal(time), normal(width, time), normal(width)),
        "counts": PairCounts(nodes, mask, *layers, normal(width, hidden), normal(width)),
    }
    return [move(parts[name], DEVICE) for name in names]


def move(part: Any, to: Any) -> Any:
    """The part on another device, or with numbers of another dtype."""
    values = {f.name: getattr(part, f.name) for f in fields(part)}
    moved = {
        name: t.to(to)
        for name, t in values.items()
        if t is not None and (t.is_floating_point() or not isinstance(to, torch.dtype))
    }
    return replace(part, **moved)


def find_results(encode: Any, parts: list[Part], dz: Tensor | None = None) -> dict[str, Tensor]:
    """The encodings, and the gradients of all weights."""
    learned: list[Any] = [
        replace(part, **{n: getattr(part, n).detach().requires_grad_() for n in WEIGHTS if hasattr(part, n)})
        for part in parts
    ]
    leaves = {f"{i} {n}": getattr(p, n) for i, p in enumerate(learned) for n in WEIGHTS if hasattr(p, n)}
    z = encode(learned)
    g = torch.Generator().manual_seed(1)
    dz = torch.randn(z.shape, generator=g).to(z) if dz is None else dz
    grads = torch.autograd.grad(z, list(leaves.values()), dz, allow_unused=True)
    zeros = [
        torch.zeros_like(t) if grad is None else grad for t, grad in zip(leaves.values(), grads, strict=True)
    ]
    return {"z": z.detach(), **dict(zip(leaves, zeros, strict=True))}


def assert_exact(parts: list[Part], tolerance: float = 1e-5) -> None:
    """Encodings and gradients are within `tolerance` of the definition in float64."""
    from dygmamba.ops.tokens import triton_encoding as fused

    small = [move(part, torch.float32) for part in parts]
    assert fused.encode_tokens.serves(small)
    with poison():
        found = find_results(fused.encode_tokens, small)
    assert_near(found, find_results(ENCODING.reference, parts), tolerance)


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled in this process")
@pytest.mark.parametrize(
    "sizes", [{}, {"edge": 172, "time": 100, "width": 50, "scaled": True}, {"names": ["time"]}]
)
def test_the_kernels_compile_for_hopper(sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the interpreter forgives, the compiler may not: the kernels become machine code, GPU or no GPU."""
    pytest.importorskip("triton")
    from dygmamba.ops.tokens import triton_encoding as fused

    def compile_kernel(kernel: Any, grid: Any, arguments: dict[str, Any]) -> None:
        arguments = arguments | {"BLOCK": fused.BLOCK}
        compile_for_hopper(kernel, {n: arguments[n] for n in kernel.arg_names}, fused.WARPS)
        launched.append(kernel)

    launched: list[Any] = []
    monkeypatch.setattr(fused, "_launch", compile_kernel)
    counts = torch.zeros(*SIZE, 2, dtype=torch.int32)
    monkeypatch.setattr(fused, "count_pair_tokens", lambda node, mask: counts)
    find_results(fused.encode_tokens, [move(move(part, torch.float32), "cpu") for part in draw(**sizes)])
    assert len(launched) == 3


@kernels_run
@pytest.mark.parametrize(("edge", "node"), [(0, 0), (0, 5), (4, 0), (4, 9), (172, 0)])
def test_every_width_of_features_matches_the_definition(edge: int, node: int) -> None:
    """For all numbers of edge and node features, none included; a masked token has zeros, not what lies there."""
    parts = draw(edge=edge, node=node, scaled=edge == 4)
    rows = parts[1]
    assert isinstance(rows, FeatureRows)
    # row 8 of the table is NaN, and only tokens that are masked refer to it
    rows.table[8] = float("nan")
    parts[1] = replace(rows, index=torch.where(rows.present, rows.index.clamp(max=7), 8))
    assert_exact(parts)


@kernels_run
@pytest.mark.parametrize("size", [(2, 1), (2, 17), (6, 3), (0, 4)])
def test_every_number_of_tokens_matches_the_definition(size: tuple[int, int]) -> None:
    """For all numbers of sequences and tokens, fewer and more than a tile has, and none."""
    assert_exact(draw(size))


@kernels_run
@pytest.mark.parametrize(("time", "hidden", "width"), [(1, 1, 1), (65, 66, 2), (4, 3, 70), (100, 50, 50)])
def test_every_width_of_layers_matches_the_definition(time: int, hidden: int, width: int) -> None:
    """For all sizes of the layers, wider than a block and narrower than each other."""
    assert_exact(draw(time=time, hidden=hidden, width=width))


@kernels_run
def test_every_choice_and_order_of_parts_matches_the_definition() -> None:
    """For all channels that a model may have, in any order: their columns lie in that order."""
    names = ("node", "edge", "time", "counts")
    chosen = [
        ("time",),
        ("counts",),
        ("edge",),
        ("node", "edge"),
        ("counts", "time"),
        ("edge", "time", "counts"),
    ]
    for order in chosen if INTERPRETED else [order for k in range(1, 5) for order in permutations(names, k)]:
        assert_exact(draw(names=order))


@kernels_run
def test_only_the_weights_that_learn_get_gradients() -> None:
    """Without gradients nothing but the encodings is computed, and a frozen weight gets none."""
    from dygmamba.ops.tokens import triton_encoding as fused

    parts: list[Any] = [move(part, torch.float32) for part in draw()]
    assert not fused.encode_tokens(parts).requires_grad
    parts[2] = replace(parts[2], weight=parts[2].weight.clone().requires_grad_())
    z = fused.encode_tokens(parts)
    (grad,) = torch.autograd.grad(z.sum(), [parts[2].weight])
    with torch.no_grad():
        torch.testing.assert_close(fused.encode_tokens(parts), z.detach())
    torch.testing.assert_close(grad, find_results(ENCODING.reference, parts, torch.ones_like(z))["2 weight"])


def test_what_the_kernels_do_not_compute_goes_to_the_definition() -> None:
    """Other dtypes, trained frequencies and a table of another width than the weights are refused."""
    pytest.importorskip("triton")
    from dygmamba.ops.tokens import triton_encoding as fused

    parts: list[Any] = [move(part, torch.float32) for part in draw()]
    assert fused.encode_tokens.serves(parts)
    trained = replace(parts[2], omega=parts[2].omega.clone().requires_grad_())
    narrow = replace(parts[1], table=parts[1].table[:, :2])
    other = replace(parts[3], bias=torch.zeros(7, device=DEVICE))
    assert not fused.encode_tokens.serves(draw())
    assert not fused.encode_tokens.serves([*parts[:2], trained, parts[3]])
    assert not fused.encode_tokens.serves([parts[0], narrow, *parts[2:]])
    assert not fused.encode_tokens.serves([*parts[:3], other])
    assert not fused.encode_tokens.serves([*parts, parts[0]])


@kernels_run
def test_autocast_stores_the_encodings_in_its_precision() -> None:
    """Under autocast features and encodings are bfloat16: right but for their own digits, gradients in float32."""
    from dygmamba.ops.tokens import triton_encoding as fused

    parts = draw((6, 30))
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        found = find_results(fused.encode_tokens, [move(part, torch.float32) for part in parts])
    assert found["z"].dtype == torch.bfloat16
    assert all(t.dtype == torch.float32 for name, t in found.items() if name != "z")
    assert_near(found, find_results(ENCODING.reference, parts), 2**-6)


@pytest.mark.parametrize("size", [(800, 32), (18, 1000), (2, 8192)])
class TestLarge:
    """Sizes for the compiler."""

    pytestmark = on_gpu

    def test_many_tokens_match_the_definition(self, size: tuple[int, int]) -> None:
        """Sums over all tokens stay exact, and two runs agree in every bit."""
        from dygmamba.ops.tokens import triton_encoding as fused

        parts = draw(size, edge=172, node=0, time=100, hidden=50, width=50)
        assert_exact(parts, 3e-5)
        small = [move(part, torch.float32) for part in parts]
        first, second = (find_results(fused.encode_tokens, small) for _ in range(2))
        assert all(torch.equal(second[name], value) for name, value in first.items())

    def test_a_captured_graph_encodes_what_it_is_given_later(self, size: tuple[int, int]) -> None:
        """Values and gradients of a replay are those of a call, and `use_reference` gives the definition."""
        parts: list[Any] = [move(part, torch.float32) for part in draw(size, time=100, hidden=50, width=50)]
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            dz = torch.randn_like(find_results(encode_tokens, parts)["z"])
            find_results(encode_tokens, parts, dz)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = find_results(encode_tokens, parts, dz)
        parts[2].age.copy_(parts[2].age.roll(1, 0))
        dz.neg_()
        graph.replay()
        torch.cuda.synchronize()
        again = find_results(encode_tokens, parts, dz)
        assert all(torch.equal(captured[name], value) for name, value in again.items())
        with use_reference():
            assert_near(again, find_results(encode_tokens, parts, dz), 1e-4)

"""Dispatch: every op runs its reference inside `use_reference` and its kernels elsewhere."""

import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from threading import Barrier, Thread
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dygmamba import ops
from dygmamba.ops.attention import gated_sum, masked_softmax, pair_attention
from dygmamba.ops.conv import conv_silu
from dygmamba.ops.dispatch import Dispatch, use_reference
from dygmamba.ops.projections import bound_matrices, spectral_bound, split_projection
from dygmamba.ops.recent_neighbors import NeighborEntries, find_past, find_weight_quantile, last_k_before
from dygmamba.ops.residual_norm import add_layer_norm, add_rms_norm
from dygmamba.ops.rows import read_rows
from dygmamba.ops.scan import span_scan
from dygmamba.ops.tokens import Sequences, build_tokens, count_pair_tokens
from dygmamba.ops.tokens.encoding import TimeSpans, encode_tokens
from dygmamba.ops.trees import GrowthConfig, bin_columns, bin_edges, grow_tree, sum_leaves
from gradient_cases import results

FOLDERS = [found.name for found in pkgutil.iter_modules(ops.__path__) if found.ispkg]
KERNELS = re.compile("triton|cpu|cuda|nvrtc|numba|autograd")


def find_ops() -> dict[str, Dispatch]:
    """Every op of the package, by the name of its reference: of the function, or of the folder of the module."""
    names = [found.name for found in pkgutil.walk_packages(ops.__path__, f"{ops.__name__}.")]
    modules = [import_module(name) for name in names if not KERNELS.search(name)]
    found = {op for module in modules for op in vars(module).values() if isinstance(op, Dispatch)}
    return {(op.package if isinstance(op.reference, ModuleType) else op.reference.__name__).rpartition(".")[2]: op
            for op in found}  # fmt: skip


OPS = find_ops()


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def single(*shape: int) -> Tensor:
    """For the scan, whose kernels in double precision nothing else would compile."""
    return normal(*shape).float()


def masked(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1)) < 0.7


def encoded(*tensors: Tensor) -> Tensor:
    return encode_tokens([TimeSpans(*tensors)])


def listed() -> list[Tensor]:
    ids, time = (
        torch.arange(12, dtype=torch.int32).view(3, 4),
        torch.arange(12.0, dtype=torch.float64).view(3, 4),
    )
    sequences = Sequences(torch.arange(3), time[:, -1] + 1, ids, ids, time, torch.tensor([4, 0, 2]))
    return list(build_tokens(sequences, torch.tensor([2, 0]), "last", "preceding"))


def counted() -> list[Tensor]:
    ids = torch.arange(20, dtype=torch.int32).reshape(2, 10) % 4
    return [count_pair_tokens(ids, masked(2, 10))]


def looked_up() -> list[Tensor]:
    ids, time = torch.arange(9), torch.arange(9, dtype=torch.float64) // 2
    columns = (torch.tensor([0, 4, 7]), torch.tensor([4, 3, 2]), ids.int(), ids.int(), time)
    queries = (NeighborEntries(*columns), ids % 4 - 1, time + 0.5)
    begin, count = find_past(*queries)
    share = torch.full((9, 2), 0.5, dtype=torch.float64)
    return [count, *last_k_before(*queries, 3), find_weight_quantile(time + 1, begin, count, share)]


def boosted() -> list[Tensor]:
    x = normal(60, 3).float()
    edges, slopes = (
        bin_edges(x),
        torch.stack([(x[:, 0] > x[:, 1]).double() - 0.5, torch.ones(60).double()], 1),
    )
    trees = grow_tree(
        bin_columns(x, edges), slopes, torch.arange(60), torch.arange(3), edges, GrowthConfig(4, 5)
    )
    return [sum_leaves(trees, x)]


def gathered() -> list[Tensor]:
    return [read_rows(normal(5, 3), torch.tensor([[4, 0], [1, 1]]))]


# the op, what it is differentiated in, and its mask
DIFFERENTIABLE: dict[str, tuple[Any, ...]] = {
    "scan": (
        lambda *tensors: span_scan(*tensors[:-1], mask=tensors[-1]),
        (
            *(single(2, 5, 3), single(2, 5).abs(), single(3).abs(), single(3).abs()),
            *(-single(3, 2).abs(), single(2, 5, 2), single(2, 5, 2)),
        ),
        masked(2, 5),
    ),
    "conv": (conv_silu, (normal(2, 5, 3), normal(3, 4), normal(3)), masked(2, 5)),
    "spectral_bound": (spectral_bound, (normal(2, 3, 5),)),
    "bound_matrices": (bound_matrices, (3 * normal(2, 3, 5),)),
    "add_rms_norm": (add_rms_norm, (normal(2, 5, 4), normal(2, 5, 4))),
    "add_layer_norm": (
        lambda x, branch, *given: add_layer_norm(x, branch, given[:2], given[2:], 0.0),
        (normal(2, 5, 4), normal(2, 5, 3), normal(4, 3), *(normal(4) for _ in range(3))),
    ),
    "split_projection": (split_projection, (normal(2, 5, 4), normal(6, 4))),
    "gated_sum": (gated_sum, (normal(2, 5, 4), normal(4)), masked(2, 5)),
    "pair_attention": (pair_attention, (normal(2, 5, 12),), masked(2, 5)),
    "masked_softmax": (masked_softmax, (normal(2, 130, 4),), masked(2, 130)),
    "encode_each_part": (encoded, (normal(2, 5), normal(4), normal(4), normal(3, 4), normal(3))),
}
CALLS: dict[str, Callable[[], list[Tensor]]] = {
    **{name: partial(results, *given) for name, given in DIFFERENTIABLE.items()},
    "count_pair_tokens": counted,
    **dict.fromkeys(("find_past", "last_k_before", "find_weight_quantile"), looked_up),
    "add_leaves": boosted,
    "read_rows": gathered,
    "build_tokens": listed,
}
HAS_KERNEL = [
    name for name in CALLS if OPS[name].kernels.keys() & {"cpu", "any"}
]  # others have some for a GPU only


def watch(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Dispatch, Any]]:
    """The ops that choose an implementation from now on, each with what it chose."""
    chosen: list[tuple[Dispatch, Any]] = []
    pick, pick_kernel = Dispatch.pick, Dispatch.pick_kernel

    def watched(choose: Callable[..., Any]) -> Callable[..., Any]:
        def call(op: Dispatch, *inputs: Any) -> Any:
            chosen.append((op, choose(op, *inputs)))
            return chosen[-1][1]

        return call

    monkeypatch.setattr(Dispatch, "pick", watched(pick))
    monkeypatch.setattr(Dispatch, "pick_kernel", watched(pick_kernel))
    return chosen


def test_every_op_has_a_test():
    """The tests below know every op of the package."""
    assert sorted(OPS) == sorted(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_the_definition_computes_where_it_is_asked_for(monkeypatch, name):
    """For every op: inside the block the reference runs and no kernel does, with the same values and gradients."""
    fast, chosen = CALLS[name](), watch(monkeypatch)
    with use_reference():
        slow = CALLS[name]()
    assert OPS[name] in [op for op, _ in chosen]
    assert all(implementation is op.reference for op, implementation in chosen)
    for ours, true in zip(fast, slow, strict=True):
        torch.testing.assert_close(ours, true)


@pytest.mark.parametrize("name", HAS_KERNEL)
def test_a_kernel_computes_elsewhere(monkeypatch, name):
    """For every op with a kernel for this device: outside the block that runs, and the reference does not."""
    with use_reference():
        CALLS[name]()
    chosen = watch(monkeypatch)
    CALLS[name]()
    own = [implementation for op, implementation in chosen if op is OPS[name]]
    assert own
    assert OPS[name].reference not in own


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_no_device_is_an_exception(device):
    """For every op and device: inside the block the choice is the reference, and no kernel is even imported."""
    with use_reference():
        for op in OPS.values():
            assert op.pick(device) is op.reference


@pytest.mark.parametrize("name", [name for name in DIFFERENTIABLE if name in HAS_KERNEL])
def test_a_gradient_is_taken_of_what_was_computed(monkeypatch, name):
    """What a kernel computed is differentiated by it, inside the block too; the definition's is by torch, anywhere."""
    op, leaves, *mask = DIFFERENTIABLE[name]
    leaves = tuple(leaf.clone().requires_grad_() for leaf in leaves)

    def total() -> Tensor:
        found = op(*leaves, *mask)
        return sum(
            ((y**2).sum() for y in (found if isinstance(found, tuple) else (found,))), torch.tensor(0.0)
        )

    fast = total()
    with use_reference():
        slow = total()
    chosen = watch(monkeypatch)
    by_reference = torch.autograd.grad(slow, leaves)
    assert not chosen
    with use_reference():
        by_kernel = torch.autograd.grad(fast, leaves)
    assert name not in ("scan", "conv") or chosen
    assert all(implementation is not op.reference for op, implementation in chosen)
    for ours, true in zip(by_kernel, by_reference, strict=True):
        torch.testing.assert_close(ours, true)


def is_fused(name: str) -> bool:
    """Return whether a kernel of the op would run now, in float32 on a CPU."""
    return OPS[name].pick("cpu", torch.float32) is not OPS[name].reference


def test_blocks_nest_and_end():
    """The switch is off after the outermost block, also when that ends with an error."""

    def failing() -> None:
        with use_reference(), use_reference():
            raise KeyError

    with use_reference():
        with pytest.raises(KeyError):
            failing()
        assert not is_fused("conv")
    assert is_fused("conv")


def test_blocks_of_two_threads_may_overlap():
    """The switch is the process's: on while any thread is inside, off when the last one leaves."""
    barrier, seen = Barrier(2), []

    def other() -> None:
        barrier.wait()  # both are inside
        with use_reference():
            barrier.wait()
            barrier.wait()  # the first has left
            seen.append(is_fused("conv"))

    thread = Thread(target=other)
    thread.start()
    with use_reference():
        barrier.wait()
        barrier.wait()
    barrier.wait()
    thread.join()
    assert seen == [False]
    assert is_fused("conv")


def test_compiled_code_follows_the_switch():
    """torch.compile sees one graph by the kernel, another by the definition, and knows which one to use."""
    if hasattr(conv_silu, "__wrapped__"):
        pytest.skip("a run-time type checker is in the way")
    torch.compiler.reset()
    x = normal(2, 5, 3), normal(3, 4), normal(3), masked(2, 5)
    true = conv_silu(*x)
    compiled = torch.compile(conv_silu, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(*x), true)
        with use_reference():
            assert torch.equal(compiled(*x), OPS["conv"].reference.conv_silu(*x))


@pytest.mark.slow
def test_importing_the_ops_is_light():
    """Numba and Triton are imported with the first kernel that needs them."""
    names = "dygmamba.ops.tokens.encoding, " + ", ".join(f"dygmamba.ops.{folder}" for folder in FOLDERS)
    code = f"import sys, {names}; sys.exit(bool({{'numba', 'triton'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_triton_every_op_has_another_implementation_on_a_gpu(monkeypatch):
    """Torch brings Triton on Linux only; elsewhere a GPU computes with torch or the reference."""
    monkeypatch.setattr("dygmamba.ops.dispatch.HAS_TRITON", False)
    needed: list[str] = []
    unfit = SimpleNamespace(serves=lambda *inputs: False)
    monkeypatch.setattr("dygmamba.ops.dispatch._load", lambda package, name: needed.append(name) or unfit)
    for op in OPS.values():
        monkeypatch.setattr(op, "_loaded", {})
        assert op.pick_kernel("cuda") is None
    assert needed
    assert not any("triton" in name for name in needed)

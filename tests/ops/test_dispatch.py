"""Dispatch: every op runs its reference inside `use_reference` and its kernels elsewhere."""

import pkgutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from threading import Barrier, Thread
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dygmamba import ops
from dygmamba.ops.checksum import compute_checksum
from dygmamba.ops.conv import conv_silu
from dygmamba.ops.cooccurrence import cooccurrence
from dygmamba.ops.dispatch import OPS, Dispatch, use_reference
from dygmamba.ops.gated_sum import gated_sum
from dygmamba.ops.gather_rows import gather_rows
from dygmamba.ops.masked_softmax import masked_softmax
from dygmamba.ops.pair_attention import pair_attention
from dygmamba.ops.recent_neighbors import build_adjacency, last_k_before, time_aware_weights
from dygmamba.ops.residual_norm import add_rms_norm
from dygmamba.ops.scan import span_scan
from dygmamba.ops.spectral_bound import spectral_bound
from dygmamba.ops.split_projection import split_projection
from dygmamba.ops.token_encoding import TimeSpans, encode_tokens
from dygmamba.ops.tokens import Sequences, build_tokens
from dygmamba.ops.trees import GrowthConfig, bin_columns, bin_edges, grow_tree, shapley_values, sum_leaves
from dygmamba.ops.walks import build_walk_table
from gradient_cases import results

FOLDERS = [found.name for found in pkgutil.iter_modules(ops.__path__) if found.ispkg]


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
    return list(cooccurrence(ids, ids.flip(1)[:, :7], masked(2, 10), masked(2, 7)))


def looked_up() -> list[Tensor]:
    ids, time = torch.arange(9), torch.arange(9, dtype=torch.float64) // 2
    entries = build_adjacency(ids % 3, ids % 4, ids, time, 4)
    found = last_k_before(entries, ids % 5 - 1, time, 3)
    return [entries.start, entries.key, entries.neighbor, *found, time_aware_weights(entries, 0.3).running]


def checked() -> list[Tensor]:
    return [torch.tensor(compute_checksum(np.arange(77, dtype=np.uint8)) >> 1)]  # a signed number of 64 bits


def walked() -> list[Tensor]:
    ids, time = torch.arange(9), torch.arange(9, dtype=torch.float64) // 2
    table = build_walk_table(ids % 3, ids % 4, time, normal(4, 3), 3, (0.3,))
    return [table.key, table.rows]


def boosted() -> list[Tensor]:
    x = normal(60, 3).float()
    edges, slopes = (
        bin_edges(x),
        torch.stack([(x[:, 0] > x[:, 1]).double() - 0.5, torch.ones(60).double()], 1),
    )
    trees = grow_tree(
        bin_columns(x, edges), slopes, torch.arange(60), torch.arange(3), edges, GrowthConfig(4, 5)
    )
    return [*trees.columns, sum_leaves(trees, x), *shapley_values(trees, x[:2])]


def gathered() -> list[Tensor]:
    return [gather_rows(normal(5, 3), torch.tensor([[4, 0], [1, 1]]))]


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
    "residual_norm": (lambda x, branch: add_rms_norm(x, branch), (normal(2, 5, 4), normal(2, 5, 4))),
    "split_projection": (split_projection, (normal(2, 5, 4), normal(6, 4))),
    "gated_sum": (gated_sum, (normal(2, 5, 4), normal(4)), masked(2, 5)),
    "pair_attention": (pair_attention, (normal(2, 5, 12),), masked(2, 5)),
    "masked_softmax": (masked_softmax, (normal(2, 130, 4),), masked(2, 130)),
    "token_encoding": (encoded, (normal(2, 5), normal(4), normal(4), normal(3, 4), normal(3))),
}
CALLS: dict[str, Callable[[], list[Tensor]]] = {
    **{name: partial(results, *given) for name, given in DIFFERENTIABLE.items()},
    "cooccurrence": counted,
    "recent_neighbors": looked_up,
    "checksum": checked,
    "trees": boosted,
    "walks": walked,
    "gather_rows": gathered,
    "tokens": listed,
}
# all their kernels are for a GPU
GPU_ONLY = {"gather_rows", "masked_softmax", "residual_norm", "token_encoding", "tokens"}


def watch(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[str]:
    """The names of the module's public functions and methods, as they are called from now on."""
    called: list[str] = []

    def watched(function: FunctionType) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            called.append(function.__name__)
            return function(*args, **kwargs)

        return call

    kinds = [value for value in vars(module).values() if isinstance(value, type)]
    for owner in (module, *(kind for kind in kinds if kind.__module__ == module.__name__)):
        for name, value in list(vars(owner).items()):
            if isinstance(value, FunctionType) and value.__module__ == module.__name__ and name[0] != "_":
                monkeypatch.setattr(owner, name, watched(value))
    return called


def kernels_of(op: Dispatch, device: str = "cpu") -> list[ModuleType]:
    return [op.module(name) for name in op.kernels.get(device) or op.kernels.get("any", ())]


def test_every_op_has_a_dispatch_and_a_test():
    """A folder of ops is known to the dispatch, and to the tests below."""
    assert sorted(FOLDERS) == sorted(OPS) == sorted(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_the_definition_computes_where_it_is_asked_for(monkeypatch, name):
    """For every op: inside the block the reference runs and no kernel does, with the same values and gradients."""
    fast, op = CALLS[name](), OPS[name]
    by_kernel = [watch(monkeypatch, kernels) for kernels in kernels_of(op)]
    by_reference = watch(monkeypatch, op.module("reference"))
    with use_reference():
        slow = CALLS[name]()
    assert by_reference
    assert not any(by_kernel)
    for ours, true in zip(fast, slow, strict=True):
        torch.testing.assert_close(ours, true)


@pytest.mark.parametrize("name", [name for name in CALLS if name not in GPU_ONLY])
def test_a_kernel_computes_elsewhere(monkeypatch, name):
    """For every op with a kernel for this device: outside the block that runs, and the reference does not."""
    with use_reference():
        CALLS[name]()
    op = OPS[name]
    by_kernel = [watch(monkeypatch, kernels) for kernels in kernels_of(op)]
    by_reference = watch(monkeypatch, op.module("reference"))
    CALLS[name]()
    assert any(by_kernel)
    assert not by_reference


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_no_device_is_an_exception(device):
    """For every op and device: inside the block the choice is the reference, and no kernel is even imported."""
    with use_reference():
        for op in OPS.values():
            assert op.choose(device) is op.module("reference")


@pytest.mark.parametrize("name", [name for name in DIFFERENTIABLE if name not in GPU_ONLY])
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
    called = [watch(monkeypatch, kernels) for kernels in kernels_of(OPS[name])]
    by_reference = torch.autograd.grad(slow, leaves)
    assert not any(called)
    with use_reference():
        by_kernel = torch.autograd.grad(fast, leaves)
    assert name not in ("scan", "conv") or "backward" in called[0]
    for ours, true in zip(by_kernel, by_reference, strict=True):
        torch.testing.assert_close(ours, true)


def is_fused(name: str) -> bool:
    """Return whether a kernel of the op would run now, in float32 on a CPU."""
    return OPS[name].choose("cpu", torch.float32) is not OPS[name].module("reference")


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
    compiled = torch.compile(conv_silu, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(*x), conv_silu(*x))
        with use_reference():
            assert torch.equal(compiled(*x), OPS["conv"].module("reference").conv_silu(*x))


@pytest.mark.slow
def test_importing_the_ops_is_light():
    """Numba and Triton are imported with the first kernel that needs them."""
    names = ", ".join(f"dygmamba.ops.{folder}" for folder in FOLDERS)
    code = f"import sys, {names}; sys.exit(bool({{'numba', 'triton'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_triton_every_op_has_another_implementation_on_a_gpu(monkeypatch):
    """Torch brings Triton on Linux only; elsewhere a GPU computes with torch or the reference."""
    monkeypatch.setattr("dygmamba.ops.dispatch.HAS_TRITON", False)
    for op in OPS.values():
        assert "triton" not in op._names("cuda")

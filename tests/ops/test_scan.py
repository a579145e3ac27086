"""The fused scan equals its definition: values, every gradient, registration, threads and memory."""

from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.autograd import gradcheck
from torch.library import opcheck

from benchmarks.harness import track_peak_memory
from dygmamba.core.errors import ConfigError
from dygmamba.ops import dispatch
from dygmamba.ops import scan as fused
from dygmamba.ops.scan import reference
from dygmamba.ops.scan.inputs import Inputs
from raising import raises
from scan_cases import LENGTHS, MASKS, assert_near, case, cases

ENTRIES = ("scan", "span_scan")


@pytest.fixture(autouse=True)
def _poison():
    """Fresh memory is NaN: an output which the kernel forgets to write cannot pass. Torch keeps to one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@settings(max_examples=40)
@given(case=cases())
def test_fused_equals_reference(case):
    """For all inputs: values and gradients are the reference's, within 1e-5 in float32, 1e-10 in float64."""
    true = case.results(reference)
    assert_near(case.results(fused), true, 1e-10)
    assert_near(case.to(torch.float32).results(fused), true, 1e-5)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("entry", ENTRIES)
def test_every_length_equals_reference(entry, length):
    """For all lengths around the chunk's: float32 is within 1e-5 of the float64 reference."""
    whole = case(entry, (2, length, 40, 16), mask="holes")
    assert_near(whole.to(torch.float32).results(fused), whole.results(reference), 1e-5)


@pytest.mark.parametrize("rule", ["zoh", "euler"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_gradcheck(entry, rule):
    """The gradients are the derivatives of the values, by finite differences."""
    small = case(entry, (2, 4, 3, 2), mask="holes", rule=rule)
    mask = small.tensors["mask"]
    leaves = {name: t.requires_grad_() for name, t in small.tensors.items() if name != "mask"}

    def run(*tensors):
        return getattr(fused, entry)(**dict(zip(leaves, tensors, strict=True)), mask=mask, rule=rule)

    assert gradcheck(run, tuple(leaves.values()))


def call(implementation: ModuleType, tensors: dict[str, Any], **changes: Any) -> tuple[Tensor, Tensor]:
    return implementation.scan(**{**tensors, **changes})


def _schema_order(tensors: dict[str, Any]) -> list[Any]:
    return [tensors.get(name) for name in Inputs._fields]


@pytest.mark.parametrize("entry", ENTRIES)
def test_registration(entry):
    """Schema, fake shapes, autograd and compilation of both operators agree with what they do (opcheck)."""
    x = _schema_order(case(entry, (2, 5, 3, 2), mask="holes").tensors)
    leaves = [t if t is None or t.dtype == torch.bool else t.clone().requires_grad_() for t in x]
    opcheck(fused.scan_op, (*leaves, "zoh", False, True))
    y, state, checkpoints = fused.scan_op(*x, "zoh", False, True)
    opcheck(fused.scan_backward_op, (*x, "zoh", False, y, checkpoints, y, state, entry == "span_scan"))


def test_compiles_into_one_graph():
    """torch.compile needs no graph break and changes no bit, once the kernel is loaded."""
    if hasattr(fused.span_scan, "__wrapped__"):
        pytest.skip("a run-time type checker is in the way")
    torch.compiler.reset()
    small = case(mask="ragged", size=(2, 6, 3, 2)).tensors

    def run(**tensors):
        return fused.span_scan(**tensors)[0]

    true = run(**small)
    assert torch.equal(torch.compile(run, backend="aot_eager", fullgraph=True)(**small), true)


@pytest.mark.parametrize("implementation", [fused, reference], ids=["fused", "reference"])
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("mask", [m for m in MASKS if m not in ("none", "full")])
def test_masked_garbage_never_leaks(mask, entry, implementation):
    """NaN in u, delta, span, B, C or z at a masked step changes no output and no gradient."""
    clean = case(entry, (3, 40, 5, 4), mask=mask)
    hidden = ~clean.tensors["mask"]
    poisoned = {
        name: torch.where(hidden.reshape(*hidden.shape, *[1] * (t.dim() - 2)), torch.nan, t)
        for name, t in clean.tensors.items()
        if name in ("u", "delta", "span", "B", "C", "z")
    }
    want, got = clean.results(implementation), clean.with_(**poisoned).results(implementation)
    assert all(torch.equal(got[name], want[name]) for name in want)
    assert not got["y"][hidden].any()
    assert not got["du"][hidden].any()


def test_unmasked_nan_is_seen():
    """NaN at a valid step reaches the output: nothing is silently repaired."""
    for name in ("u", "delta", "B", "C", "A", "z"):
        whole = case("scan", (1, 2, 3, 2)).to(torch.float32)
        bad = whole.with_(**{name: torch.full_like(whole.tensors[name], torch.nan)})
        assert fused.scan(**bad.tensors)[0].isnan().all(), name


def test_nan_stays_in_its_sequence():
    """NaN in one sequence changes no output and no own gradient of the others."""
    clean = case("scan", (3, 70, 5, 4)).to(torch.float32)
    B = clean.tensors["B"].clone()
    B[1, 50] = torch.nan
    want, got = clean.results(fused), clean.with_(B=B).results(fused)
    for name in ("y", "final", "du", "ddelta", "dB", "dC", "dz", "dstate"):
        assert torch.equal(got[name][::2], want[name][::2]), name
    assert torch.equal(got["dC"][1, :50], want["dC"][1, :50])


def test_same_bits_for_any_number_of_threads():
    """Two runs, and runs on one and several threads, agree bit for bit in values and gradients."""
    large = case("span_scan", (70, 40, 70, 8), mask="ragged").to(torch.float32)
    runs = []
    for threads in (1, 2, 2, 3):
        torch.set_num_threads(threads)
        runs.append(large.results(fused))
    assert all(torch.equal(run[name], runs[0][name]) for run in runs for name in runs[0])


def test_strided_inputs():
    """Views (halves of a projection, an expanded gradient) give what their copies give."""
    packed = torch.randn(2, 6, 10)
    u, z = packed.chunk(2, dim=-1)
    x = case("scan", (2, 6, 5, 4), parts=()).to(torch.float32).tensors
    leaf = u.contiguous().requires_grad_()
    want = torch.autograd.grad(call(fused, x, u=leaf, z=z.contiguous())[0].sum(), leaf)[0]
    leaf = u.requires_grad_()
    got = torch.autograd.grad(call(fused, x, u=leaf, z=z)[0].sum(), leaf)[0]
    assert torch.equal(got, want)


def test_gradient_of_one_output_alone():
    """The gradient through y only, or the final state only, is the reference's."""
    x = case("scan", (2, 40, 5, 4), mask="holes").tensors
    for pick in (0, 1):
        leaves = [x["u"].clone().requires_grad_() for _ in range(2)]
        outs = [call(s, x, u=u)[pick] for s, u in zip((fused, reference), leaves, strict=True)]
        got, want = (torch.autograd.grad(o.sum(), u)[0] for o, u in zip(outs, leaves, strict=True))
        torch.testing.assert_close(got, want)


def test_no_sequences():
    """An empty batch gives empty outputs and zero gradients."""
    results = case("span_scan", (0, 4, 5, 3)).results(fused)
    assert results["y"].shape == (0, 4, 5)
    assert not results["dA"].any()


def test_memory_stays_below_four_inputs():
    """Forward and backward together need at most four times the inputs: never a [q l d n] tensor."""
    case("span_scan").to(torch.float32).results(fused)
    torch.use_deterministic_algorithms(False)  # poisoned memory is touched memory
    large = case("span_scan", (16, 512, 400, 16), parts=("D", "z")).to(torch.float32)
    size = sum(t.nbytes for t in large.tensors.values()) / 2**20
    with track_peak_memory() as peak:
        large.results(fused)
    assert not peak[0] > 4 * size  # nan where it cannot be measured


def test_says_once_when_slow(monkeypatch):
    """Without a fused kernel for the device, the reference answers and one warning says so."""
    monkeypatch.setattr(fused.SCAN, "kernels", {})
    dispatch._warn_slow.cache_clear()
    x = case("span_scan", mask="holes")
    with pytest.warns(dispatch.SlowReferenceWarning, match="no fused scan for cpu"):
        got = x.results(fused)
    assert_near(got, x.results(reference), 0)
    x.results(fused)  # a second warning would be an error


@pytest.mark.parametrize(
    ("change", "code", "values"),
    [
        ({"A": torch.zeros(4, 4)}, "bad-op-shape", ("A has shape [4, 4]", "[d n] = [5, 4]")),
        (
            {"B": torch.zeros(3, 7, 4, dtype=torch.float64)},
            "bad-op-dtype",
            ("B is torch.float64 on cpu", "torch.float32"),
        ),
        ({"mask": torch.ones(3, 7)}, "bad-op-dtype", ("mask is torch.float32 on cpu", "torch.bool")),
        ({"u": torch.zeros(3, 5)}, "bad-op-shape", ("u has shape [3, 5]", "[q l d]")),
        ({"u": torch.zeros(3, 7, 5, dtype=torch.int64)}, "bad-op-dtype", ("u is torch.int64",)),
        ({"rule": "simpson"}, "unknown-scan-rule", ("'simpson'", "zoh, euler")),
    ],
)
def test_wrong_inputs_are_named(change, code, values):
    """A wrong shape, dtype or rule is a ConfigError with the input's name, what it is and what it must be."""
    x = case("span_scan").to(torch.float32).tensors
    with raises(code, ConfigError) as error:
        fused.span_scan(**(x | change))
    assert all(value in str(error.value) for value in values)

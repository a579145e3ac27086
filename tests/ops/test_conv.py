"""The fused convolution equals its definition: values, every gradient, registration, threads; and its laws."""

from dataclasses import replace

import pytest
import torch
from torch.autograd import gradcheck
from torch.library import opcheck

from conv_cases import LENGTHS, MASKS, case
from dygmamba.core.errors import ConfigError
from dygmamba.ops import conv as fused
from dygmamba.ops.conv import conv_silu, reference
from raising import raises
from scan_cases import assert_near

both_ways = pytest.mark.parametrize("reverse", [False, True], ids=["causal", "reverse"])


@pytest.fixture(autouse=True)
def _poison():
    """Fresh memory is NaN: an output which the kernel forgets to write cannot pass. Torch keeps to one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@both_ways
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("length", LENGTHS)
def test_every_length_and_mask_equals_reference(length, mask, reverse):
    """For all lengths and masks: within 1e-12 of the float64 reference in float64, 2e-6 in float32."""
    whole = case((3, length, 37, 4), mask, reverse, seed=length)
    true = whole.results(reference.conv_silu)
    assert_near(whole.results(conv_silu), true, 1e-12)
    assert_near(whole.to(torch.float32).results(conv_silu), true, 2e-6)


@both_ways
@pytest.mark.parametrize("taps", [1, 2, 3, 4, 5, 8])
def test_every_number_of_taps_equals_reference(taps, reverse):
    """For all numbers of taps, more than there are steps included."""
    for length in (3, 12):
        whole = case((2, length, 5, taps), "holes", reverse)
        assert_near(whole.results(conv_silu), whole.results(reference.conv_silu), 1e-12)


@both_ways
@pytest.mark.parametrize("taps", [1, 3])
def test_gradcheck(taps, reverse):
    """The gradients are the derivatives of the values, by finite differences."""
    small = case((2, 5, 3, taps), "holes", reverse)
    leaves = tuple(t.clone().requires_grad_() for t in (small.x, small.weight, small.bias))
    assert gradcheck(lambda x, weight, bias: conv_silu(x, weight, bias, small.mask, reverse), leaves)


@pytest.mark.parametrize("taps", [1, 4])
def test_registration(taps):
    """Schema, fake shapes, autograd and compilation of both operators agree with what they do (opcheck)."""
    small = case((2, 5, 3, taps), "holes")
    leaves = [t.detach().requires_grad_() for t in (small.x, small.weight, small.bias)]
    opcheck(fused.conv_silu_op, (*leaves, small.mask, False))
    opcheck(fused.conv_silu_backward_op, (*small.arguments, small.dy))


def test_compiles_into_one_graph():
    """torch.compile needs no graph break and changes no bit, once the kernel is loaded."""
    if hasattr(conv_silu, "__wrapped__"):
        pytest.skip("a run-time type checker is in the way")
    torch.compiler.reset()
    small = case(mask="ragged").arguments
    true = conv_silu(*small)
    assert torch.equal(torch.compile(conv_silu, backend="aot_eager", fullgraph=True)(*small), true)


@both_ways
@pytest.mark.parametrize("implementation", [conv_silu, reference.conv_silu], ids=["fused", "reference"])
@pytest.mark.parametrize("mask", [m for m in MASKS if m != "full"])
def test_masked_garbage_never_leaks(mask, implementation, reverse):
    """NaN in x at a masked step changes no output and no gradient, and both are 0 there."""
    clean = case((3, 20, 5, 4), mask, reverse)
    bad = replace(clean.poisoned(), dy=clean.dy)
    want, got = clean.results(implementation), bad.results(implementation)
    assert all(torch.equal(got[name], want[name]) for name in want)
    assert not got["y"][~clean.mask].any()
    assert not got["dx"][~clean.mask].any()


def test_masked_gradients_never_leak():
    """NaN in the output's gradient at a masked step reaches no gradient."""
    clean = case((3, 20, 5, 4), "holes")
    want, got = clean.results(conv_silu), clean.poisoned().results(conv_silu)
    assert all(torch.equal(got[name], want[name]) for name in want)


@both_ways
def test_a_step_reaches_only_the_taps_after_it(reverse):
    """Changing x_k changes the outputs of steps k..k+w-1 and no others; reversed, k-w+1..k."""
    whole = case((1, 12, 5, 4), reverse=reverse)
    for k in range(12):
        x = whole.x.clone()
        x[:, k] += 1
        changed = conv_silu(*replace(whole, x=x).arguments) != conv_silu(*whole.arguments)
        reached = range(k - 3, k + 1) if reverse else range(k, k + 4)
        assert changed.any(-1)[0].nonzero().flatten().tolist() == [s for s in reached if 0 <= s < 12]


@pytest.mark.parametrize("mask", MASKS)
def test_reverse_is_flip_conv_flip(mask):
    """Reversed, the convolution is that of the flipped sequence, flipped back: bit for bit."""
    there = case((3, 9, 5, 4), mask, reverse=True)
    back = replace(there, x=there.x.flip(1), mask=there.mask.flip(1), dy=there.dy.flip(1), reverse=False)
    want, got = back.results(conv_silu), there.results(conv_silu)
    assert torch.equal(got["y"], want["y"].flip(1))
    assert_near(got, want | {name: want[name].flip(1) for name in ("y", "dx")}, 1e-12)


def test_same_bits_for_any_number_of_threads():
    """Two runs, and runs on one and several threads, agree bit for bit in values and gradients."""
    large = case((70, 40, 200, 4), "ragged").to(torch.float32)
    runs = []
    for threads in (1, 2, 2, 3):
        torch.set_num_threads(threads)
        runs.append(large.results(conv_silu))
    assert all(torch.equal(run[name], runs[0][name]) for run in runs for name in runs[0])


def test_strided_inputs():
    """Views (half of a projection, a transposed batch, an expanded gradient) give what their copies give."""
    whole = case((3, 6, 5, 4), "holes")
    views = [whole, replace(whole, x=whole.x.transpose(0, 1).contiguous().transpose(0, 1))]
    views += [replace(whole, x=whole.x.transpose(1, 2).contiguous().transpose(1, 2))]
    dense = replace(whole, x=whole.x.contiguous(), dy=torch.ones_like(whole.dy))
    want = dense.results(conv_silu)
    for view in views:
        assert not view.x.is_contiguous()
        got = replace(view, dy=torch.ones((), dtype=torch.float64).expand(whole.dy.shape)).results(conv_silu)
        assert all(torch.equal(got[name], want[name]) for name in want)


def test_the_output_is_dense():
    """Whatever the input's strides, the scan behind gets rows without gaps."""
    assert conv_silu(*case().arguments).is_contiguous()


def test_large_activations_saturate():
    """SiLU and its gradient stay finite where its exponential overflows."""
    far = case((2, 9, 5, 4)).to(torch.float32)
    results = replace(far, x=1e4 * far.x).results(conv_silu)
    assert all(t.isfinite().all() for t in results.values())


def test_no_sequences():
    """An empty batch gives an empty output and zero gradients."""
    results = case((0, 4, 5, 3)).results(conv_silu)
    assert results["y"].shape == results["dx"].shape == (0, 4, 5)
    assert not results["dweight"].any()


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_dtypes_promote_as_the_reference_does(weights):
    """bfloat16 tokens give what the reference gives, in its dtype, whether a kernel or the reference answers."""
    mixed = case((2, 9, 5, 4), "holes").to(torch.bfloat16)
    mixed = replace(mixed, weight=mixed.weight.to(weights), bias=mixed.bias.to(weights))
    want, got = mixed.results(reference.conv_silu), mixed.results(conv_silu)
    assert {name: t.dtype for name, t in got.items()} == {name: t.dtype for name, t in want.items()}
    assert_near(got, want, 2**-7)


def test_other_devices_use_the_reference(monkeypatch):
    """Without a kernel for the device, the definition answers."""
    monkeypatch.setattr(fused.CONV, "kernels", {})
    whole = case(mask="holes")
    assert_near(whole.results(conv_silu), whole.results(reference.conv_silu), 0)


@pytest.mark.parametrize(
    ("change", "code", "values"),
    [
        ({"x": torch.zeros(3, 5)}, "bad-op-shape", ("x [3, 5]", "weight [5, 4]", "[q l d]")),
        ({"weight": torch.zeros(5, 0)}, "bad-op-shape", ("weight [5, 0]",)),
        ({"weight": torch.zeros(4, 4)}, "bad-op-shape", ("weight", "[4, 4] on cpu", "[5, 4] on cpu")),
        ({"bias": torch.zeros(5, device="meta")}, "bad-op-shape", ("bias", "[5] on meta", "[5] on cpu")),
        ({"mask": torch.ones(3, 8, dtype=torch.bool)}, "bad-op-shape", ("mask", "[3, 8] on cpu", "[3, 7]")),
        ({"mask": torch.ones(3, 7)}, "bad-op-dtype", ("mask", "torch.float32", "torch.bool")),
    ],
)
def test_wrong_inputs_are_named(change, code, values):
    """A wrong shape, dtype or device is a ConfigError with the input's name, what it is and what it must be."""
    if hasattr(conv_silu, "__wrapped__"):
        pytest.skip("a run-time type checker is in the way")
    with raises(code, ConfigError) as error:
        conv_silu(*replace(case().to(torch.float32), **change).arguments)
    assert all(value in str(error.value) for value in values)

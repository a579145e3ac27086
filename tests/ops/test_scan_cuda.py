"""scan.cu against the definition in float64: on a GPU, and everywhere else a C++ compiler plays the GPU (warp.h)."""

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.cuda._utils import _nvrtc_compile

import scans
from dygmamba.ops import nvrtc
from dygmamba.ops import scan as op
from dygmamba.ops.scan import cuda
from interpreted import DEVICE, GPU, on_gpu, poison
from scans import ENTRIES, RULES, adjoints, combine, holes, inputs, padding_left

assert_exact: Any = partial(scans.assert_exact, "cuda")
fused_results: Any = partial(scans.fused_results, "cuda")

pytestmark = pytest.mark.slow  # a C++ compiler runs for most tests

HERE = Path(__file__).parent
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")

kernels_run = pytest.mark.skipif(not (GPU or COMPILER), reason="neither a GPU nor a C++ compiler is here")


@cache
def emulated(folder: Path, name: str, macros: tuple[tuple[str, int], ...]) -> cuda.Launch:
    """A kernel as a function of this process: 32 fibers take turns as the lanes of a warp."""
    stem = folder / "_".join([name, *(str(value) for _, value in macros)])
    defines = "".join(f"#define {macro} {value}\n" for macro, value in macros)
    code = f'{defines}#include "{HERE / "warp.h"}"\n#include "{cuda.SOURCE}"\nEMULATE({name})\n'
    stem.with_suffix(".cpp").write_text(code)
    library, flags = stem.with_suffix(".so"), ["-O0", "-w", "-std=c++17", "-shared", "-fPIC"]
    subprocess.run([str(COMPILER), *flags, "-o", library, stem.with_suffix(".cpp")], check=True)
    run = ctypes.CDLL(str(library))[f"run_{name}"]

    def launch(blocks: int, arguments: list[Tensor | int]) -> None:
        values = [
            ctypes.c_int(a) if isinstance(a, int) else ctypes.c_void_p(a.data_ptr() if a.numel() else None)
            for a in arguments
        ]
        run(blocks, (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values)))

    return launch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulated")


@pytest.fixture(autouse=True)
def anywhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without a GPU the kernels are emulated; fresh memory is NaN, and nobody writes beside it."""
    if not GPU:
        monkeypatch.setattr(cuda, "compile_variant", lambda name, macros, _: emulated(folder, name, macros))
    with poison():
        yield


@pytest.mark.skipif(GPU, reason="compiled for the GPU that is here")
@pytest.mark.parametrize(
    ("architecture", "name", "flags"),
    combine(
        # every pair of two values
        [
            ("80", "scan_forward", (1, 1, 1, 0, 1, 0)),
            ("90", "scan_forward", (0, 0, 0, 1, 0, 1)),
            ("80", "scan_backward", (0, 0, 0, 1, 0, 1)),
            ("90", "scan_backward", (1, 1, 1, 0, 1, 0)),
        ],
        ("80", "90"),
        ("scan_forward", "scan_backward"),
        ((1, 1, 1, 0, 1, 0), (0, 0, 0, 1, 0, 1)),
    ),
)
def test_torch_compiles_the_kernels_without_gpu_and_toolkit(
    architecture: str, name: str, flags: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a C++ compiler forgives, NVRTC may not; torch finds it in its wheel and makes machine code."""
    pytest.importorskip("nvidia.cu13", reason="the package nvidia-cuda-nvrtc is not installed")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr("torch.utils.cpp_extension.CUDA_HOME", None)
    macros = dict(zip(cuda.FLAGS, flags, strict=True))
    options = [f"-D{macro}={value}" for macro, value in macros.items()]
    with nvrtc.nvrtc_available():
        code, _ = _nvrtc_compile(cuda.SOURCE.read_text(), name, architecture, nvcc_options=options)
    assert code.startswith(b"\x7fELF")


@kernels_run
@pytest.mark.parametrize(
    ("rule", "entry", "reverse"),
    combine(
        # every pair of two values
        [
            ("zoh", "span", False),
            ("zoh", "delta", True),
            ("euler", "span", True),
            ("euler", "delta", False),
        ],
        RULES,
        ENTRIES,
        (False, True),
    ),
)
@pytest.mark.parametrize(("q", "length", "d"), [(1, 1, 4), (2, 8, 32), (2, 9, 36), (1, 31, 68)])
def test_every_shape_matches_the_definition(
    q: int, length: int, d: int, entry: str, rule: str, reverse: bool
) -> None:
    """For all lengths, widths, entries, rules and directions: outputs and gradients equal the definition's."""
    assert_exact(inputs(q, length, d, 16, entry), rule, reverse)


@kernels_run
@pytest.mark.parametrize(("rule", "entry", "reverse"), [("zoh", "span", False), ("euler", "delta", True)])
@pytest.mark.parametrize(("q", "length", "d"), [(2, 9, 40), (1, 31, 72)])
def test_bfloat16_rows_lose_only_their_own_digits(
    q: int, length: int, d: int, entry: str, rule: str, reverse: bool
) -> None:
    """The state stays in float32, so the error is that of rounding the rows."""
    x = inputs(q, length, d, 16, entry, holes, dtype=torch.bfloat16)
    x = x if x.span is None else x._replace(span=x.span.float())
    assert_exact(x, rule, reverse, tolerance=2**-7)


@kernels_run
def test_bfloat16_rows_may_lie_apart() -> None:
    """Halves of one projection are read as they lie, and give the bits of dense rows."""
    x = inputs(2, 9, 8, 16, dtype=torch.bfloat16)
    assert x.span is not None
    x = x._replace(span=x.span.float())
    u, z = torch.cat([x.present["u"], x.present["z"]], -1).chunk(2, -1)
    apart, dense = (fused_results(one, "zoh", False, *adjoints(x)) for one in (x._replace(u=u, z=z), x))
    for name, value in dense.items():
        assert torch.equal(apart[name], value), name


@kernels_run
class TestLaws(scans.Laws):
    """What holds for every implementation."""

    kernels, channels, states, ragged = "cuda", 8, 16, (9, 27)


@kernels_run
@pytest.mark.parametrize("rule", ["zoh", "euler"])
def test_a_closed_gate_has_a_gradient(rule: str) -> None:
    """Where z = 0 there is nothing of y, and yet the gradient of z is the definition's; so where SiLU underflows."""
    x = inputs(2, 10, 8, 16)
    x.present["z"][..., ::3] = 0
    x.present["z"][..., 1::3] *= 200
    assert_exact(x, rule)


@kernels_run
def test_a_step_of_no_weight_has_a_gradient() -> None:
    """Where w1 = 0 nothing moves, and yet the gradient of w1 is the definition's."""
    x = inputs(2, 10, 8, 16)
    x.present["w1"][::2] = 0
    assert_exact(x)


@kernels_run
@pytest.mark.parametrize("rule", ["zoh", "euler"])
@pytest.mark.parametrize("reverse", [False, True])
def test_how_the_work_is_cut_does_not_matter(
    rule: str, reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For windows of any size, with masks and backwards in time: the definition again."""
    monkeypatch.setattr(cuda, "WINDOW", 1)
    assert_exact(inputs(2, 29, 8, 16, "span", holes), rule, reverse)


@kernels_run
def test_rows_may_lie_apart() -> None:
    """Halves of one projection, rows that begin anywhere, and the gradient of a sum are read all the same."""
    x = inputs(2, 9, 8, 16)
    halves = torch.cat([x.present["u"], x.present["z"]], -1)
    u, z = halves.chunk(2, -1)
    shifted = torch.cat([x.B.flatten()[:1], x.B.flatten()])[1:].view(x.B.shape)
    dy = torch.ones((), device=DEVICE).expand(x.u.shape)
    dstate = torch.zeros(2, 8, 16, device=DEVICE)
    apart = fused_results(x._replace(u=u, z=z, B=shifted), "zoh", False, dy, dstate)
    dense = fused_results(x, "zoh", False, dy.contiguous(), dstate[:0])
    for name, value in dense.items():
        assert torch.equal(apart[name], value), name


@kernels_run
def test_a_sequence_is_the_same_alone_and_in_its_batch() -> None:
    """No result of a sequence depends on the others, in any bit."""
    x = inputs(5, 13, 36, 16, "span", holes)
    dy, dstate = adjoints(x)
    tokens = ("u", "span", "B", "C", "z", "mask", "state")
    few = x._replace(**{name: x.present[name][2:4] for name in tokens})
    many, alone = (
        fused_results(x, "zoh", False, dy, dstate),
        fused_results(few, "zoh", False, dy[2:4], dstate[2:4]),
    )
    for name in ("y", "final", "u", "span", "B", "C", "z", "state"):
        assert torch.equal(many[name][2:4], alone[name]), name


@kernels_run
def test_a_second_backward_finds_its_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward writes gradients over what forward kept; doing it again with retain_graph gives the same once more."""
    if not GPU:
        monkeypatch.setattr(op.SCAN, "kernels", {"cpu": ("cuda",)})
        monkeypatch.setattr(cuda, "can_compile", lambda device: True)
    x = inputs(2, 19, 8, 16, "span", padding_left)
    leaves: Any = {name: t.clone().requires_grad_(name != "mask") for name, t in x.present.items()}
    y, state = op.span_scan(**leaves)
    wanted = [t for t in leaves.values() if t.requires_grad]
    weight = torch.linspace(-1, 1, 8, device=DEVICE).expand_as(y)
    first, second = (
        torch.autograd.grad((y, state), wanted, (weight, state.detach()), retain_graph=True) for _ in range(2)
    )
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def test_only_what_the_kernels_were_made_for_is_served() -> None:
    """Sixteen states and channels in fours, of bfloat16 in eights; everything else is Triton's."""
    assert cuda.is_supported(inputs(2, 3, 4, 16))
    assert not cuda.is_supported(inputs(2, 3, 5, 16))
    assert not cuda.is_supported(inputs(2, 3, 4, 8))
    assert not cuda.is_supported(inputs(0, 3, 4, 16))
    assert cuda.is_supported(inputs(2, 3, 8, 16, dtype=torch.bfloat16))
    assert not cuda.is_supported(inputs(2, 3, 4, 16, dtype=torch.bfloat16))
    assert not cuda.is_supported(inputs(2, 3, 8, 16, dtype=torch.float16))


@pytest.mark.parametrize("entry", ["span", "delta"])
@pytest.mark.parametrize("rule", ["zoh", "euler"])
@pytest.mark.parametrize(("q", "length", "d"), [(8, 1000, 36), (3, 2048, 400), (70, 65, 100), (5, 64, 400)])
class TestLarge:
    """Shapes for a GPU: many chunks, windows, warps.

    Euler multiplies by e^X itself, which is rounded near 1: the gradient of w2 of these slow states shows it.
    """

    pytestmark = on_gpu

    def test_long_sequences_match_the_definition(self, q, length, d, rule, entry) -> None:
        """Errors do not grow with the length."""
        x, tolerance = inputs(q, length, d, 16, entry, scale=0.1), 1e-5 if rule == "zoh" else 2e-5
        assert_exact(x, rule, entry == "delta", tolerance)

    def test_long_ragged_sequences_match_the_definition(self, q, length, d, rule, entry) -> None:
        """Whole chunks without a live step are skipped, and still written."""
        x, tolerance = (
            inputs(q, length, d, 16, entry, padding_left, scale=0.1),
            1e-5 if rule == "zoh" else 2e-5,
        )
        assert_exact(x, rule, False, tolerance)

    def test_two_runs_agree_in_every_bit(self, q, length, d, rule, entry) -> None:
        """No result depends on the order in which warps finish."""
        x = inputs(q, length, d, 16, entry, holes)
        first, second = (fused_results(x, rule, False, *adjoints(x)) for _ in range(2))
        for name, value in first.items():
            assert torch.equal(second[name], value), name

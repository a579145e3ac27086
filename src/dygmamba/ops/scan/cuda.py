"""The scan on NVIDIA GPUs for 16 states: kernel launches. The arithmetic and its reasons are in `scan.cu`.

The source is compiled when it is first needed, by the NVRTC that comes with torch: users need no compiler.
Sums over channels (for B, C, span) are written per block of channels and added afterwards, in a fixed order: there
are no atomics, so two runs agree in every bit. To keep these partial sums small, backward is launched once per window
of time, the last one first, and the adjoint of the state is handed from launch to launch.

Legend: q sequences, l steps, d channels, n states.
"""

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from dygmamba.ops.dispatch import HAS_TRITON
from dygmamba.ops.nvrtc import compile_kernel
from dygmamba.ops.scan.inputs import Inputs, Upstream

SOURCE = Path(__file__).with_name("scan.cu")
IN_PLACE = True  # backward writes the gradients of u and z over the checkpoints, in float32
ONLY_STATES = 16
WIDTH = 32  # channels of a warp
CHUNK = 8  # tokens
WINDOW = 192 << 20  # bytes of partial sums over channels

REGISTERS = {"scan_forward": 128, "scan_backward": 255}  # most registers per thread

FLAGS = (
    "ZOH",
    "SPANS",
    "GATE",
    "REVERSE",
    "SPAN_GRADIENT",
    "HALF",
)  # macros that select the variant of the scan

Launch = Callable[[int, list[Tensor | int]], None]


def serves(x: Inputs) -> bool:
    """Return whether the kernels support these inputs and compile for their device."""
    return is_supported(x) and can_compile(x.u.device)


def is_supported(x: Inputs) -> bool:
    """Return whether the inputs have 16 states, float32 or bfloat16, and channels that fill copies of 16 bytes."""
    (d, n), known = x.A.shape, x.u.dtype in (torch.float32, torch.bfloat16)
    return known and n == ONLY_STATES and d % _copied(x.u) == 0 and x.u.numel() > 0


@cache
def can_compile(device: torch.device) -> bool:
    """Return whether the kernels compile for this device; warn once if not."""
    if torch.cuda.get_device_capability(device) < (8, 0):  # older GPUs have no asynchronous copies
        return False
    try:  # compile the variant that DyG-Mamba needs anyway
        compile_variant("scan_forward", _macros(zoh=True, spans=True, gate=True), device)
    except (AttributeError, OSError, RuntimeError) as error:
        text = f"scan.cu could not be compiled, so the Triton kernels run instead: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return False
    return True


def checkpoint_shape(x: Inputs) -> tuple[int, ...]:
    """Return the shape of the states before all chunks but the first; backward writes the gradients of u, z there."""
    return 2, *x.u.shape


@torch.no_grad()
def forward(x: Inputs, rule: str, reverse: bool, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Compute y, the final state and the checkpoints (of size 0 unless `keep`)."""
    q, _, d = x.u.shape
    y = torch.empty(x.u.shape, dtype=x.u.dtype, device=x.u.device)
    final = torch.empty(q, d, ONLY_STATES, device=x.u.device)
    kept = torch.empty(checkpoint_shape(x) if keep else (0, 0, 0, 0), device=x.u.device)
    tensors, sizes = _arguments(x)
    _launch("scan_forward", x, rule, reverse)(_blocks(x) * q, [*tensors, y, final, kept, *sizes])
    return y, final, kept


@torch.no_grad()
def backward(x: Inputs, rule: str, reverse: bool, given: Upstream) -> Inputs:
    """Compute the gradients in the fields of their inputs; None without an input or if the span's is not needed."""
    (q, length, d), device, blocks = x.u.shape, x.u.device, _blocks(x)
    steps = max(CHUNK, WINDOW // (8 * blocks * q * ONLY_STATES) // CHUNK * CHUNK)  # of a window
    window = min(length, steps)
    checkpoints, y, dy = given.checkpoints, given.y.contiguous(), _rows(given.dy)
    adjoint = torch.empty(q, d, ONLY_STATES, device=device)
    nothing = torch.empty(0, device=device)
    kind = {"dtype": x.u.dtype, "device": device}
    ddelta = nothing if x.delta is None else torch.empty(x.u.shape, **kind)
    gradients = checkpoints if x.u.dtype == checkpoints.dtype else torch.empty(checkpoints.shape, **kind)
    parts = torch.empty(2, blocks, q, window, ONLY_STATES, device=device)
    span_parts = (
        torch.empty(blocks, q, window, device=device) if given.span_grad and x.span is not None else nothing
    )
    dA = torch.empty(q, d, ONLY_STATES, device=device)
    vectors = torch.empty(3, q, d, device=device)
    dBC = torch.empty(2, *x.B.shape, device=device)
    dspan = torch.empty(q, length, device=device) if span_parts.numel() else None
    launch = _launch("scan_backward", x, rule, reverse, dspan is not None)
    tensors, sizes = _arguments(x)
    written = [checkpoints, gradients, adjoint, ddelta, parts, span_parts, dA, vectors]
    entry = _dense(given.dstate)
    for last in (length, *range((length - 1) // steps * steps, 0, -steps)):
        first = (last - 1) // steps * steps
        start, stop = (length - last, length - first) if reverse else (first, last)
        cut = [first // CHUNK, -(-last // CHUNK), start, window, int(last == length)]
        launch(blocks * q, [*tensors, y, dy, entry, *written, *sizes, dy.stride(0), dy.stride(1), *cut])
        entry = adjoint
        torch.sum(parts[:, :, :, : last - first], 1, out=dBC[:, :, start:stop])
        if dspan is not None:
            torch.sum(span_parts[:, :, : last - first], 0, out=dspan[:, start:stop])
    dD, dw1, dw2 = _sum_rows(vectors)
    spans = x.delta is None
    return Inputs(
        u=gradients[0],
        delta=None if spans else ddelta,
        span=dspan,
        w1=dw1 if spans else None,
        w2=dw2 if spans else None,
        A=_sum_rows(dA.view(1, q, -1)).view(d, ONLY_STATES),
        B=dBC[0].to(x.B.dtype),
        C=dBC[1].to(x.C.dtype),
        D=None if x.D is None else dD,
        z=None if x.z is None else gradients[1],
        mask=None,
        state=None if x.state is None else adjoint,
    )


def _sum_rows(x: Tensor) -> Tensor:
    """[k r c] to [k c]; tests emulate the kernels on a CPU, where Triton does not run."""
    if not (x.is_cuda and HAS_TRITON):
        return x.sum(1)
    from dygmamba.ops.rows.triton import sum_rows

    return sum_rows(x)


def _blocks(x: Inputs) -> int:
    return -(-x.u.shape[2] // WIDTH)


def _arguments(x: Inputs) -> tuple[list[Tensor], list[int]]:
    """Return the tensors both kernels read, with sizes and strides; an absent tensor becomes a null pointer."""
    nothing = torch.empty(0, 0, 0, device=x.u.device)
    u, delta, z = (nothing if t is None else _rows(t) for t in (x.u, x.delta, x.z))
    step = delta if x.span is None else x.span.contiguous()
    mask = None if x.mask is None else x.mask.contiguous().view(torch.uint8)
    state = None if x.state is None else _dense(x.state.transpose(1, 2))
    given = [u, step, x.w1, x.w2, _dense(x.A), _dense(x.B.float()), _dense(x.C.float()), x.D, z, mask, state]
    q, length, d = x.u.shape
    strides = [t.stride(axis) for t in (u, step, z) for axis in (0, 1)]
    return [nothing if t is None else t for t in given], [length, d, q, *strides]


def _rows(t: Tensor) -> Tensor:
    """Return the tensor with dense rows, aligned to 16 bytes; rows may lie apart, as the halves of a projection do."""
    copied = _copied(t)
    if t.stride(2) == 1 and t.stride(0) % copied == t.stride(1) % copied == t.data_ptr() % 16 == 0:
        return t
    return t.clone(memory_format=torch.contiguous_format)


def _copied(t: Tensor) -> int:
    """Return how many numbers a copy of 16 bytes has."""
    return 16 // t.element_size()


def _dense(t: Tensor) -> Tensor:
    """Return the tensor contiguous and aligned to 16 bytes."""
    t = t.contiguous()
    return t if t.data_ptr() % 16 == 0 else t.clone()


def _launch(name: str, x: Inputs, rule: str, reverse: bool, span_grad: bool = False) -> Launch:
    """Return the kernel for this variant of the scan; call it with the number of warps and its arguments."""
    half = x.u.dtype == torch.bfloat16
    macros = _macros(rule == "zoh", x.delta is None, x.z is not None, reverse, span_grad, half)
    return compile_variant(name, macros, x.u.device)


def _macros(
    zoh: bool, spans: bool, gate: bool, reverse: bool = False, span_grad: bool = False, half: bool = False
) -> tuple[tuple[str, int], ...]:
    """Return the macros of a variant of the scan with their values."""
    return tuple(zip(FLAGS, map(int, (zoh, spans, gate, reverse, span_grad, half)), strict=True))


@cache
def compile_variant(name: str, macros: tuple[tuple[str, int], ...], device: torch.device) -> Launch:
    """Compile a kernel of scan.cu for this device."""
    options = [f"-D{macro}={value}" for macro, value in macros] + [f"-maxrregcount={REGISTERS[name]}"]
    kernel = compile_kernel(SOURCE, name, options, device)

    def launch(blocks: int, arguments: list[Tensor | int]) -> None:
        with torch.cuda.device(device):
            kernel((blocks, 1, 1), (WIDTH, 1, 1), arguments)

    return launch

"""How Triton kernels are tested where there is no GPU: interpreted in a process of their own, and compiled unrun.

Interpreting is decided when triton is first imported, for a whole process; test_triton_interpreter.py starts one.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
GPU = torch.cuda.is_available() and not INTERPRETED
DEVICE = "cuda" if GPU else "cpu"
MARGIN = 64
POINTERS = {torch.int32: "*i32", torch.int64: "*i64", torch.uint8: "*u8", torch.float64: "*fp64"}

kernels_run = pytest.mark.skipif(not (GPU or INTERPRETED), reason="run by the interpreter's own process")
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not GPU, reason="too large for the interpreter")]

if INTERPRETED:
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch_index(tensor: Any, scope: Any) -> None:
        """Since NumPy 2.4 an array of one element is no index, but the interpreter's numbers are such arrays."""
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_index

    # Each call of a function inside a kernel patches the language again, which took most of the time; once per launch
    # and module is enough, since the patches last until the launch ends.
    patched: set[int] = set()
    launch = interpreter.GridExecutor.__call__

    def launch_kernel(executor: Any, *args: Any, **kwargs: Any) -> None:
        """The end of a launch takes the patches back."""
        patched.clear()
        launch(executor, *args, **kwargs)

    def call_function(function: Any, *args: Any, **kwargs: Any) -> Any:
        """A function that a kernel calls."""
        module = id(function.fn.__globals__)
        if module not in patched:
            interpreter._patch_lang(function.fn)
            patched.add(module)
        return function.rewrite()(*args, **kwargs)

    interpreter.GridExecutor.__call__ = launch_kernel
    interpreter.InterpretedFunction.__call__ = call_function


def interpret(*files: str) -> None:
    """Run test files again where Triton interprets, and fail where they fail."""
    command = [sys.executable, "-m", "pytest", *files, "-x", "-q", "-p", "no:randomly"]
    run = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def compile_for_hopper(kernel: Any, arguments: dict[str, Any], warps: int) -> None:
    """A kernel becomes machine code, GPU or no GPU; tensors are float32 unless in POINTERS, numbers 32-bit."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    fixed = {p.name: arguments[p.name] for p in kernel.params if p.is_constexpr}
    fixed |= {name: None for name, value in arguments.items() if value is None}
    numbers = dict.fromkeys(set(kernel.arg_names) - set(fixed), "i32")
    tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    pointers = {name: POINTERS.get(value.dtype, "*fp32") for name, value in tensors.items()}
    kinds = numbers | pointers | dict.fromkeys(fixed, "constexpr") | {"mask": "*u8"}
    signature = {name: kinds[name] for name in kernel.arg_names}
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(k),): v for k, v in fixed.items()})
    binary = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    assert binary.asm["cubin"]


@contextmanager
def poison() -> Iterator[None]:
    """Fresh memory is NaN, with a margin on either side that nobody may touch."""
    taken: list[Tensor] = []
    plain, full = torch.empty, torch.full

    def empty(*shape: Any, dtype: torch.dtype = torch.float32, device: Any = DEVICE, **more: Any) -> Tensor:
        if more or not dtype.is_floating_point:
            return plain(*shape, dtype=dtype, device=device, **more)
        shape = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        size = torch.Size(shape).numel()
        taken.append(full((size + 2 * MARGIN,), float("nan"), dtype=dtype, device=device))
        return taken[-1][MARGIN : MARGIN + size].view(shape)

    with patch.object(torch, "empty", empty):
        yield
    for memory in taken:
        assert memory[:MARGIN].isnan().all(), "something wrote before its tensor"
        assert memory[-MARGIN:].isnan().all(), "something wrote behind its tensor"

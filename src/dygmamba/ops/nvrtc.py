"""CUDA sources compiled where they run, by the NVRTC that comes with torch: a toolkit is not needed.

torch's own way to NVRTC expects it on the loader's path and CUDA's headers in a toolkit. Where torch came from wheels,
NVRTC lies in a package of its own, and there is no toolkit; our sources include nothing, so none is missed.
"""

import ctypes
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


def compile_kernel(source: Path, name: str, options: list[str], device: torch.device) -> Any:
    """A kernel of that file, to be called with grid, block and arguments; OSError if there is no NVRTC."""
    with torch.cuda.device(device), nvrtc_available():
        return torch.cuda._compile_kernel(source.read_text(encoding="utf-8"), name, nvcc_options=options)


@contextmanager
def nvrtc_available() -> Iterator[None]:
    """Inside, torch finds NVRTC and does not ask for a toolkit."""
    from torch.utils import cpp_extension

    _load_nvrtc()
    home = cpp_extension.CUDA_HOME
    cpp_extension.CUDA_HOME = home or str(Path(__file__).parent)
    try:
        yield
    finally:
        cpp_extension.CUDA_HOME = home


def _load_nvrtc() -> None:
    """Load NVRTC from its package unless the loader finds it; a library that is loaded is found by its name."""
    name = f"libnvrtc.so.{str(torch.version.cuda).partition('.')[0]}"
    try:
        ctypes.CDLL(name)
    except OSError:
        site = Path(sysconfig.get_paths()["purelib"])
        for library in site.glob(f"nvidia/*/lib/{name}"):
            for part in library.parent.glob("libnvrtc-builtins.so.*"):  # it asks for this one by name
                ctypes.CDLL(str(part), ctypes.RTLD_GLOBAL)
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)

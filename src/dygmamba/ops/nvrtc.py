"""Compile CUDA sources at run time with the NVRTC library that comes with torch; no CUDA toolkit is needed.

torch's own interface to NVRTC expects the library on the loader's path and CUDA's headers in a toolkit. With torch from
wheels, NVRTC is in a package of its own and there is no toolkit. Our sources include no headers, so none is needed.
"""

import ctypes
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


def compile_kernel(source: Path, name: str, options: list[str], device: torch.device) -> Any:
    """Compile one kernel of a file; call the result with grid, block and arguments.

    Raises OSError if NVRTC is not installed.
    """
    with torch.cuda.device(device), nvrtc_available():
        return torch.cuda._compile_kernel(source.read_text(encoding="utf-8"), name, nvcc_options=options)


@contextmanager
def nvrtc_available() -> Iterator[None]:
    """Context manager: torch finds NVRTC and does not require a toolkit."""
    from torch.utils import cpp_extension

    _load_nvrtc()
    home = cpp_extension.CUDA_HOME
    cpp_extension.CUDA_HOME = home or str(Path(__file__).parent)
    try:
        yield
    finally:
        cpp_extension.CUDA_HOME = home


def _load_nvrtc() -> None:
    """Load NVRTC from its package unless the loader finds it; once loaded, torch finds it by its name."""
    name = f"libnvrtc.so.{str(torch.version.cuda).partition('.')[0]}"
    try:
        ctypes.CDLL(name)
    except OSError:
        site = Path(sysconfig.get_paths()["purelib"])
        for library in site.glob(f"nvidia/*/lib/{name}"):
            for part in library.parent.glob("libnvrtc-builtins.so.*"):  # NVRTC loads this one by name
                ctypes.CDLL(str(part), ctypes.RTLD_GLOBAL)
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)

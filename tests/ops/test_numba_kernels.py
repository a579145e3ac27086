"""Kernels compiled here or read from the cache give the same bits; the cache is private, whole, or not used."""

import hashlib
import json
import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numba import njit

from dygmamba.core.errors import DygWarning, WriteError
from dygmamba.ops import numba_kernels
from torture_cases import SECONDS

SCAN = """
import hashlib, json, sys, torch
from dygmamba.ops.scan import span_scan

def digest(t):
    return hashlib.sha256(t.detach().contiguous().numpy().tobytes()).hexdigest()

found = []
for q, l, d, n in ((300, 24, 64, 4), (6, 24, 16, 4), (70, 40, 80, 3)):
    rng = torch.Generator().manual_seed(1)
    def draw(*shape):
        return torch.randn(*shape, generator=rng)
    x = dict(u=draw(q, l, d), span=draw(q, l).abs(), w1=draw(d).abs(), w2=draw(d).abs(), A=-draw(d, n).abs())
    x |= dict(B=draw(q, l, n), C=draw(q, l, n), D=draw(d), z=draw(q, l, d))
    for t in x.values():
        t.requires_grad_()
    y, _ = span_scan(**x)
    (y * draw(*y.shape)).sum().backward()
    found.append({"y": digest(y)} | {name: digest(t.grad) for name, t in x.items()})
print(json.dumps(found))
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, on one thread."""
    env = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def said(code: str, **environment: str) -> str:
    """What it prints, having ended well."""
    done = run(code, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def entries(cache: Path) -> list[Path]:
    """The kernels kept under a folder."""
    return sorted(cache.rglob("*.kernel"))


@pytest.mark.skipif(not SECONDS, reason="compiles for half a minute; `make torture` runs it")
def test_compiling_and_reading_give_the_same_bits(tmp_path):
    """For all shapes, values and gradients: as compiled here and as read from the cache."""
    first, second = (json.loads(said(SCAN, NUMBA_CACHE_DIR=str(tmp_path))) for _ in range(2))
    assert first == second
    forward, backward = entries(tmp_path)[::-1]
    assert "forward" in forward.name
    assert "backward" in backward.name
    if SECONDS:  # as read in part, whichever part
        for path in (forward, backward):
            path.unlink()
            assert json.loads(said(SCAN, NUMBA_CACHE_DIR=str(tmp_path))) == first


@pytest.fixture
def places(tmp_path, monkeypatch):
    """The folder the user names, and the one that is taken instead."""
    named, instead = tmp_path / "named", tmp_path / "instead"
    monkeypatch.setattr(numba_kernels, "list_cache_folders", lambda: iter([named, instead]))
    return named, instead


def answer() -> tuple[int, int]:
    """What a kernel says in a process that just began, and how often it was read from the cache."""
    folder = numba_kernels.private_folder.__wrapped__()
    assert folder is not None
    doubled: Any = njit(_doubled)
    doubled._cache = numba_kernels.KernelCache(folder, _doubled)
    return doubled(21), sum(doubled.stats.cache_hits.values())


def _doubled(x):
    return 2 * x


def damage(content: bytes) -> dict[str, bytes]:
    """Ways in which a file can be wrong."""
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 16
    half, noise = content[: len(content) // 2], os.urandom(len(content))
    return {"empty": b"", "truncated": half, "noise": noise, "flipped": bytes(flipped), "short": content[:7]}


def test_a_damaged_entry_is_compiled_anew(places):
    """For all kinds of damage: the same answer, no complaint, and a whole file afterwards."""
    assert answer() == (42, 0)
    assert answer() == (42, 1)
    (path,) = entries(places[0])
    whole = path.read_bytes()
    for kind, wrong in damage(whole).items():
        path.write_bytes(wrong)
        assert answer() == (42, 0), kind
        assert answer() == (42, 1), kind


def test_a_full_disk_costs_the_cache_only(places, monkeypatch):
    """Where an entry cannot be written, the kernel works and nothing is left over."""

    def full(*_: Any) -> None:
        raise WriteError("no space")

    monkeypatch.setattr(numba_kernels, "write_file", full)
    assert answer() == answer() == (42, 0)
    assert not entries(places[0])


def test_entries_of_other_sources_are_removed(places, monkeypatch):
    """A changed kernel is compiled anew, and what it was before does not stay on the disk."""
    assert answer() == (42, 0)
    before = entries(places[0])
    monkeypatch.setattr(numba_kernels, "hash_sources", lambda _: "0" * 16)
    assert answer() == (42, 0)
    assert len(entries(places[0])) == 1
    assert entries(places[0]) != before


NOWHERE = """
from pathlib import Path
from dygmamba.ops import numba_kernels
numba_kernels.list_cache_folders = lambda: iter([Path({file!r}) / "a", Path({file!r}) / "b"])
import numpy as np
from dygmamba.ops.key_slots import KeySlots
print(KeySlots().insert(np.array([7, 9, 7, 11])).tolist())
import dygmamba.data.generate.process as process
process.compile_simulation(process.exponential)
import dygmamba.ops.conv.cpu, dygmamba.ops.tokens.cpu, dygmamba.ops.recent_neighbors.cpu, dygmamba.ops.scan.cpu
"""


@pytest.mark.slow
def test_without_a_folder_every_kernel_works(tmp_path):
    """Where nothing can be written, kernels are compiled in memory, and one sentence says so."""
    (file := tmp_path / "file").write_text("no folder")
    done = run(NOWHERE.format(file=str(file)))
    assert (done.returncode, done.stdout) == (0, "[0, 1, 0, 2]\n"), done.stderr
    assert done.stderr.count("compiled kernels cannot be cached") == 1


LOOSE = [(0o777, 0o700, 0o600), (0o1777, 0o700, 0o600), (0o755, 0o777, 0o600), (0o755, 0o770, 0o600)]
LOOSE += [(0o755, 0o700, 0o666), (0o755, 0o700, 0o620)]


class Trap:
    """A pickle that writes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.write_text, (self.path, "caught")


def test_a_cache_that_others_can_write_is_not_read(places, tmp_path):
    """World-writable folder, loose own folder, loose file, link: what was planted is never run."""
    (named, instead), trap = places, tmp_path / "caught"
    answer()
    (path,) = entries(named)
    payload = pickle.dumps(Trap(trap))

    def plant(root: int = 0o755, folder: int = 0o700, file: int = 0o600) -> None:
        path.unlink()
        path.write_bytes(hashlib.sha256(payload).digest() + payload)
        for one, mode in ((path, file), (path.parent, folder), (named, root)):
            one.chmod(mode)

    plant()
    with pytest.raises(TypeError):  # the trap works where it may be read
        answer()
    assert trap.exists()
    trap.unlink()
    for root, folder, file in LOOSE:
        plant(root, folder, file)
        assert answer()[0] == 42
        assert not trap.exists(), (oct(root), oct(folder), oct(file))
    assert entries(instead)
    plant()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert answer() == (42, 0)
    assert not trap.exists()
    assert not path.is_symlink()


def test_a_foreign_folder_is_ignored(places, monkeypatch):
    """A folder of another user is passed over for the next one; what is made is this user's alone."""
    named, instead = places
    named.mkdir()
    ours, foreign = numba_kernels._is_private, named.stat().st_ino
    monkeypatch.setattr(
        numba_kernels, "_is_private", lambda s, others: s.st_ino != foreign and ours(s, others)
    )
    assert answer() == (42, 0)
    (path,) = entries(instead)
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path.parent, path)] == [0o700, 0o600]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_given_away_is_ignored(tmp_path, monkeypatch):
    """Ownership is asked of the system, of the folder and of each file."""
    os.chown(tmp_path, 12345, 12345)
    monkeypatch.setattr(numba_kernels, "list_cache_folders", lambda: iter([tmp_path]))
    with pytest.warns(DygWarning, match="none of"):
        assert numba_kernels.private_folder.__wrapped__() is None
    (file := tmp_path / "file").write_bytes(b"content")
    file.chmod(0o600)
    assert numba_kernels.read_private(file) == b"content"
    os.chown(file, 12345, 12345)
    assert numba_kernels.read_private(file) is None

"""A disk that remembers what it was told in which order, and what would be left of it after a power cut.

The model is the least that POSIX promises: bytes are safe once their file was flushed, names once their folder was.
Of what was not flushed, a folder keeps some first part of its changes, and a file any first part of its bytes, in
place of the rest zeros or nothing. Between two folders there is no order.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path

from dygmamba.core.files.writing import Disk


@dataclass(slots=True)
class File:
    """Bytes as they were written, and how many of them are safe."""

    content: bytearray = field(default_factory=bytearray)
    safe: int = 0

    def left(self, rng: random.Random) -> bytes:
        """What a power cut leaves."""
        kept = rng.choice([self.safe, len(self.content), rng.randint(self.safe, len(self.content))])
        lost = len(self.content) - kept
        return bytes(self.content[:kept]) + (b"\0" * lost if rng.random() < 0.3 else b"")


@dataclass(slots=True)
class Folder:
    """Names that are safe, and changes that are not yet: a name and what it stands for from then on."""

    names: dict[str, "File | Folder"] = field(default_factory=dict)
    changes: list[dict[str, "File | Folder | None"]] = field(default_factory=list)

    def now(self, count: int | None = None) -> dict[str, "File | Folder"]:
        """The names after the first `count` changes, or all of them."""
        found: dict[str, File | Folder | None] = {**self.names}
        for change in self.changes[:count]:
            found |= change
        return {name: thing for name, thing in found.items() if thing is not None}

    def left(self, rng: random.Random, path: Path) -> None:
        """Make on a real disk what a power cut leaves."""
        path.mkdir()
        count = rng.choice([0, len(self.changes), rng.randint(0, len(self.changes))])
        for name, thing in self.now(count).items():
            if isinstance(thing, Folder):
                thing.left(rng, path / name)
            else:
                (path / name).write_bytes(thing.left(rng))


class RecordingDisk(Disk):
    """The real disk, which also keeps the list of calls on files under `root`."""

    def __init__(self, root: Path) -> None:
        self.root, self.log, self._open = root, [], {}

    def create(self, path):
        handle = super().create(path)
        self._open[handle] = len(self.log)
        self.log.append(("create", len(self.log), path))
        return handle

    def write(self, handle, piece):
        count = super().write(handle, piece)
        self.log.append(("write", self._open[handle], bytes(piece[:count])))
        return count

    def sync(self, handle):
        super().sync(handle)
        self.log.append(("sync", self._open[handle]))

    def replace(self, old, new):
        super().replace(old, new)
        self.log.append(("replace", old, new))

    def remove(self, path):
        super().remove(path)
        self.log.append(("remove", path))

    def make_folder(self, path):
        super().make_folder(path)
        self.log.append(("make_folder", path))

    def sync_folder(self, path):
        super().sync_folder(path)
        self.log.append(("sync_folder", path))

    def note(self, fact) -> None:
        """What the program may rely on from here on."""
        self.log.append(("note", fact))

    def cut(self, at: int, rng: random.Random, path: Path) -> list:
        """Lay down at `path` what is left if the power goes after `at` calls; the notes until then."""
        top, files, notes = Folder(), {}, []
        for kind, *words in self.log[:at]:
            if kind == "note":
                notes += words
            elif kind == "write":
                files[words[0]].content += words[1]
            elif kind == "sync":
                files[words[0]].safe = len(files[words[0]].content)
            else:
                self._rename(top, files, kind, words)
        top.left(rng, path)
        return notes

    def _folder(self, top: Folder, path: Path) -> Folder:
        for name in path.relative_to(self.root).parts:
            top = top.now()[name]
        return top

    def _rename(self, top: Folder, files: dict[int, File], kind: str, words: list) -> None:
        path = words[-1]
        if kind == "sync_folder":
            if path.is_relative_to(self.root):
                folder = self._folder(top, path)
                folder.names, folder.changes = folder.now(), []
            return
        folder = self._folder(top, path.parent)
        if kind == "create":
            files[words[0]] = File()
            folder.changes.append({path.name: files[words[0]]})
        elif kind == "make_folder":
            folder.changes.append({path.name: Folder()})
        elif kind == "remove":
            folder.changes.append({path.name: None})
        else:
            assert words[0].parent == path.parent
            folder.changes.append({path.name: folder.now()[words[0].name], words[0].name: None})

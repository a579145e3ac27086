"""A disk that remembers what it was told in which order, and what would be left of it after a power cut.

The model is the least that POSIX promises: bytes are safe once their file was flushed, names once their folder was.
Of what was not flushed, a folder keeps some first part of its changes, and a file any first part of its bytes, in
place of the rest zeros or nothing. Between two folders there is no order; a move from one to another is done or not.

SQLite flushes its own files. They are taken as they are when a transaction has returned (`RecordingDisk.take`), and
of the next transaction a power cut leaves any first part.
"""

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

from dygmamba.core.files.writing import Disk


@dataclass(slots=True)
class File:
    """Bytes as they were written, and how many of them are safe."""

    content: bytearray = field(default_factory=bytearray)
    safe: int = 0

    def write(self, offset: int, chunk: bytes) -> None:
        """Bytes at an offset; those that change are not safe any more."""
        self.content.extend(bytes(max(0, offset - len(self.content))))
        known = bytes(self.content[offset : offset + len(chunk)])
        same = next(
            (k for k, (a, b) in enumerate(zip(known, chunk, strict=False)) if a != b),
            min(len(known), len(chunk)),
        )
        self.content[offset : offset + len(chunk)] = chunk
        if same < len(chunk):
            self.safe = min(self.safe, offset + same)

    def left(self, rng: random.Random) -> bytes:
        """What a power cut leaves."""
        kept = rng.choice([self.safe, len(self.content), rng.randint(self.safe, len(self.content))])
        lost = len(self.content) - kept
        return bytes(self.content[:kept]) + (b"\0" * lost if rng.random() < 0.3 else b"")


@dataclass(slots=True, eq=False)
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

    def remove_all(self) -> None:
        """Remove every name below this folder."""
        for name, thing in self.now().items():
            if isinstance(thing, Folder):
                thing.remove_all()
            self.changes.append({name: None})


@dataclass(slots=True)
class Move:
    """Something that was renamed from one folder into another, and the change of the target."""

    source: Folder
    old: str
    target: Folder
    change: dict[str, File | Folder | None]


class Remains:
    """What a power cut leaves of a tree: some first changes of each folder; no move is done by half."""

    def __init__(self, top: Folder, moves: list[Move], rng: random.Random) -> None:
        self._rng, self._top = rng, top
        self._kept: dict[Folder, tuple[int, dict[str, File | Folder]]] = {}
        for move in moves:
            ((_, thing),) = move.change.items()
            (count, _), (_, names) = self._choose(move.target), self._choose(move.source)
            if any(change is move.change for change in move.target.changes[count:]):
                names[move.old] = thing
            elif names.get(move.old) is thing:
                del names[move.old]

    def _choose(self, folder: Folder) -> tuple[int, dict[str, File | Folder]]:
        """How many changes of a folder are kept, the same each time, and the names after them."""
        if folder not in self._kept:
            total = len(folder.changes)
            count = self._rng.choice([0, total, self._rng.randint(0, total)])
            self._kept[folder] = count, folder.now(count)
        return self._kept[folder]

    def lay_down(self, path: Path, folder: Folder | None = None) -> None:
        """Make it on a real disk."""
        path.mkdir()
        for name, thing in self._choose(folder or self._top)[1].items():
            if isinstance(thing, Folder):
                self.lay_down(path / name, thing)
            else:
                (path / name).write_bytes(thing.left(self._rng))


class RecordingDisk(Disk):
    """The real disk, which also keeps the list of calls on files under `root`."""

    def __init__(self, root: Path) -> None:
        self.root, self.log, self._files = root, [], {}

    def _find(self, handle: int) -> int | None:
        """The number of an open file, whoever opened it; None for one that was made elsewhere."""
        facts = os.fstat(handle)
        return self._files.get((facts.st_dev, facts.st_ino))

    def create(self, path):
        handle = super().create(path)
        if path.is_relative_to(self.root):
            facts = os.fstat(handle)
            self._files[facts.st_dev, facts.st_ino] = len(self.log)
            self.log.append(("create", len(self.log), path))
        return handle

    def write(self, handle, piece):
        offset = os.lseek(handle, 0, os.SEEK_CUR)
        count = super().write(handle, piece)
        if (number := self._find(handle)) is not None:
            self.log.append(("write", number, bytes(piece[:count]), offset))
        return count

    def sync(self, handle):
        super().sync(handle)
        if (number := self._find(handle)) is not None:
            # all of it: a library may have written it in its own way
            self.log.append(("write", number, os.pread(handle, os.fstat(handle).st_size, 0), 0))
            self.log.append(("sync", number))

    def replace(self, old, new):
        super().replace(old, new)
        self.log.append(("replace", old, new))

    def remove(self, path):
        super().remove(path)
        self.log.append(("remove", path))

    def remove_folder(self, path):
        super().remove_folder(path)
        self.log.append(("remove_folder", path))

    def make_folder(self, path):
        super().make_folder(path)
        self.log.append(("make_folder", path))

    def sync_folder(self, path):
        super().sync_folder(path)
        self.log.append(("sync_folder", path))

    def take(self, *paths: Path) -> None:
        """Take files that another library has just flushed, or that it removed."""
        self.log.append(("take", {path: path.read_bytes() if path.exists() else None for path in paths}))

    def note(self, fact) -> None:
        """What the program may rely on from here on."""
        self.log.append(("note", fact))

    def cut(self, at: int, rng: random.Random, path: Path) -> list:
        """Lay down at `path` what is left if the power goes after `at` calls; the notes until then."""
        top, files, notes, moves, taken = Folder(), {}, [], [], {}
        for kind, *words in self.log[:at]:
            if kind == "note":
                notes += words
            elif kind == "write":
                files[words[0]].write(words[2], words[1])
            elif kind == "sync":
                files[words[0]].safe = len(files[words[0]].content)
            elif kind == "take":
                taken = self._take(top, words[0])
            else:
                self._rename(top, files, moves, kind, words)
        following = next((words[0] for kind, *words in self.log[at:] if kind == "take"), {})
        _tear(taken, following)
        Remains(top, moves, rng).lay_down(path)
        return notes

    def _folder(self, top: Folder, path: Path) -> Folder:
        for name in path.relative_to(self.root).parts:
            top = top.now()[name]
        return top

    def _take(self, top: Folder, contents: dict[Path, bytes | None]) -> dict[Path, File]:
        taken = {}
        for path, content in contents.items():
            names = self._folder(top, path.parent).names
            names.pop(path.name, None)
            if content is not None:
                names[path.name] = taken[path] = File(bytearray(content), len(content))
        return taken

    def _rename(self, top: Folder, files: dict[int, File], moves: list[Move], kind: str, words: list) -> None:
        path = words[-1]
        if not path.is_relative_to(self.root):
            return
        if kind == "sync_folder":
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
        elif kind == "remove_folder":
            if isinstance(found := folder.now().get(path.name), Folder):
                found.remove_all()
            folder.changes.append({path.name: None})
        else:
            self._move(folder, path.name, self._folder(top, words[0].parent), words[0].name, moves)

    def _move(self, target: Folder, new: str, source: Folder, old: str, moves: list[Move]) -> None:
        thing = source.now()[old]
        if source is target:
            target.changes.append({new: thing, old: None})
            return
        source.changes.append({old: None})
        target.changes.append({new: thing})
        moves.append(Move(source, old, target, target.changes[-1]))


def _tear(taken: dict[Path, File], following: dict[Path, bytes | None]) -> None:
    """Add what the next transaction writes to files that only grow, unflushed."""
    if all(
        content is not None and path in taken and content.startswith(bytes(taken[path].content))
        for path, content in following.items()
    ):
        for path, content in following.items():
            taken[path].content[:] = content

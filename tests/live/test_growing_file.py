"""A followed file that is rotated or emptied: each line is taken once, and lines that may be lost are told."""

import json
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from dygmamba.live import event_sources
from dygmamba.live.event_sources import follow_source
from dygmamba.live.growing_file import GrowingFile
from dygmamba.live.verdicts import Acknowledgement
from rotations import rotate_by_copying, rotate_by_renaming

DEADLINE = 20.0


class Log:
    """What a live run is to a source: events and the offset after them are kept together."""

    def __init__(self) -> None:
        self.offsets, self.numbers, self.unreadable, self.warnings = {}, [], 0, []

    def append(self, events, *, source, offset, wait):
        self.numbers += [int(event["n"]) for event in events]
        self.offsets[source] = json.loads(json.dumps(offset))
        return Acknowledgement(len(self.numbers), len(events), [])

    def note(self, batch, answer):
        self.unreadable += batch.unreadable
        self.warnings += [batch.warning] if batch.warning else []

    def wait_for(self, total: int) -> None:
        end = time.monotonic() + DEADLINE
        while len(self.numbers) < total and time.monotonic() < end:
            time.sleep(0.01)

    @contextmanager
    def following(self, path: Path):
        stop = threading.Event()
        thread = threading.Thread(target=follow_source, args=(self, GrowingFile(path), stop, self.note))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def write(path: Path, numbers, end: str = "\n") -> None:
    with path.open("a") as file:
        file.write("\n".join(json.dumps({"n": n}) for n in numbers) + end)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("rotate", [rotate_by_renaming, rotate_by_copying])
def test_every_line_of_a_rotated_file_is_taken_once(rotate: Callable[[Path], None], seed, tmp_path):
    """For all moments of rotation, several between two looks too, and for stops of the reader in between."""
    path, log, draw = tmp_path / "events.jsonl", Log(), random.Random(seed)
    path.touch()
    numbers = count()

    def write_some(rounds: int) -> None:
        for _ in range(rounds):
            write(path, [next(numbers) for _ in range(draw.randint(1, 12))])
            if draw.random() < 0.4:
                rotate(path)
            time.sleep(draw.choice([0, 0, 0.01, 0.1, 0.2]))

    with log.following(path):
        write(path, [next(numbers)])
        log.wait_for(1)  # files that were rotated before the first look are not read
        write_some(35)
    write_some(15)  # nobody reads
    with log.following(path):
        write_some(20)
        write(path, [total := next(numbers)], end="")
        log.wait_for(total + 1)
    assert total >= 400
    assert log.numbers == list(range(total + 1))
    assert (log.unreadable, log.warnings) == (0, [])


def test_lines_that_the_writer_adds_to_the_renamed_file_are_taken_in_order(tmp_path):
    """A writer goes on in the old file until it is told to open the new one, which stays empty so long."""
    path, log = tmp_path / "events.jsonl", Log()
    with log.following(path), path.open("a") as old:
        old.write('{"n": 0}\n')
        old.flush()
        log.wait_for(1)
        rotate_by_renaming(path)
        time.sleep(3 * event_sources.POLL_SECONDS)
        old.write('{"n": 1}\n{"n": 2}')  # the last line has no end
        old.flush()
        write(path, [3])
        log.wait_for(4)
    assert log.numbers == [0, 1, 2, 3]


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "stopped"])
def test_lines_that_may_be_lost_are_told(is_read, tmp_path):
    """An emptied or deleted file without a copy; afterwards the file is read from its start."""
    path, log = tmp_path / "events.jsonl", Log()
    write(path, range(5))
    with log.following(path):
        log.wait_for(5)
        if is_read:
            path.write_text("")
            write(path, range(5, 30))
            log.wait_for(30)
    if not is_read:
        Path(f"{path}.1").write_text('{"n": -1}\n')  # rotated before, and read
        path.write_text("")
        with log.following(path):
            while not log.warnings:
                time.sleep(0.01)
        write(path, range(5, 30))
        with log.following(path):
            log.wait_for(30)
    assert log.numbers == list(range(30))
    assert len(log.warnings) == 1


def test_a_file_that_is_renamed_while_it_is_searched_is_found(tmp_path, monkeypatch):
    """Its new name is not in the list that was made before: the writer was about to use the number that is free."""
    path, log = tmp_path / "events.jsonl", Log()
    write(path, [0])
    with log.following(path):
        log.wait_for(1)
    write(path, [1])
    path.rename(f"{path}.1")
    write(path, [2])
    Path(f"{path}.3").write_text('{"n": -1}\n')
    open_file = GrowingFile._open

    def rename_and_open(source, opened, *names):
        if Path(f"{path}.1").exists():
            Path(f"{path}.1").rename(f"{path}.2")
        return open_file(source, opened, *names)

    monkeypatch.setattr(GrowingFile, "_open", rename_and_open)
    os.utime(f"{path}.3", (1, 1))
    with log.following(path):
        log.wait_for(3)
    assert (log.numbers, log.warnings) == ([0, 1, 2], [])


def test_a_last_line_is_taken_when_it_is_complete(tmp_path, monkeypatch):
    """JSON when it can be parsed, CSV after a while; half a line is neither taken nor counted."""
    monkeypatch.setattr("dygmamba.live.growing_file.UNFINISHED_SECONDS", 1.0)
    path, table, log, rows = tmp_path / "events.jsonl", tmp_path / "events.csv", Log(), Log()
    path.write_text('{"n": 0}\n{"n": 1}')
    table.write_text("n,m\n0,0\n1")
    with log.following(path), rows.following(table):
        log.wait_for(2)
        write(path, [], end='\n{"n"')
        rows.wait_for(1)
        time.sleep(0.3)
        with table.open("a") as file:
            file.write("2,3")
        rows.wait_for(2)
        write(path, [], end=": 2}\n")
        log.wait_for(3)
    assert (log.numbers, log.unreadable) == ([0, 1, 2], 0)
    assert (rows.numbers, rows.unreadable) == ([0, 12], 0)


def test_rows_of_a_copied_and_emptied_table_keep_their_names(tmp_path):
    """Its writer adds no header to the emptied file; one that begins a new file does."""
    path, log = tmp_path / "events.csv", Log()
    path.write_text("n,m\n0,7\n")
    with log.following(path):
        log.wait_for(1)
        rotate_by_copying(path)
        path.write_text("1,7\n2,7\n")
        log.wait_for(3)
    rotate_by_renaming(path)
    path.write_text("m,n\n7,3\n")
    with log.following(path):
        log.wait_for(4)
    assert (log.numbers, log.unreadable) == ([0, 1, 2, 3], 0)


def test_an_offset_of_the_earlier_form_is_understood(tmp_path):
    """It has the position and the digest of the head only."""
    path, log = tmp_path / "events.csv", Log()
    path.write_text("n,m\n0,7\n")
    with log.following(path):
        log.wait_for(1)
    (kept,) = log.offsets.values()
    log.offsets = {name: {key: kept[key] for key in ("position", "head")} for name in log.offsets}
    with path.open("a") as file:
        file.write("1,7\n")
    with log.following(path):
        log.wait_for(2)
    assert (log.numbers, log.warnings) == ([0, 1], [])

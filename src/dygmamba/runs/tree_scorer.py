"""Scores of boosted trees for pairs of nodes, from the events observed so far; needs numpy and Numba only.

    from scorer import Scorer

    scorer = Scorer.load("folder")        # the folder of model.npz, or the zip file that holds it
    scorer.observe(src, dst, time)        # events, oldest first, in any number of parts
    scorer.score(src, dst, time)          # the probability of each pair

or, for files: python scorer.py events.csv pairs.csv > scores.csv

A score depends on events strictly earlier than its time only. `dygmamba export` copies this file, as scorer.py, and the
modules that it imports into a zip file (`export_numpy.py`).

Legend: p pairs, k neighbors, f features.
"""

import csv
import hashlib
import io
import json
import re
import sys
import zipfile
import zlib
from datetime import timezone
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from dygmamba.core.errors import DygError
from dygmamba.core.settings import load
from dygmamba.data.events.column_facts import ColumnFacts
from dygmamba.history.block_lists import EventRows
from dygmamba.history.columns import ColumnFeatures, ColumnValues
from dygmamba.history.counts import EventCounts, PairNeighbors
from dygmamba.history.neighbor_lists import NeighborLists
from dygmamba.ops.recent_neighbors.cpu_kernels import last_k
from dygmamba.ops.trees.cpu_kernels import add_leaves

MISSING_IDS = ("", "nan", "null", "none", "n/a", "#n/a", "<na>", "\\n")
MAX_PAIRS = 1024  # that are scored at once, which bounds the memory


class NodeNumbers:
    """Numbers of the user's ids, those of training first; 7 and "7" are the same id."""

    def __init__(self, ids, is_source):
        sides = (None, None) if is_source is None else (is_source, ~is_source)
        self.tables = [{} for _ in range(1 if is_source is None else 2)]
        self.count = len(ids)
        for table, side in zip(self.tables, sides, strict=False):
            chosen = np.arange(len(ids)) if side is None else np.flatnonzero(side)
            table.update(zip(map(str, ids[chosen].tolist()), chosen.tolist(), strict=True))

        # where all ids of training are integers, the text '7.0' is 7
        self.is_whole = [all(re.fullmatch(r"-?[0-9]+", name) for name in table) for table in self.tables]

    def find(self, ids, side):
        """Return the number of each source (side 0) or destination (side 1), -1 for an unknown id."""
        names, _, place = self._list_names(ids, side)
        table = self.tables[side % len(self.tables)]
        return np.array([table.get(name, -1) for name in names], np.int64)[place]

    def add(self, src, dst):
        """Number the unknown ids of events, in the order of their first event."""
        sides = [src, dst]
        if len(self.tables) == 1:  # a source comes before the destination of its event
            sides = [np.stack([np.asarray(src), np.asarray(dst)], 1).ravel()]
        for side, ids in enumerate(sides):
            table = self.tables[side]
            names, first, _ = self._list_names(ids, side)
            for number in np.argsort(first):
                if names[number] not in table:
                    table[names[number]] = self.count
                    self.count += 1

    def _list_names(self, ids, side):
        """Return the distinct ids as text, the first place of each, and the number of each id among them."""
        ids = np.asarray(ids)
        if ids.dtype.kind == "O":  # of several types, which have no order
            ids = np.array([self._read_id(value, side) for value in ids.tolist()], str)
        distinct, first, place = np.unique(ids, return_index=True, return_inverse=True)
        return [self._read_id(value, side) for value in distinct.tolist()], first, place

    def _read_id(self, value, side):
        """Return an id as text, by the rule of dygmamba.data.events.id_values; ValueError if it is none."""
        if isinstance(value, float) and value.is_integer() and -(2**63) <= value < 2**63:
            value = int(value)  # data frames write integers with gaps as 7.0
        text = str(value).strip()
        table, is_whole = (part[side % len(self.tables)] for part in (self.tables, self.is_whole))
        is_missing = text.lower() in MISSING_IDS and text not in table
        if isinstance(value, bool) or not isinstance(value, (str, int)) or is_missing:
            raise ValueError(f"{value!r} is not an id; give a string or an integer")
        return text[:-2] if is_whole and re.fullmatch(r"-?[0-9]+\.0", text) else text


class History:
    """The events so far, in the tables of the requests for features; an `Index` of dygmamba without torch."""

    def __init__(self, about):
        empty = np.zeros(0, np.int64)
        self.near = NeighborLists(EventRows(empty, empty, empty.astype(np.float64), 0))
        self.tables, self.columns = {}, ColumnFacts()
        self.requests = [read_request(**part) for part in about["features"]]
        for request in self.requests:
            request.prepare(self)
            if isinstance(request, ColumnFeatures):
                self.columns = request.columns

    def table(self, kind, settings):
        """Return the table of this kind and these settings."""
        return self.tables.setdefault((kind, settings), kind(settings, is_growing=True))

    def counts(self, scales):
        """Return the decayed counts of the events on these scales."""
        return self.table(EventCounts, scales)

    def find_pair_neighbors(self, pairs, k):
        """Return the last `k` neighbors of both ends of each pair strictly before its time."""
        node, when = np.concatenate([pairs.src, pairs.dst]), np.concatenate([pairs.time, pairs.time])
        (near, event), time = np.empty((2, len(node), k), np.int32), np.empty((len(node), k))
        length, row = np.empty(len(node), np.int64), np.arange(len(pairs.src))
        last_k(*self.near.entries, node, when, near, event, time, length)
        is_entry = np.arange(k) < length[:, None]
        near, age = np.where(is_entry, near.astype(np.int64), -1), (when[:, None] - time) * is_entry
        return PairNeighbors(near, age, when, (row, row + len(row)))

    def append(self, src, dst, time, num_nodes, columns):
        """Append events in time order, none earlier than those before."""
        edge, codes = self._read_columns(columns, len(src))
        rows = EventRows(src, dst, time, num_nodes, edge=edge, codes=codes)
        for table in (self.near, *self.tables.values()):
            table.append_rows(rows)

    def compute_features(self, src, dst, time, columns):
        """Return the features of each pair in 32 bits [p f], in the order of `about["numbers"]`."""
        values = ColumnValues(*self._read_columns(columns, len(src))) if columns else None
        pairs = SimpleNamespace(src=src, dst=dst, time=time, columns=SimpleNamespace(values=values))
        return np.concatenate([part.compute(self, pairs, src, dst, time) for part in self.requests], axis=1)

    def _read_columns(self, columns, count):
        """Return the numbers of events or pairs, and the codes of their types, -1 for a rare or unknown one."""
        edge = np.zeros((count, len(self.columns.numeric)), np.float32)
        codes = np.zeros((count, len(self.columns.types)), np.int32)
        for column in self.columns.numeric:
            edge[:, column.index] = np.asarray(columns[column.name], np.float32)
        for column in self.columns.types:
            code = dict(zip(column.values, column.codes, strict=True))
            values = np.asarray(columns[column.name]).tolist()
            codes[:, column.index] = [code.get(str(value), -1) for value in values]
        return edge, codes


def read_request(kind, settings):
    """Return the request of a group of features, from its module, its name and its settings."""
    module, name = kind
    if not module.startswith("dygmamba.history."):
        raise ValueError(f"{module} is no module of features; export the run again")
    return load(getattr(import_module(module), name), settings)


class Scorer:
    """Boosted trees, their calibration, and what has been observed of the events so far."""

    def __init__(self, about, arrays):
        self.about, self.arrays = about, arrays
        self.history = History(about)
        self.nodes = NodeNumbers(arrays["ids"], arrays.get("is_source"))
        self.first, self.newest, self.has_whole_times = arrays["first_training_time"], -np.inf, True

    @staticmethod
    def load(path):
        """Read model.npz of a folder, or of a zip file; ValueError if it is damaged."""
        path = Path(path)
        if path.is_dir():
            return Scorer.parse((path / "model.npz").read_bytes(), path)
        try:
            with zipfile.ZipFile(path) as archive:
                content = archive.read("model.npz")
        except (KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{path} is damaged ({error}); export the run again") from error
        return Scorer.parse(content, path)

    @staticmethod
    def parse(content, path=Path("model.npz")):
        """Return the scorer of the bytes of model.npz, after a comparison with its digest; `path` is for messages."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            if bytes(arrays.pop("digest")).decode() != compute_digest(arrays):
                raise ValueError("its content does not match its digest")
            about = json.loads(bytes(arrays.pop("about")).decode())
        except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{path} is damaged ({error}); export the run again") from error
        return Scorer(about, arrays)

    def observe(self, src, dst, time, columns=None):
        """Add events to the history; they must not be earlier than those observed before.

        Args:
            src: Ids of the sources, numbers or strings.
            dst: Ids of the destinations.
            time: Numbers in the unit of the training data, or datetime64 where it has dates.
            columns: The columns that the model reads (`about["columns"]`), by name.
        """
        time = convert_times(time)
        require_lengths(len(time), {**(columns or {}), "src": src, "dst": dst})
        order = np.argsort(time, kind="stable")
        if len(order) and time[order[0]] < self.newest:
            raise ValueError(
                f"an event at {time[order[0]]} is earlier than one observed before, at {self.newest}; "
                "load the scorer again and observe all events in the order of their times"
            )
        columns = {name: np.asarray(self._get_column(columns, name))[order] for name in self.about["columns"]}
        src, dst = (np.asarray(ids)[order] for ids in (src, dst))
        self.nodes.add(src, dst)
        src, dst = (self.nodes.find(ids, side) for side, ids in enumerate((src, dst)))
        if len(order):
            self.has_whole_times &= bool((time == np.floor(time)).all())
            self.history.append(src, dst, time[order], self.nodes.count, columns)
            self.newest = float(time[order[-1]])
        return self

    def score(self, src, dst, time=None, columns=None):
        """Return the probability that each pair is an event and not the source with a random destination.

        A model without a calibration returns the logistic function of the logit.
        Without `time`, at the first instant after all observed events; `columns` of the pairs are read only if the
        model scores events with their columns (`about["query_columns"]`).
        """
        time = self._fill_time(time, src)
        odds = self.compute_logits(src, dst, time, columns)
        calibration = self.about["calibration"]
        if calibration is None:
            return 1 / (1 + np.exp(-odds))
        odds = evaluate_curve(odds, calibration["slope"], calibration["bias"], calibration["knots"])
        new_source, new_destination = (self._is_new(ids, side, time) for side, ids in enumerate((src, dst)))
        offset = new_source * calibration["new_source"] + new_destination * calibration["new_destination"]
        offset += (new_source & new_destination) * calibration["both_new"]
        return 1 / (1 + np.exp(-(odds + offset)))

    def _is_new(self, ids, side, time):
        """Return whether each node has no training event strictly before each time."""
        node = self.nodes.find(ids, side)
        is_listed = (node >= 0) & (node < len(self.first))
        return ~is_listed | (self.first[np.where(is_listed, node, 0)] >= time)

    def _fill_time(self, time, src):
        if time is not None:
            return convert_times(time)
        step = (
            1 if self.has_whole_times and abs(self.newest) < 2**53 else 1e-6 if self.about["is_dated"] else 0
        )
        return np.full(len(src), self.newest + step if step else np.nextafter(self.newest, np.inf))

    def compute_logits(self, src, dst, time=None, columns=None):
        """Return the sum of the trees for each pair; the arguments are those of `score`."""
        time = self._fill_time(time, src)
        require_lengths(len(time), {**(columns or {}), "src": src, "dst": dst})
        src, dst = (self.nodes.find(ids, side) for side, ids in enumerate((src, dst)))
        wanted = self.about["query_columns"]
        columns = {name: np.asarray(self._get_column(columns, name)) for name in wanted}
        total, names = np.zeros(len(time)), ("feature", "threshold", "left", "right", "value")
        feature, threshold, left, right, value = (self.arrays[name] for name in names)
        for begin in range(0, len(time), MAX_PAIRS):
            rows = slice(begin, begin + MAX_PAIRS)
            query = {name: column[rows] for name, column in columns.items()}
            features = self.history.compute_features(src[rows], dst[rows], time[rows], query)
            columns_first = np.ascontiguousarray(features.T)
            add_leaves(feature, threshold, left, right, value, columns_first, total[rows])
        return float(self.arrays["base"]) + total

    def _get_column(self, columns, name):
        if columns is None or name not in columns:
            raise ValueError(f"the model reads the column {name!r}; give `columns` with it, an array by name")
        return columns[name]


def evaluate_curve(z, slope, bias, knots):
    """Return the log-odds of logits, as `dygmamba.tasks.calibration.Calibration` defines them, before offsets."""
    if len(knots) < 2:
        return slope * z + bias
    x, f = np.array(knots).T
    left = (np.searchsorted(x, z) - 1).clip(0, len(x) - 2)
    inside = f[left] + (z - x[left]) * (f[left + 1] - f[left]) / (x[left + 1] - x[left])
    below, above = f[0] + slope * (z - x[0]), f[-1] + slope * (z - x[-1])
    return np.where(z < x[0], below, np.where(z > x[-1], above, inside))


def compute_digest(arrays):
    """Return the SHA-256 of named arrays: of names, types, shapes and bytes."""
    sha = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        sha.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()


def require_lengths(count, columns):
    """Raise ValueError unless every column has this many rows."""
    for name, column in columns.items():
        if len(column) != count:
            raise ValueError(
                f"there are {count:,} times and {len(column):,} rows of {name!r}; give as many of each"
            )


def convert_times(time):
    """Convert times to float64; dates to seconds since 1970, in UTC where they have no zone."""
    time = np.asarray(time)
    if time.dtype.kind == "O":
        aware = [value if value.tzinfo else value.replace(tzinfo=timezone.utc) for value in time]  # noqa: UP017
        time = np.array([value.timestamp() for value in aware])
    if time.dtype.kind == "M":
        whole, rest = np.divmod(time.astype("datetime64[us]").astype(np.int64), 10**6)
        time = whole + rest / 1e6
    time = time.astype(np.float64)
    if not np.isfinite(time).all():
        raise ValueError("a time is missing or not finite; leave out that row")
    return time


def read_csv(path, about, needs_time):
    """Read a file with a header: sources, destinations, times (None if there are none) and all columns by name."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    found = []
    for usual, name in zip(("src", "dst", "time"), about["table"], strict=True):
        found.append(columns.get(name, columns.get(usual)))
        if found[-1] is None and (usual != "time" or needs_time):
            advice = "add it" if name == usual else f"add it, or name it {usual!r}"
            raise ValueError(f"{path} has no column {name!r}; {advice}")
    src, dst, time = found
    return src, dst, None if time is None else parse_times(time, about["ticks"], path), columns


def parse_times(texts, ticks, path):
    """Parse times: numbers divided by `ticks` (units per second), or ISO dates as datetime64."""
    try:
        return np.array(texts, np.float64) / ticks
    except ValueError:
        try:
            return np.array([text.strip().removesuffix("Z") for text in texts], "datetime64[us]")
        except ValueError as error:
            raise ValueError(f"{path}: {error}; write times as numbers or as 2024-05-31T12:00:00Z") from error


def main(path):
    """Observe the events of one file, score the pairs of another one and print them; `path` holds the model."""
    if len(sys.argv) != 3:
        sys.exit("usage: python PROGRAM events.csv pairs.csv > scores.csv")
    try:
        scorer = Scorer.load(path)
        scorer.observe(*read_csv(sys.argv[1], scorer.about, True))
        src, dst, time, columns = read_csv(sys.argv[2], scorer.about, False)
        scores = scorer.score(src, dst, time, columns)
    except (ValueError, OSError, DygError) as error:
        sys.exit(f"error: {error}")
    writer = csv.writer(sys.stdout)
    writer.writerow([*columns, "score"])
    writer.writerows(zip(*columns.values(), scores.tolist(), strict=True))


if __name__ == "__main__":
    main(Path(__file__).parent)

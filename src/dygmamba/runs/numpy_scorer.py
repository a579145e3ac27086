"""Scores of boosted trees for pairs of nodes in numpy, from the events observed so far.

With the two modules it imports it is one file, scorer.py, that `dygmamba export` writes next to the model
(`export_numpy.py`), so it needs numpy only.
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
from pathlib import Path

import numpy as np

from dygmamba.runs.numpy_features import FEATURES

MAX_NODES = 1 << 26  # so that the key of a pair and a type has 63 bits
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
        if self.count > MAX_NODES:
            raise ValueError(f"there are more than {MAX_NODES:,} nodes; score them with dygmamba itself")

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


class Scorer:
    """Boosted trees, their calibration, and what has been observed of the events so far."""

    def __init__(self, about, arrays):
        self.about, self.arrays = about, arrays
        self.features = [FEATURES[part["kind"]](part) for part in about["features"]]
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
        ends = [self.nodes.find(ids, side) for side, ids in enumerate((src, dst))]
        if len(order):
            self.has_whole_times &= bool((time == np.floor(time)).all())
            for part in self.features:
                part.append(*ends, time[order], columns)
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
        slope, knots, z = calibration["slope"], calibration["knots"], odds
        odds = slope * z + calibration["bias"]
        if len(knots) > 1:
            x, f = np.transpose(knots)
            odds = np.interp(z, x, f) + slope * (np.minimum(z - x[0], 0) + np.maximum(z - x[-1], 0))
        is_new = [self._is_new(ids, side, time) for side, ids in enumerate((src, dst))]
        odds = odds + is_new[0] * calibration["new_source"] + is_new[1] * calibration["new_destination"]
        return 1 / (1 + np.exp(-(odds + (is_new[0] & is_new[1]) * calibration["both_new"])))

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
        ends = [self.nodes.find(ids, side) for side, ids in enumerate((src, dst))]
        wanted = self.about["query_columns"]
        columns = {name: np.asarray(self._get_column(columns, name)) for name in wanted}
        parts = [np.zeros(0)]
        for begin in range(0, len(time), MAX_PAIRS):
            rows = slice(begin, begin + MAX_PAIRS)
            query = {name: column[rows] for name, column in columns.items()}
            parts.append(
                self._sum_trees(self._compute_features(ends[0][rows], ends[1][rows], time[rows], query))
            )
        return np.concatenate(parts)

    def _compute_features(self, src, dst, time, query):
        """Return the features of each pair in 32 bits [p f], in the order of `about["numbers"]`."""
        parts = [part for features in self.features for part in features.compute(src, dst, time, query)]
        return np.concatenate(parts, 1).astype(np.float32)

    def _sum_trees(self, x):
        """Send every row down every tree: left where its feature is not above the threshold."""
        rows, total = np.arange(len(x)), np.zeros(len(x))
        names = ("feature", "threshold", "left", "right", "value")
        for feature, threshold, left, right, value in zip(
            *(self.arrays[name] for name in names), strict=True
        ):
            at = np.zeros(len(x), np.int64)
            while (feature[at] >= 0).any():
                is_left = x[rows, feature[at].clip(0)] <= threshold[at]
                at = np.where(feature[at] >= 0, np.where(is_left, left[at], right[at]), at)
            total += value[at]
        return float(self.arrays["base"]) + total

    def _get_column(self, columns, name):
        if columns is None or name not in columns:
            raise ValueError(f"the model reads the column {name!r}; give `columns` with it, an array by name")
        return columns[name]


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
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    writer = csv.writer(sys.stdout)
    writer.writerow([*columns, "score"])
    writer.writerows(zip(*columns.values(), scores.tolist(), strict=True))


if __name__ == "__main__":
    main(Path(__file__).parent)

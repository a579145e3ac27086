"""Where training ends and the test begins, in the user's words: three shares, or two of the stream's own times."""

from collections.abc import Sequence
from math import isclose

import pyarrow as pa

from dygmamba.data.formats import ReadOptions
from dygmamba.data.formats.pairs import read_times
from dygmamba.data.formats.values import Place
from dygmamba.data.splits import PUBLISHED, SplitBy
from dygmamba.data.store import Dataset
from dygmamba.errors import ConfigError, FileError
from dygmamba.runs.questions import Desk

Cuts = str | Sequence[float | str]
TAKES = (
    "`split` takes three shares that add up to 1, such as 0.7,0.15,0.15, or two times, when validation and test begin, "
    "such as 2024-01-01,2024-06-01"
)


def split_by(dataset: Dataset, given: Cuts | None, time_unit: str = "auto") -> SplitBy:
    """How a dataset is cut; as published where nothing is said."""
    if given is None:
        return PUBLISHED
    parts = given.split(",") if isinstance(given, str) else list(given)
    words = [str(part).strip() for part in parts]
    said = ",".join(words)
    if len(words) == 3:
        return SplitBy(_shares(words, said), said)
    if len(words) == 2:
        return SplitBy(_moments(dataset, words, said, time_unit), said)
    raise ConfigError(f"{TAKES}; got '{said[:80]}'")


def _shares(words: list[str], said: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(word) for word in words)
    except ValueError:
        shares = ()
    if not shares or not all(0 < share < 1 for share in shares) or not isclose(sum(shares), 1, abs_tol=1e-6):
        raise ConfigError(f"{TAKES}; got '{said[:80]}'")
    return shares


def _moments(dataset: Dataset, words: list[str], said: str, time_unit: str) -> tuple[float, ...]:
    try:
        times = read_times(pa.array(words), Place("`split`", "time", 0), time_unit)
    except (FileError, UnicodeEncodeError) as error:
        raise ConfigError(f"{TAKES}; got '{said[:80]}'") from error
    Desk(dataset, ReadOptions(), integers=False).check_times("`split`", times.epoch, times.value)
    first, second = (float(time) for time in times.value)
    if not first < second:
        raise ConfigError(
            f"validation begins before the test does; got '{said[:80]}', give the earlier time first"
        )
    begin, end = float(dataset.store.time[0]), float(dataset.store.time[-1])
    if not begin < first or not second <= end:
        raise ConfigError(
            f"`split` must leave events to each period, but the stream goes from {begin:.12g} to {end:.12g} and the "
            f"periods begin at {first:.12g} and {second:.12g}; choose times inside"
        )
    return first, second

"""Where training ends and the test begins, in the user's words: three shares, or two of the stream's own times."""

import pyarrow as pa

from dygmamba.data.boards import board_of, usual_split
from dygmamba.data.cuts import BOARD, TAKES, Cuts, shares, words_of
from dygmamba.data.formats import ReadOptions
from dygmamba.data.formats.pairs import own_times
from dygmamba.data.formats.values import Place
from dygmamba.data.splits import SplitBy
from dygmamba.data.store import Dataset
from dygmamba.errors import ConfigError, FileError
from dygmamba.runs.questions import Desk


def split_by(dataset: Dataset, given: Cuts | None) -> SplitBy:
    """How a dataset is cut; where nothing is said as its scoreboard does, or as published."""
    if given is None:
        return usual_split(dataset)
    if given == BOARD:
        return board_of(dataset).split
    words = words_of(given)
    said = ",".join(words)
    found = shares(words)
    return SplitBy(_moments(dataset, words, said) if found is None else found, said)


def _moments(dataset: Dataset, words: list[str], said: str) -> tuple[float, ...]:
    try:
        times = own_times(pa.array(words), Place("`split`", "time", 0), ReadOptions(), dataset.origin)
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

"""Where a dataset came from, and how its source was understood."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from dygmamba.core.settings import check_value


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a dataset came from: the file without its folder, and what its columns meant."""

    file: str = ""
    format: str = ""
    src: str = ""
    dst: str = ""
    time: str = ""
    label: str = ""
    features: tuple[str, ...] = ()
    time_unit: str = ""  # "s" where the source says so; empty: numbers as they came
    time_origin: str = ""  # the instant of time 0, where the source says so
    out_of_order: int = 0  # rows of the source that were earlier than a row above them
    header: bool = (
        True  # whether the source named its columns; if not they are called by their places, from "0"
    )
    delimiter: str = ""  # of text; a blank stands for runs of blanks
    comments: int = 0  # lines before the first that were none
    clock: str = ""  # what the times were: numbers, dates, or ticks since 1970 such as "ms since 1970"
    guessed: bool = False  # whether the unit or format of the times was found out by their look
    order: str = ""  # of year, month and day in dates: ymd, dmy, mdy
    time_format: str = ""  # of dates, where one was given
    zone: str = ""  # of dates: given, none (taken as UTC) or mixed
    skipped: int = 0  # rows that could not be read and were left out
    skipped_first: tuple[str, ...] = ()  # the first few of them


def parse_origin(about: Mapping[str, Any]) -> Origin:
    """Where it came from, each word of it a word."""
    hints = get_type_hints(Origin)
    words = {**about, "features": about["features"]}
    return Origin(**{key: check_value(key, value, hints.get(key, str)) for key, value in words.items()})

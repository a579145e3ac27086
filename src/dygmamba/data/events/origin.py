"""Origin of a dataset: the source file, its columns, and how its timestamps were interpreted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from dygmamba.core.settings import check_value


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a dataset: the name of the source file and the meaning of its columns."""

    file: str = ""
    format: str = ""
    src: str = ""
    dst: str = ""
    time: str = ""
    label: str = ""
    features: tuple[str, ...] = ()
    time_unit: str = ""  # "s" if known; empty for plain numbers
    time_origin: str = ""  # the date of time 0, if known
    out_of_order: int = 0  # rows earlier than the row before them
    header: bool = True  # whether the source named its columns; otherwise they are "0", "1", ...
    delimiter: str = ""  # of text files; " " stands for any number of blanks
    comments: int = 0  # comment lines before the first row
    clock: str = ""  # kind of timestamps: numbers, dates, or for example "ms since 1970"
    guessed: bool = False  # whether the unit or the format of the times was detected, not given
    order: str = ""  # order of year, month and day in dates: ymd, dmy, mdy
    time_format: str = ""  # format of dates, if given
    zone: str = ""  # time zone of dates: given, none (taken as UTC) or mixed
    encoding: str = ""  # of text, if it is not UTF-8
    decimal: str = ""  # decimal mark of feature values, if given
    fill: str = ""  # what replaced missing feature values, if given
    skipped: int = 0  # rows left out because they could not be read
    skipped_first: tuple[str, ...] = ()  # the first few of them
    unused_columns: tuple[str, ...] = ()  # columns of the source that were not read
    unused_reasons: tuple[str, ...] = ()  # why, for each of them
    types: tuple[str, ...] = ()  # categorical columns
    classes: tuple[str, ...] = ()  # names of the labels 0, 1, ... if the label column was text


def parse_origin(about: Mapping[str, Any]) -> Origin:
    """Parse what `dataclasses.asdict` of an `Origin` wrote; raise ConfigError for a value of the wrong type."""
    hints = get_type_hints(Origin)
    fields = {**about, "features": about["features"]}  # a missing list of features is a KeyError
    return Origin(**{key: check_value(key, value, hints.get(key, str)) for key, value in fields.items()})

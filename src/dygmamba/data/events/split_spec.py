"""What a user says of where periods begin, as far as it can be judged without the stream."""

from collections.abc import Sequence
from math import isclose

from dygmamba.core.errors import ConfigError

SplitSpec = str | Sequence[float | str]
SPLIT_SPEC_HELP = (
    "`split` takes three shares that add up to 1, such as 0.7,0.15,0.15, or two times, when validation and test begin, "
    "such as 2024-01-01,2024-06-01"
)
LEADERBOARD_SPLIT = "board"  # as a dataset's own scoreboard says


def parse_parts(given: SplitSpec) -> list[str]:
    """The parts of a cut, as words."""
    parts = given.split(",") if isinstance(given, str) else list(given)
    return [str(part).strip() for part in parts]


def parse_shares(words: list[str]) -> tuple[float, ...] | None:
    """Three shares, checked; None where there are two words, which are times."""
    if len(words) == 2:
        return None
    try:
        found = tuple(float(word) for word in words)
    except ValueError:
        found = ()
    if (
        len(found) != 3
        or not all(0 < share < 1 for share in found)
        or not isclose(sum(found), 1, abs_tol=1e-6)
    ):
        raise ConfigError(f"{SPLIT_SPEC_HELP}; got '{','.join(words)[:80]}'")
    return found

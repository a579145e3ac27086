"""Parse the user's `split` argument as far as possible without the stream.

Free of torch, so that the command line can reject a wrong value at once.
"""

from collections.abc import Sequence
from math import isclose

from dygmamba.core.errors import ConfigError

SplitSpec = str | Sequence[float | str]
SPLIT_SPEC_HELP = (
    "`split` takes three shares that add up to 1, such as 0.7,0.15,0.15, or two times, when validation and test begin, "
    "such as 2024-01-01,2024-06-01"
)
LEADERBOARD_SPLIT = "board"  # the value of `split` for the split of the dataset's leaderboard


def parse_parts(spec: SplitSpec) -> list[str]:
    """Return the parts of a comma-separated text or of a sequence as text."""
    parts = spec.split(",") if isinstance(spec, str) else list(spec)
    return [str(part).strip() for part in parts]


def parse_shares(parts: list[str]) -> tuple[float, ...] | None:
    """Return three valid shares, or None if there are two parts, which are times."""
    if len(parts) == 2:
        return None
    try:
        shares = tuple(float(part) for part in parts)
    except ValueError:
        shares = ()
    if (
        len(shares) != 3
        or not all(0 < share < 1 for share in shares)
        or not isclose(sum(shares), 1, abs_tol=1e-6)
    ):
        raise ConfigError(f"{SPLIT_SPEC_HELP}; got '{','.join(parts)[:80]}'", code="invalid-split")
    return shares

"""Parse the user's `split` and `protocol` arguments as far as possible without the stream.

Free of torch, so that the command line can reject a wrong value at once.
"""

from collections.abc import Sequence
from math import isclose
from typing import TYPE_CHECKING, Literal, get_args

from dygmamba.core.choices import check_choice
from dygmamba.core.errors import ConfigError
from dygmamba.data.catalogue.known_datasets import is_benchmark

if TYPE_CHECKING:
    from dygmamba.data.events.event_store import EventStore

SplitSpec = str | Sequence[float | str]
SPLIT_SPEC_HELP = (
    "`split` takes three shares that add up to 1, such as 0.7,0.15,0.15, or two times, when validation and test begin, "
    "such as 2024-01-01,2024-06-01"
)
# "benchmark" removes the training events of sampled nodes, as DyGLib does; "time" removes nothing
Protocol = Literal["benchmark", "time"]
AUTO_PROTOCOL = "auto"
PROTOCOLS = (AUTO_PROTOCOL, *get_args(Protocol))  # the values of `protocol`
LEADERBOARD_SPLIT = "board"  # the value of `split` for the split of the dataset's leaderboard


def check_protocol(given: str) -> None:
    """Raise ConfigError unless `protocol` has a known value."""
    check_choice("protocol", given, PROTOCOLS)


def choose_protocol(name: str, store: "EventStore", given: str) -> Protocol:
    """Return the protocol; "auto" is "benchmark" for a dataset with the name and size of a benchmark, else "time"."""
    check_protocol(given)
    if given == AUTO_PROTOCOL:
        return "benchmark" if is_benchmark(name, store) else "time"
    return "benchmark" if given == "benchmark" else "time"


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
    is_whole = len(shares) == 3 and isclose(sum(shares), 1, abs_tol=1e-6)
    if not is_whole or not all(0 < share < 1 for share in shares):
        raise ConfigError(f"{SPLIT_SPEC_HELP}; got '{','.join(parts)[:80]}'", code="invalid-split")
    return shares

"""The section [run] of a configuration: what a run is, on which data, and which runs it was made of."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, Literal

from dygmamba.core.choices import TargetKind
from dygmamba.core.settings import Bounds, load

Seed = Annotated[int, Bounds(-(2**63), 2**64 - 1)]  # of torch's generators


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSection:
    """The entries of [run], in the order in which they are stored; an entry that is None is left out.

    Attributes:
        data: Name of the dataset; `digest` and `version` tell which one, `file` where it was.
        split: Digest of the split.
        backbone: Run whose encoder a node head was trained on.
        blend_of: Runs that a blend was made of.
        refit_of: Run whose settings were trained again, on every event.
        start_from: Run that it continued from; `start_weights` is the checksum of the weights it started with.
        start_trained_until: Time of the last event that these weights were fitted to.
        start_validated_until: The same of the events that chose them.
        source: Import path of a model of another package.
    """

    task: Literal["link", "node"] | None = None  # None: link
    data: str
    digest: str
    version: str | None = None
    file: str | None = None
    split: str | None = None
    model: str
    seed: Seed
    backbone: str | None = None
    blend_of: tuple[str, ...] | None = None
    # entries of the split rule (`SplitRule`)
    split_by: str | None = None
    split_at: tuple[float, ...] | None = None
    split_counted: bool | None = None
    protocol: str | None = None
    refit_of: str | None = None
    start_from: str | None = None
    start_weights: str | None = None
    start_trained_until: float | None = None
    start_validated_until: float | None = None
    source: str | None = None
    finetune: bool | None = None
    balance: bool | None = None
    target: TargetKind | None = None

    @staticmethod
    def read(section: dict[str, Any]) -> "RunSection":
        """Build the section from a file; entries of later versions are not read."""
        return load(RunSection, {name: section[name] for name in RUN_ENTRIES if name in section})

    @property
    def section(self) -> dict[str, Any]:
        """The entries for a file."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value is not None
        }


RUN_ENTRIES = tuple(field.name for field in fields(RunSection))
# entries with a path of a run, or with several
RUN_REFERENCES = ("backbone", "refit_of", "blend_of", "start_from")


def map_references(section: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return the section with other paths of runs."""
    return section | {
        name: change(value) if isinstance(value, str) else [change(path) for path in value]
        for name in RUN_REFERENCES
        if (value := section.get(name)) is not None
    }

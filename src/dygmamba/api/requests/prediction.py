"""Requests of what a trained run is used for: `predict`, `explain`, `report`, `export` and `serve`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from dygmamba.api.requests.base import Request, check_time_unit, require_file, require_run, require_writable
from dygmamba.config import check_device
from dygmamba.core.costs import Costs, choose_threshold, parse_costs
from dygmamba.core.errors import ConfigError, make_package_error
from dygmamba.data.storage.locations import parse_table_format
from dygmamba.server.settings import ServerSettings

MODEL_FILE_SUFFIXES = (".pt2", ".onnx", ".zip")
PICTURE_SUFFIXES = (".html", ".htm", ".svg")


@dataclass(frozen=True, kw_only=True)
class PredictRequest(Request):
    """Arguments of a prediction: scores of pairs, a ranking of destinations or sources, or labels of nodes.

    Attributes:
        sources: Ids separated by commas, or a file of them, whose destinations are ranked; so are `nodes`.
        destinations: Such ids, whose sources are ranked.
        candidates: Such ids, which are ranked; or "all".
        events: A file of new events that the model sees.
        top: Destinations to rank for each source, sources for each destination, or nodes to keep.
        threshold: Least score of the rows that are kept.
        costs: Costs of a false alarm and of a miss, such as "1,20"; they give the threshold.
        real_share: Share of real events among the scored pairs, for the costs; by default a half.
        top_per_day: Number of rows to keep of each day (UTC).
        reading: How files are read: fields of `ReadOptions`.
    """

    run: Path
    pairs: Path | None = None
    sources: str | None = None
    destinations: str | None = None
    nodes: str | None = None
    candidates: str | None = None
    only_new: bool = False
    events: Path | None = None
    top: int | None = None
    at: str | None = None
    out: Path | None = None
    threshold: float | None = None
    costs: str | None = None
    real_share: float | None = None
    top_per_day: int | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"

    def check(self) -> Self:
        if self.pairs is not None and self.sources is not None:
            raise ConfigError(
                "give `pairs` to score pairs, or `sources` and `top` to rank destinations, not both",
                code="pairs-and-sources",
            )
        if self.destinations is not None and (self.sources, self.pairs) != (None, None):
            raise ConfigError(
                "`destinations` ranks the sources of these destinations; give it without `sources` and `pairs`",
                code="sources-and-destinations",
            )
        _ = self.least_score  # raises for malformed costs
        ranking = self._find_given("sources", "destinations", "candidates", "only_new")
        if ranking and self.top is None:
            raise ConfigError(
                f"`{ranking[0]}` needs a ranking; say how many to keep with `top`", code="top-missing"
            )
        if self.out is not None:
            parse_table_format(self.out)
            require_writable(self.out, "out")
        folder = require_run(self.run)
        check_device(self.device)
        check_time_unit(self.reading.get("time_unit", "auto"))
        require_file(self.pairs, "pairs")
        require_file(self.events, "events")
        self._check_task(folder.task)
        return self

    @property
    def least_score(self) -> float | None:
        """The threshold that is given, or that the costs give."""
        return choose_threshold(self.threshold, self.costs, self.real_share)

    def _find_given(self, *names: str) -> list[str]:
        return [name for name in names if getattr(self, name) not in (None, False)]

    def _check_task(self, task: str) -> None:
        """Raise ConfigError if a run of this task cannot predict what is wanted."""
        if task == "node":
            wrong = self._find_given("pairs", "sources", "destinations", "candidates", "only_new")
            if wrong:
                raise ConfigError(
                    f"{self.run} classifies nodes and cannot score pairs; leave out `{wrong[0]}`, and give `nodes`, or "
                    "nothing for all sources",
                    code="option-of-link-task",
                )
        elif self.nodes is not None:
            raise ConfigError(
                f"{self.run} predicts links and cannot classify nodes; give `pairs` instead of `nodes`, or a run of "
                "the node task",
                code="option-of-node-task",
            )
        elif self.pairs is None and self.sources is None and self.destinations is None:
            raise ConfigError(
                "give `pairs` to score pairs, or `sources` and `top` to rank destinations",
                code="pairs-missing",
            )


@dataclass(frozen=True, kw_only=True)
class ExplainRequest(Request):
    """Arguments of an explanation; `query` is a pair of ids, or the id of a node, and `out` a page or a picture."""

    run: Path
    query: tuple[str, str] | str
    at: str | None = None
    top: int = 10
    orders: int = 4
    out: Path | None = None
    events: Path | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    reading: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"

    def check(self) -> Self:
        if self.out is not None and self.out.suffix.lower() not in PICTURE_SUFFIXES:
            raise ConfigError(
                f"`out` takes a page, name.html, or a picture, name.svg; got {self.out}",
                code="unknown-picture-format",
            )
        require_run(self.run)
        check_device(self.device)
        check_time_unit(self.reading.get("time_unit", "auto"))
        require_file(self.events, "events")
        return self


@dataclass(frozen=True, kw_only=True)
class ReportRequest(Request):
    """Arguments of a report.

    `costs` of a false alarm and of a miss, such as "1,20", choose a threshold, for this share of real events.
    """

    run: Path
    out: Path | None = None
    costs: str | None = None
    real_share: float | None = None

    @property
    def parsed_costs(self) -> Costs | None:
        """The costs as numbers."""
        return parse_costs(self.costs, self.real_share)

    def check(self) -> Self:
        _ = self.parsed_costs  # raises for malformed ones
        require_run(self.run)
        return self


@dataclass(frozen=True, kw_only=True)
class ExportRequest(Request):
    """Arguments of a model export; the suffix of `to` is the format."""

    run: Path
    to: Path

    def check(self) -> Self:
        if self.to.suffix not in MODEL_FILE_SUFFIXES:
            raise ConfigError(
                f"{self.to} does not name a format; let it end in one of {', '.join(MODEL_FILE_SUFFIXES)}",
                code="unknown-model-format",
            )
        require_writable(self.to, "to")
        require_run(self.run)
        return self


@dataclass(frozen=True, kw_only=True)
class ServeRequest(Request):
    """Arguments of a server.

    Attributes:
        run: The run directory, or a link to one: at SIGHUP the server changes to the run that it then leads to.
        state: Folder of the log and the snapshots.
        late: How much earlier than the latest event an event may be.
        on_late: What happens to events that are earlier still: "refuse" or "set-aside".
        max_ahead: How far ahead of the clock events may be dated, or "off".
        sources: Where events come from beside requests: files that grow, or topics of Kafka.
    """

    run: Path
    state: Path
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    late: str | None = None
    on_late: str | None = None
    max_ahead: str | None = None
    sources: Sequence[str] = ()
    device: str = "auto"

    @property
    def settings(self) -> ServerSettings:
        """Address and access; wrong ones are an error."""
        return ServerSettings(self.host, self.port, self.token, self.tls_cert, self.tls_key)

    def check(self) -> Self:
        """Also check that the packages of the server are installed."""
        _ = self.settings
        require_run(self.run)
        check_device(self.device)
        if self.device not in ("auto", "cpu"):
            raise ConfigError(f"a live run needs `device='cpu'`; got '{self.device}'", code="live-needs-cpu")
        for package in ("fastapi", "uvicorn", "prometheus_client"):
            if find_spec(package) is None:
                raise make_package_error("the server", package, "'dyg-mamba[serve]'")
        return self

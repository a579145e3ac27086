"""What will happen next: a trained run asked in the user's own ids and times."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from dygmamba.data.events import FeatureTable
from dygmamba.data.extension import extended
from dygmamba.data.formats import ReadOptions, detect_format, read_dataset
from dygmamba.data.formats.memory import FORMAT, hold, is_held, read_held
from dygmamba.data.formats.options import USUAL_NAMES
from dygmamba.data.formats.pairs import Pairs
from dygmamba.data.store import Dataset
from dygmamba.engine.clock import Clock
from dygmamba.engine.rank import Ranker
from dygmamba.engine.stream import Stream
from dygmamba.engine.walk import Advance, Walk, unwatched
from dygmamba.errors import ConfigError, EventError, FileError, NotFoundError
from dygmamba.models.base import EncoderScorer
from dygmamba.models.classifiers import NodeClassifier, SourceEmbedding
from dygmamba.runs.answers import Predictions, chances, predictions, scores
from dygmamba.runs.calibrating import load_calibration
from dygmamba.runs.exporting import asked_of, require_exportable, view_of
from dygmamba.runs.node import open_classifier
from dygmamba.runs.opening import OpenRun, choose_device, encoder_of, open_run, task_of
from dygmamba.runs.questions import STRANGERS, Asking, Desk, Moment
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.calibration import Calibration

Meter = Callable[[int], Advance]  # told how many pairs there are, says whom to tell of each one done

TABLES = ("csv", "jsonl", "parquet", "arrow", FORMAT)


def _unmetered(total: int) -> Advance:
    return unwatched


@dataclass(frozen=True, slots=True)
class Predictor:
    """A trained run and every event it knows of: its own dataset's and those that came since."""

    run: OpenRun
    dataset: Dataset
    links: Ranker
    options: ReadOptions = field(default_factory=ReadOptions)
    calibration: Calibration | None = None  # of a run that has none, scores are no probabilities

    @staticmethod
    def open(
        run: Path | str,
        device: str = "auto",
        data_dir: Path | None = None,
        options: ReadOptions | None = None,
        tokens: int | None = None,
    ) -> "Predictor":
        """A run's best weights on the stream they were trained on; `options` say how files are to be read."""
        opening = open_classifier if task_of(Path(run)) == "node" else open_run
        opened = opening(Path(run), choose_device(device), data_dir)
        links, calibration = _links(opened, opened.dataset, tokens), load_calibration(opened.folder)
        return Predictor(opened, opened.dataset, links, options or ReadOptions(), calibration)

    @property
    def desk(self) -> Desk:
        """Where its questions are read."""
        return Desk(self.dataset, self.options, self.run.dataset.ids.kind == "int")

    def with_events(self, events: Any) -> "Predictor":
        """The same run, knowing more events: of a file or table with the dataset's own columns; this one stays."""
        where, more = self._read(events)
        self.desk.check_times(where, bool(more.origin.time_origin), more.store.time.numpy())
        try:
            dataset = extended(self.dataset, more)
        except EventError as error:
            raise FileError(f"{where}: {error}") from error
        self._require_stateless(dataset.store.num_nodes - self.dataset.store.num_nodes)
        return replace(self, dataset=dataset, links=_links(self.run, dataset, self.links.walk.tokens))

    def _read(self, events: Any) -> tuple[str, Dataset]:
        origin, options, bipartite = self.dataset.origin, self.options, self.dataset.store.bipartite
        if is_held(events):
            held = hold(events)
            names = {
                part: getattr(options, part) or _one_of(getattr(origin, part), held.names)
                for part in USUAL_NAMES
            }
            features = options.features or held.features or origin.features
            options = replace(options, **names, features=features, bipartite=bipartite)
            return held.where, read_held(events, options, bipartite)
        path, kind = Path(events), detect_format(Path(events), options)
        if kind in ("jodie", "dyglib") and origin.format in TABLES:
            kind = "csv"  # as the dataset's own file was read
        if kind in TABLES:
            names = {part: getattr(options, part) or getattr(origin, part) or None for part in USUAL_NAMES}
            features = options.features or origin.features
            options = replace(options, **names, features=features, bipartite=bipartite)
            own = origin.time_format if options.time_unit == "auto" else ""
            options = replace(
                options, time_format=options.time_format or own or None, date_order=origin.order
            )
            if options.time_unit == "auto" and not origin.guessed and not origin.time_origin:
                options = replace(options, time_unit="plain")  # numbers like the dataset's own
        return str(path), read_dataset(path, options, format=kind)

    def score(self, pairs: Pairs, at: Moment | None = None, meter: Meter = _unmetered) -> Predictions:
        """The score of each pair, in the order asked: columns src, dst, time, score."""
        self._require("link")
        asking = self._asking(pairs, at)
        if asking.asked.dst is None:
            raise NotFoundError(
                f"{asking.asked.where} has no column of destinations; name it 'dst', or ask for a ranking"
            )
        logit = self.links.logits(asking.src, asking.dst, asking.when, meter(len(asking.src)))
        own = {"src": self.desk.own(asking.asked.src), "dst": self.desk.own(asking.asked.dst)}
        columns = own | {"time": asking.time.shown} | scores(logit, self.calibration)
        return predictions(asking, columns, self.calibration)

    def inputs(self, pairs: Pairs, at: Moment | None = None) -> dict[str, Tensor]:
        """What an exported program takes to score these pairs."""
        self._require("link")
        asking, walk = self._asking(pairs, at), self.links.walk
        asked = PairBatch.of(asking.src, asking.dst, asking.when)
        require_exportable(self.run.scorer, self.run.about["model"])
        view = view_of(walk.stream, self.run.scorer.requests, asked, self.run.seed)
        return asked_of(self.run.scorer, view)

    def top(
        self,
        pairs: Pairs,
        k: int,
        at: Moment | None = None,
        meter: Meter = _unmetered,
        candidates: pa.Array | Path | None = None,
        only_new: bool = False,
    ) -> Predictions:
        """The k likeliest destinations of each source and time, among all the stream knows or the candidates."""
        self._require("link")
        asking, among = self._asking(pairs, at, sources_only=True), self.desk.destinations(candidates)
        advance, known = meter(len(asking.src) * len(among)), self.calibration
        odds = Tensor.double if known is None else known.log_odds
        best = self.links.best(asking.src, asking.when, among, k, advance, only_new=only_new, log_odds=odds)
        row, place = torch.nonzero(torch.isfinite(best.logit), as_tuple=True)
        logit, own = best.logit[row, place], self.desk.own(asking.asked.src)
        columns = {
            "src": own.take(pa.array(row.numpy())),
            "dst": self.desk.own(self.dataset.ids.to_user(best.node[row, place].numpy())),
            "time": asking.time[row.numpy()].shown,
            **scores(logit, known),
            **chances(logit, best.total[row], known),
            "rank": pa.array((1 + place).numpy()),
        }
        left = own.filter(pa.array(torch.isinf(best.total).numpy()))
        return predictions(asking, columns, known, tuple(dict.fromkeys(map(str, left.to_pylist()))))

    def classify(
        self,
        nodes: Pairs | None = None,
        at: Moment | None = None,
        k: int | None = None,
        meter: Meter = _unmetered,
    ) -> Predictions:
        """The score of state 1 for each node, as a source: columns node, time, score.

        Without nodes, for all that were a source before; these, or the k highest, come in order, with a rank.
        """
        self._require("node")
        asking = self._everyone(at) if nodes is None else self._asking(nodes, at)
        logit = self._of_nodes(asking, self.run.scorer, meter(len(asking.src)))
        columns = self._heads(asking) | scores(logit, self.calibration)
        if nodes is not None and k is None:
            return predictions(asking, columns, self.calibration)
        order = pa.array(torch.sort(logit, descending=True, stable=True).indices[:k].numpy())
        ranked = {name: column.take(order) for name, column in columns.items()}
        ranked["rank"] = pa.array(range(1, len(order) + 1), pa.int64())
        return predictions(asking, ranked, self.calibration)

    def _everyone(self, at: Moment | None) -> Asking:
        """A question about each source that the stream knows by then."""
        asking = self.desk.everyone(at)
        if not len(asking.src):
            raise NotFoundError(
                f"no node of '{self.dataset.name}' was a source before {at}; ask about a later time"
            )
        return asking

    def embed(self, nodes: Pairs, at: Moment | None = None) -> Predictions:
        """What the encoder makes of each node, as a source: columns node, time, embedding."""
        asking, encoder = self._asking(nodes, at), encoder_of(self.run.scorer, self.run.folder)
        found = self._of_nodes(asking, SourceEmbedding(encoder))
        rows = pa.FixedSizeListArray.from_arrays(pa.array(found.flatten().numpy()), found.shape[1])
        return predictions(asking, self._heads(asking) | {"embedding": rows}, self.calibration)

    def _heads(self, asking: Asking) -> dict[str, pa.Array]:
        return {"node": self.desk.own(asking.asked.src), "time": asking.time.shown}

    def _of_nodes(
        self,
        asking: Asking,
        reader: SourceEmbedding | NodeClassifier | EncoderScorer,
        advance: Advance = unwatched,
    ) -> Tensor:
        """Sources are asked about beside a partner: the one given, or the last they met before."""
        stream = self.links.walk.stream
        partner = asking.dst if asking.asked.dst is not None else self._last_partners(asking)
        clock = None
        if reader.stateful:  # a memory of its own: the ranker's goes on where it stands
            clock = Clock.of(stream.store, (torch.arange(len(stream.store)),), self.run.rule.cell)
            reader = deepcopy(reader)
        seen = None if clock is None else clock.earlier(asking.when)
        walk = Walk(reader, stream, self.run.seed, clock, self.links.walk.tokens)
        return walk(PairBatch.of(asking.src, partner, asking.when), seen, advance)

    def _last_partners(self, asking: Asking) -> Tensor:
        """Whom each source met last, strictly before; a stranger where that was nobody."""
        index, device = self.links.walk.stream.index, self.links.walk.stream.device
        last = index.recent(asking.src.to(device), asking.when.to(device), 1)
        stranger = torch.full_like(asking.src, self.dataset.store.num_nodes + 1)
        return torch.where(last.length.cpu() > 0, last.node[:, 0].cpu().long(), stranger)

    def _asking(self, pairs: Pairs, at: Moment | None, sources_only: bool = False) -> Asking:
        asking = self.desk.read(pairs, at, sources_only)
        self._require_stateless(len(asking.strangers))
        return asking

    def _require(self, task: str) -> None:
        if (task == "node") != isinstance(self.run.scorer, NodeClassifier):
            backbone = self.run.about.get("backbone")
            raise ConfigError(
                f"{self.run.folder.path} predicts links and knows no states; give a run of the node task"
                if task == "node"
                else f"{self.run.folder.path} classifies nodes; give a link run, such as its backbone {backbone}"
            )

    def _require_stateless(self, new_nodes: int) -> None:
        if new_nodes and self.run.scorer.stateful:
            raise ConfigError(
                f"model '{self.run.about['model']}' keeps a memory of the nodes it was trained with and knows no "
                f"new ones, but {new_nodes} are asked about; leave them out"
            )


def _one_of(name: str, names: tuple[str, ...]) -> str | None:
    return name if name in names else None


def _links(run: OpenRun, dataset: Dataset, tokens: int | None) -> Ranker:
    """The scorer on the stream, with room for strangers."""
    store = replace(dataset.store, label=None)
    node = torch.cat(
        [store.features.node, store.features.node.new_zeros(STRANGERS, store.features.node.shape[1])]
    )
    features = FeatureTable(node, store.features.edge)
    store = replace(store, num_nodes=store.num_nodes + STRANGERS, features=features)
    return Ranker(
        run.scorer, Stream(store, run.stream.split, run.stream.device), run.seed, tokens, run.rule.cell
    )

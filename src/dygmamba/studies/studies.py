"""The studies of the paper (`STUDIES` by name) and the jobs that each of them consists of."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dygmamba.config import build_config, find_preset, load_ablations, to_settings
from dygmamba.core.errors import ConfigError
from dygmamba.core.settings import get_setting_hints
from dygmamba.data.events.split_spec import AUTO_PROTOCOL
from dygmamba.data.events.splits import PUBLISHED_SPLIT
from dygmamba.data.generate.stream import GeneratorConfig
from dygmamba.data.storage.dataset import Dataset, save_dataset
from dygmamba.data.storage.leaderboard import get_default_split
from dygmamba.data.storage.library import generate_dataset, open_dataset
from dygmamba.data.storage.locations import data_folder, data_folders, has_dataset
from dygmamba.engine.fit_config import LinkFitConfig, NodeFitConfig
from dygmamba.models import all_models, find_model
from dygmamba.models.spec import NodeSpec
from dygmamba.report.short_training import NEUTRAL_SETTINGS
from dygmamba.runs.link_training import separate_settings
from dygmamba.runs.node_training import divide_node_settings
from dygmamba.studies.job import CODE_VERSION, Job
from dygmamba.studies.noise import NOISE_KINDS
from dygmamba.studies.paper_plan import PAPER_PLAN, PAPER_PROTOCOL
from dygmamba.tasks.metrics import PUBLISHED_BATCH

# Of the paper's twelve datasets those that the project has measured. MOOC is in the paper's tables of link prediction
# only; the other studies have it as the largest stream, and the only one with both labels and edge features.
LINK_DATASETS = ("uci", "enron", "USLegis", "CanParl", "wikipedia", "mooc")
ABLATION_DATASETS = ("uci", "enron", "USLegis", "CanParl", "mooc")
NODE_DATASETS = ("wikipedia", "mooc")
EFFICIENCY_DATASETS = ("uci", "mooc")
OUR_MODEL, VANILLA_MODEL = "dyg-mamba", "mamba"
LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
MAX_LENGTH = 65_536
NOISE_RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
NOISE_SEED = 0
SENSITIVITY_GRIDS = {"blocks": (1, 2, 3, 4), "states": (4, 8, 16, 32), "expand": (1, 2, 4)}
FULL = "full"  # name of the unchanged model among its ablations
COIN_SIZED = "coin-sized"
SIZE_SETTINGS = ("length", "patch", "epochs")  # settings from which the cost of a job is estimated
PUBLISHED_HEURISTICS = ("edgebank",)  # the paper's tables have them, told of events in batches of 200


@dataclass(frozen=True, slots=True)
class StudyRequest:
    """Choices of the user for a study; None means the defaults of the study."""

    datasets: Sequence[str] | None = None
    models: Sequence[str] | None = None
    seeds: Sequence[int] | None = None
    variants: Sequence[str] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    data_dir: Path | None = None
    protocol: str = AUTO_PROTOCOL
    version: str = CODE_VERSION  # of its jobs

    def choose_seeds(self) -> Sequence[int]:
        return (0,) if self.seeds is None else self.seeds

    def open_datasets(self, default: Sequence[str]) -> list[Dataset]:
        return [open_dataset(name, self.data_dir) for name in self.datasets or default]

    def choose_models(self, default: Sequence[str]) -> Sequence[str]:
        """Return the names of the models; raise for an unknown one before anything runs."""
        names = self.models or default
        for name in names:
            find_model(name)
        return names

    def choose_variants(self, available: Sequence[str]) -> Sequence[str]:
        """Return the requested variants, or all; raise ConfigError for one that the study does not have."""
        for name in self.variants or ():
            if name not in available:
                raise ConfigError(
                    f"unknown variant '{name}'; choose from {', '.join(available)}", code="unknown-variant"
                )
        return self.variants or available

    def refuse_settings(self, varied: Iterable[str]) -> None:
        """Raise ConfigError if the user sets what the study varies, because its rows would all have that value."""
        for name in varied:
            if name in self.settings:
                raise ConfigError(
                    f"this study varies `{name}`, so it cannot be set; leave it out", code="varied-setting"
                )


def list_trained_models() -> list[str]:
    """Return the names of the paper's models that are trained."""
    return [name for name, spec in all_models().items() if spec.trainable and spec.source is None]


def list_untrained_models() -> list[str]:
    """Return the names of the heuristics, which need no training."""
    return [name for name, spec in all_models().items() if not spec.trainable and spec.source is None]


def link_jobs(request: StudyRequest) -> list[Job]:
    """Plan link prediction: every model on every dataset with every seed and all negative samplers."""
    jobs = []
    models = request.choose_models([*list_trained_models(), *list_untrained_models()])
    trains = any(find_model(model).trainable for model in models)
    for dataset in request.open_datasets(LINK_DATASETS):
        for model in models:
            if find_model(model).trainable:
                jobs += [
                    link_job(request, dataset, model, seed, request.settings)
                    for seed in request.choose_seeds()
                ]
            else:
                jobs += _heuristic_jobs(request, dataset, model, is_alone=not trains)
    return jobs


def _heuristic_jobs(request: StudyRequest, dataset: Dataset, model: str, is_alone: bool) -> list[Job]:
    """Plan a model without training; one of the paper is evaluated as published and with every earlier event.

    Beside trained models, which accept all settings of the request, it takes those that it has itself.
    """
    config = find_model(model).config
    settings = {
        name: value
        for name, value in request.settings.items()
        if is_alone or name in get_setting_hints(config)
    }
    build_config(config, settings)
    asks = get_default_split(dataset, request.protocol).stamp
    labels = {"strict": {}}
    if model in PUBLISHED_HEURISTICS:
        labels = {"batch": {}, "strict": {"variant": f"{model}, every earlier event"}}
    identity = ("heuristic", dataset.name, dataset.digest, model, None, settings)
    return [
        Job(*identity, asks | {"visible": visible}, about={"model": model} | label)
        for visible, label in labels.items()
    ]


def link_job(
    request: StudyRequest,
    dataset: Dataset,
    model: str,
    seed: int,
    settings: dict[str, Any],
    preset: str | None = None,
    **about: Any,
) -> Job:
    """Plan one training; the job holds all settings: those given, over the preset of `preset` (default: of the model).

    `asks` has the split unless it is the published one; evaluation batches have 200 events, as published.
    """
    given = {"evaluation_batch": PUBLISHED_BATCH} | find_preset(preset or model, dataset.name)
    given |= settings
    loop_settings, model_settings = separate_settings(given)
    config = to_settings(build_config(find_model(model).config, model_settings))
    full = to_settings(build_config(LinkFitConfig, loop_settings)) | config
    about = {"model": model, **about}
    size = {"events": float(len(dataset.store)), "types": float(bool(dataset.store.features.categories))}
    size |= {key: full[key] for key in SIZE_SETTINGS if key in full}
    asks = get_default_split(dataset, request.protocol).stamp
    job = Job("link", dataset.name, dataset.digest, model, seed, full, asks, about, size=size)
    return replace(job, given=given, version=request.version)


def _follow_up_job(
    run: Job, work: str, asks: dict[str, Any], settings: dict[str, Any] | None = None, **about: Any
) -> Job:
    """Plan a job that evaluates the run of another job."""
    about = {"model": run.model, **about}
    own = settings or {}
    return replace(run, work=work, settings=own, asks=asks, about=about, needs=run.key, given=own)


def _cost_job(
    request: StudyRequest, dataset: Dataset, model: str, settings: dict[str, Any], **about: Any
) -> Job:
    return replace(link_job(request, dataset, model, 0, settings, **about), work="cost")


def _with_asks(job: Job, **asks: Any) -> Job:
    return replace(job, asks=job.asks | asks)


def node_jobs(request: StudyRequest) -> list[Job]:
    """Plan node classification: a link-trained encoder per model and seed, and a classifier on it.

    A model that learns labels without an encoder, such as trees, is one job.
    """
    jobs = []
    for dataset in request.open_datasets(NODE_DATASETS):
        for model in request.choose_models(list_trained_models()):
            spec = find_model(model).for_nodes
            if spec is not None:
                jobs += [
                    _direct_node_job(request, dataset, model, spec, seed) for seed in request.choose_seeds()
                ]
                continue
            own, classifier = divide_node_settings(dataset.name, model, request.settings)
            for seed in request.choose_seeds():
                backbone = _with_asks(link_job(request, dataset, model, seed, own), negatives=["random"])
                jobs += [backbone, _follow_up_job(backbone, "node", {}, to_settings(classifier))]
    return jobs


def _direct_node_job(request: StudyRequest, dataset: Dataset, model: str, spec: NodeSpec, seed: int) -> Job:
    loop, own = separate_settings(request.settings, NodeFitConfig)
    settings = to_settings(build_config(NodeFitConfig, loop)) | to_settings(build_config(spec.config, own))
    asks = get_default_split(dataset, request.protocol).stamp
    size = {"events": float(len(dataset.store))}
    return Job("node", dataset.name, dataset.digest, model, seed, settings, asks, {"model": model}, size=size)


def efficiency_jobs(request: StudyRequest) -> list[Job]:
    """Plan cost measurements: every model with its published settings, then two models at several lengths.

    Settings of the user apply to the first.
    """
    request.refuse_settings(("length", "patch"))
    jobs = []
    for dataset in request.open_datasets(EFFICIENCY_DATASETS):
        models = request.choose_models(list_trained_models())
        jobs += [_cost_job(request, dataset, model, request.settings) for model in models]
        for length in _parse_lengths(request):
            own = {"length": length}
            jobs.append(_cost_job(request, dataset, OUR_MODEL, own, length=length, patch="none"))
            # The published patches leave 32 tokens at every length; patches of one leave as many as DyG-Mamba reads.
            for name, patch in {"published": max(1, length // 32), "one": 1}.items():
                patched = own | {"patch": patch}
                jobs.append(_cost_job(request, dataset, "dygformer", patched, length=length, patch=name))
    return jobs


def large_jobs(request: StudyRequest) -> list[Job]:
    """Plan one epoch on a dataset as large as tgbl-coin."""
    return [
        _with_asks(_cost_job(request, dataset, model, request.settings), epochs=1)
        for dataset in request.open_datasets((COIN_SIZED,))
        for model in request.choose_models((OUR_MODEL,))
    ]


def paper_jobs(request: StudyRequest) -> list[Job]:
    """Plan everything that the claims of the paper need, the most valuable first; the request selects from it."""
    jobs = []
    for entry in PAPER_PLAN:
        if request.datasets is not None and entry.data not in request.datasets:
            continue
        models = [model for model in entry.models if request.models is None or model in request.models]
        seeds = [seed for seed in range(entry.seeds) if request.seeds is None or seed in request.seeds]
        if models and seeds:
            part = replace(
                request,
                datasets=[entry.data],
                models=models,
                seeds=seeds,
                variants=entry.variants,
                settings=entry.settings | request.settings,
                version=PAPER_PROTOCOL,
            )
            about = {"study": entry.study} | ({"cell": entry.cell} if entry.cell else {})
            labelled = _plan_labelled(STUDIES[entry.study], part)
            jobs += [replace(job, about=job.about | about) for job in labelled]
    if not jobs:
        raise ConfigError(
            "the paper's plan has no training of these datasets, models and seeds; plan it without them to see its own",
            code="empty-plan",
        )
    return jobs


@dataclass(frozen=True, slots=True)
class GeneratedDataset:
    """A synthetic dataset that a study generates if it does not exist yet."""

    name: str
    config: GeneratorConfig

    def exists(self, data_dir: Path | None) -> bool:
        return has_dataset(data_folders(data_dir), self.name)

    def generate(self, data_dir: Path | None) -> Path:
        """Generate the dataset, out of core if it is large, and save it."""
        folder = data_folder(data_dir)
        return save_dataset(generate_dataset(self.name, self.config, folder), folder)

    def __str__(self) -> str:
        return f"{self.name}, {self.config.events:,} events among {self.config.nodes:,} nodes"


@dataclass(frozen=True, slots=True)
class Variant:
    """What one of the trainings of a study changes: settings, labels, and the model if another one has its parts."""

    settings: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    model: str | None = None


def list_ablations(request: StudyRequest) -> list[Variant]:
    """List the ablations of DyG-Mamba and the full model; a variant may name the model that has its parts."""
    parts = {FULL: {}} | load_ablations()
    return [
        Variant({key: value for key, value in parts[name].items() if key != "model"}, {"variant": name},
                parts[name].get("model"))
        for name in request.choose_variants(list(parts))
    ]  # fmt: skip


def list_lengths(request: StudyRequest) -> list[Variant]:
    return [Variant({"length": length}, {"length": length}) for length in _parse_lengths(request)]


def _parse_lengths(request: StudyRequest) -> Sequence[int]:
    """Return the lengths of neighbor sequences that the user gave as variants."""
    variants = request.variants
    if variants is None:
        return LENGTHS
    if not all(name.isdecimal() and 0 < int(name) <= MAX_LENGTH for name in variants):
        raise ConfigError(
            f"`variants` of this study are lengths from 1 to {MAX_LENGTH:,}, such as 32,64; got '{','.join(variants)}'",
            code="invalid-length",
        )
    return [int(name) for name in variants]


def list_sizes(request: StudyRequest) -> list[Variant]:
    """List the models that differ in one size."""
    return [
        Variant({name: value}, {"setting": name, "value": value})
        for name in request.choose_variants(list(SENSITIVITY_GRIDS))
        for value in SENSITIVITY_GRIDS[name]
    ]


def evaluate_with_noise(request: StudyRequest, clean: Job) -> list[Job]:
    """Evaluate a run that was trained on clean data with each kind of noise."""
    asks = {"rates": list(NOISE_RATES), "seed": NOISE_SEED}
    kinds = request.choose_variants(NOISE_KINDS)
    return [_follow_up_job(clean, "robustness", {"kind": kind} | asks, noise=kind) for kind in kinds]


def compare_states(request: StudyRequest, run: Job) -> list[Job]:
    """Compute the similarity of the hidden states of a run for one pair."""
    return [_follow_up_job(run, "similarity", {"tokens": 32})]


def plan_trainings(study: "Study", request: StudyRequest) -> list[Job]:
    """Plan the trainings of a study: every dataset, model, variant and seed; and what evaluates each of them."""
    variants = study.list_variants(request)
    request.refuse_settings(name for one in variants for name in one.settings)
    jobs = []
    for dataset in request.open_datasets(study.datasets):
        for model in (OUR_MODEL,) if study.models is None else request.choose_models(study.models()):
            for variant in variants:
                settings = study.fixed | request.settings | variant.settings
                for seed in request.choose_seeds():
                    identity = (request, dataset, variant.model or model, seed, settings, model)
                    run = _with_asks(link_job(*identity, **variant.about), **study.asks)
                    jobs += [run, *study.follow_up(request, run)]
    return jobs


@dataclass(frozen=True, slots=True)
class Study:
    """One study of the paper: trainings, or what a function plans.

    Attributes:
        title: Heading of its page.
        datasets: Its datasets, if the user names none.
        models: Returns its models, if the user names none; None: of DyG-Mamba alone.
        list_variants: Returns what its trainings change.
        has_variants: Whether `StudyRequest.variants` applies.
        fixed: Settings of all of its trainings, unless the user sets them.
        asks: Further arguments of its trainings.
        follow_up: Returns the jobs that evaluate a training.
        plan: Returns its jobs if they are not those of `plan_trainings`.
        exclusive: Whether each job must have the machine for itself, because its time is measured.
        dataset: Synthetic dataset that the study needs.
        in_order: Whether jobs start in the order of the plan, not the most expensive first.
    """

    title: str
    datasets: Sequence[str] = ("uci",)
    models: Callable[[], Sequence[str]] | None = lambda: (OUR_MODEL,)
    list_variants: Callable[[StudyRequest], list[Variant]] = lambda request: [Variant()]
    has_variants: bool = False
    fixed: dict[str, Any] = field(default_factory=dict)
    asks: dict[str, Any] = field(default_factory=dict)
    follow_up: Callable[[StudyRequest, Job], list[Job]] = lambda request, run: []
    plan: Callable[[StudyRequest], list[Job]] | None = None
    exclusive: bool = False
    dataset: GeneratedDataset | None = None
    in_order: bool = False

    def list_jobs(self, request: StudyRequest) -> list[Job]:
        return plan_trainings(self, request) if self.plan is None else self.plan(request)


STUDIES: dict[str, Study] = {
    "paper": Study("The claims of the paper, at its settings", plan=paper_jobs, in_order=True),
    "link": Study("Link prediction (Tables 2 and 3 and the appendix)", plan=link_jobs),
    "node": Study("Node classification", plan=node_jobs),
    "ablation": Study(
        "Ablations: time information, step functions, co-occurrence encoding, skip connection",
        ABLATION_DATASETS,
        models=None,
        list_variants=list_ablations,
        has_variants=True,
    ),
    "length": Study("AP by length of the neighbor sequences", list_variants=list_lengths, has_variants=True),
    "efficiency": Study(
        "Epoch time, memory and parameters", plan=efficiency_jobs, has_variants=True, exclusive=True
    ),
    "convergence": Study(
        "Training loss of DyG-Mamba and vanilla Mamba",
        ("CanParl",),
        models=lambda: (OUR_MODEL, VANILLA_MODEL),
        fixed={"epochs": 100, "patience": 1_000_000},  # without early stopping
        asks={"negatives": ["random"]},
    ),
    "robustness": Study(
        "Robustness to noise in the histories",
        models=list_trained_models,
        has_variants=True,
        follow_up=evaluate_with_noise,
    ),
    "sensitivity": Study(
        "Sensitivity to the number of blocks, states and the expansion",
        models=None,
        list_variants=list_sizes,
        has_variants=True,
    ),
    "case-study": Study(
        "Case study: similarity of hidden states",
        ("wikipedia",),
        models=lambda: (OUR_MODEL, "dygformer"),
        follow_up=compare_states,
    ),
    "large": Study(
        "Cost of an epoch on a dataset as large as tgbl-coin",
        plan=large_jobs,
        exclusive=True,
        dataset=GeneratedDataset(
            COIN_SIZED, GeneratorConfig(nodes=638_000, events=22_800_000, communities=2_000)
        ),
    ),
}


def find_study(name: str) -> Study:
    """Return the study of that name; raise ConfigError if there is none."""
    if name not in STUDIES:
        raise ConfigError(f"unknown study '{name}'; choose from {', '.join(STUDIES)}", code="unknown-study")
    return STUDIES[name]


def plan_jobs(name: str, request: StudyRequest) -> list[Job]:
    """Return the jobs of a study; the same run appears once per label."""
    study = find_study(name)
    if request.variants and not study.has_variants:
        raise ConfigError(
            f"study '{name}' has no variants; got '{','.join(request.variants)}'. Remove them",
            code="unknown-variant",
        )
    return list({job.key + str(job.about): job for job in _plan_labelled(study, request)}.values())


def _plan_labelled(study: Study, request: StudyRequest) -> list[Job]:
    """Return the jobs of a study, each with the settings that the request changes."""
    jobs = study.list_jobs(request)
    if request.settings or request.protocol != AUTO_PROTOCOL:
        usual = study.list_jobs(replace(request, settings={}, protocol=AUTO_PROTOCOL))
        jobs = _label_changes(jobs, usual)
    return jobs


def _label_changes(jobs: list[Job], usual: list[Job]) -> list[Job]:
    """Return the jobs with what makes each differ from the usual one; an evaluation also has that of its training."""
    labelled: list[Job] = []
    for job, plain in zip(jobs, usual, strict=True):
        pairs = {name: [value, plain.settings.get(name)] for name, value in job.settings.items()}
        pairs["protocol"] = [
            one.asks.get("split_by") or one.asks.get("protocol", PUBLISHED_SPLIT.protocol)
            for one in (job, plain)
        ]
        changed = job.changed | next((one.changed for one in labelled if one.key == job.needs), {})
        changed |= {
            name: pair for name, pair in pairs.items() if pair[0] != pair[1] and name not in NEUTRAL_SETTINGS
        }
        labelled.append(replace(job, changed=changed))
    return labelled

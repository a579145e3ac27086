"""The configuration of a run, typed: what config.toml holds, read and checked once."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from dygmamba.config import build_config, to_settings
from dygmamba.core.errors import ConfigError, FileError
from dygmamba.data.events.splits import SplitRule
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.fit_config import FitConfig, LinkFitConfig, NodeFitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.run_section import RunSection
from dygmamba.models import find_model
from dygmamba.models.base import ModelSpec
from dygmamba.models.spec import NodeSpec
from dygmamba.models.stored_settings import update_stored_settings

NODE_ENTRIES = ("finetune", "balance", "target")  # stored in [run], not in [train]: they say what the run is


@dataclass(frozen=True)  # not slotted: the typed settings of the model are built once, on demand
class RunConfig:
    """The sections of a configuration.

    Attributes:
        run: What the run is, on which data.
        train: Settings of the training loop.
        model: Settings of the model as they are stored; `model_config` is typed.
        facts: Facts about the dataset, if not those of its own events (`stored_facts`).
        chosen: Why settings have their values.
        made_with: Versions and device.
        folder: The run directory; a run that is not created yet has none.
    """

    run: RunSection
    train: FitConfig
    model: dict[str, Any]
    facts: dict[str, Any] | None = None
    chosen: dict[str, str] = field(default_factory=dict)
    made_with: dict[str, Any] = field(default_factory=dict)
    folder: RunDirectory = field(default_factory=lambda: RunDirectory(Path()))

    @staticmethod
    def read(folder: RunDirectory) -> "RunConfig":
        """Read the configuration of a run; raise FileError if it is incomplete."""
        sections = folder.config()
        about = sections.get("run", {})
        try:
            if missing := [name for name in ("train", "model") if name not in sections]:
                raise ConfigError(f"no section [{missing[0]}]", code="missing-setting")
            run = RunSection.read(about)
            kind = LinkFitConfig if run.task != "node" else NodeFitConfig
            # runs from before there were other targets than two states do not name theirs
            node = {} if run.task != "node" else {"target": "binary"} | _select(about, NODE_ENTRIES)
            if (
                run.task == "node"
                and not {"balance", "finetune" if run.backbone else "target"} <= about.keys()
            ):
                raise ConfigError("[run] does not say what is predicted", code="missing-setting")
        except ConfigError as error:
            raise FileError(
                f"{folder.path}/config.toml is incomplete ({error}); restore it or train again",
                code="damaged-config",
            ) from error
        return RunConfig(
            run,
            build_config(kind, sections["train"] | node),
            sections["model"],
            sections.get("facts"),
            sections.get("chosen", {}),
            sections.get("made_with", {}),
            folder,
        )

    @property
    def sections(self) -> dict[str, dict[str, Any]]:
        """The sections as they are stored."""
        train = {name: value for name, value in to_settings(self.train).items() if name not in NODE_ENTRIES}
        sections = {"run": self.run.section, "train": train, "model": self.model}
        chosen = {} if self.recipe.startswith("node") else {"chosen": self.chosen}
        facts = {} if self.facts is None else {"facts": self.facts}
        return sections | chosen | {"made_with": self.made_with} | facts

    @property
    def recipe(self) -> str:
        """How its model is built, a key of `recipes.RECIPES`."""
        if self.run.task != "node":
            return "link"
        return "node_direct" if self.run.backbone is None else "node_head"

    @property
    def path(self) -> Path:
        return self.folder.path

    def require_finished(self) -> None:
        """Raise ConfigError unless the run was evaluated."""
        path = self.path
        if not self.folder.finished:
            raise ConfigError(
                f"{path} is not finished; continue it with `dygmamba.resume({str(path)!r})`",
                code="unfinished-run",
            )

    @property
    def seed(self) -> int:
        return self.run.seed

    @cached_property
    def rule(self) -> SplitRule:
        return parse_split_entries(self.run.section, self.path)

    @cached_property
    def spec(self) -> ModelSpec:
        return find_model(self.run.model, self.run.source)

    @cached_property
    def model_config(self) -> Any:
        """The typed settings of the model; settings that are newer than the run have their former values."""
        if self.recipe == "node_direct":
            return build_config(self.node_spec.config, self.model)
        return build_config(self.spec.config, update_stored_settings(self.run.model, self.model))

    @property
    def node_spec(self) -> NodeSpec:
        """How the model learns labels without a backbone."""
        if self.spec.for_nodes is None:
            raise FileError(
                f"{self.path}/config.toml is incomplete: '{self.run.model}' needs a backbone; restore it or train "
                "again",
                code="damaged-config",
            )
        return self.spec.for_nodes

    @property
    def stored_settings(self) -> dict[str, Any]:
        """Settings of the model and of the training loop, for a run that is to have the same."""
        return update_stored_settings(self.run.model, self.model) | to_settings(self.train)

    @property
    def training_columns(self) -> dict[str, Any]:
        """The columns of a result row about the training of a link run: negatives, loss and split."""
        assert isinstance(self.train, LinkFitConfig)
        loss = self.train.loss_function
        return {"train_negatives": self.train.train_negatives, **loss.about, **self.rule.stamp}


def describe_run(dataset: Dataset, rule: SplitRule, model: str, seed: int, **entries: Any) -> RunSection:
    """Return the section [run] of a new run."""
    identity = {"data": dataset.name, "digest": dataset.digest, "model": model, "seed": seed}
    return RunSection.read(identity | rule.section | entries)


def read_split(folder: RunDirectory) -> SplitRule:
    """Return the split of a run; only this part of its configuration is checked."""
    return parse_split_entries(folder.config().get("run", {}), folder.path)


def parse_split_entries(section: dict[str, Any], path: Path) -> SplitRule:
    """Return the rule in a section [run]; `path` is the run, for messages."""
    try:
        return SplitRule.read(section)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FileError(
            f"{path}/config.toml has an incomplete split ({error!r}); restore it or train again",
            code="damaged-config",
        ) from error


def _select(section: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: section[name] for name in names if name in section}

"""The section of a report on what boosted trees use: the columns of the dataset by name, and the history."""

import shlex

from dygmamba.explain.feature_use import FeatureUse
from dygmamba.history.table_request import EVENT_COLUMN, HISTORY, NODE_COLUMN
from dygmamba.report.document import BarChart, Cell, ReportTable, Section

# settings of a training without the columns of a kind
SETTINGS_WITHOUT = {EVENT_COLUMN: ("numeric_columns=0", "event_types=0"), NODE_COLUMN: ("node_columns=0",)}


def build_feature_section(use: FeatureUse | None, model: str, data: str) -> Section | None:
    """Show how much each column, and each kind of count, adds to the logits; None if that was not measured."""
    total = sum(group.size for group in use.groups) if use else 0.0
    if use is None or not total:
        return None
    share = {group: 100 * group.size / total for group in use.groups}
    separation = sum(group.separation for group in use.groups)
    note = (
        "Contribution: mean size of what the features of an input add to the logit together. Real minus random: their "
        "mean contribution to the real events minus that to the random pairs. These add up to the difference of the "
        f"mean logits, {separation:+.3f}; an input below 0 makes the two harder to tell apart."
    )
    names = ("input", "share (%)", "contribution", "real minus random", "kind")
    rows = (
        (group.name, f"{own:.1f}", f"{group.size:.3f}", f"{group.separation:+.3f}", Cell(group.kind, "words"))
        for group, own in share.items()
    )
    bars: dict[str, dict[str, float]] = {}
    for group, own in share.items():
        bars.setdefault(group.kind, {})[group.name] = own
    events = f"{use.events:,} test event{'s' * (use.events != 1)}"
    text = f"Exact Shapley values of the model's inputs, for {events} at even distances and as many random pairs."
    columns = [group for group in use.groups if group.kind != HISTORY]
    return Section(
        "What the model uses",
        f"{text}\n{_describe_columns([share[group] for group in columns])}",
        (ReportTable.of_rows("", note, names, rows),),
        (BarChart("Share of the contributions", "share (%)", bars),),
        _command_without({group.kind for group in columns}, model, data),
    )


def _describe_columns(shares: list[float]) -> str:
    """Say how much the columns of the dataset are used, and how to find out whether they are needed."""
    if not shares:
        return "The model reads no columns: the data has none, or it was trained without them."
    return (
        f"{sum(shares):.1f} % of the contributions come from the columns of your data. That says how much "
        "these trees use them. Trees without them may be just as good, if the history holds the same information. To "
        "know whether the columns help, train without them, with the other settings of this run, and compare the two "
        "runs:"
    )


def _command_without(kinds: set[str], model: str, data: str) -> str:
    """Return the command of a training without these columns; empty if there are none."""
    settings = [setting for kind, own in SETTINGS_WITHOUT.items() if kind in kinds for setting in own]
    parts = [part for setting in settings for part in ("--set", setting)]
    return shlex.join(["dygmamba", "train", data, "--model", model, *parts]) if parts else ""

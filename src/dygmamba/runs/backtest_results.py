"""Result of a backtest: the table of its periods, differences between variants, and when to retrain."""

import csv
from dataclasses import dataclass
from io import StringIO
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dygmamba.core.choices import VARIANTS
from dygmamba.data.events.times import format_date, format_duration
from dygmamba.runs.evaluation import Row
from dygmamba.tasks.metrics import get_error_name
from dygmamba.tasks.statistics import Difference, average_differences, standard_error

FROZEN, WARM, REFIT = VARIANTS
PAGE_NAME, TABLE_FILE = "backtest", "periods.csv"
SECONDS_PER_DAY = 86_400
METRICS = ("ap", "auc", "log_loss", "mrr")
FIGURES = [name for metric in METRICS for name in (metric, get_error_name(metric))]
KEY_COLUMNS = {
    "period": pa.int64(), "begin": pa.float64(), "end": pa.float64(), "date": pa.string(), "events": pa.int64(),
    "model": pa.string(), "is_rule": pa.bool_(), "trained_at": pa.float64(), "trained_events": pa.int64(),
    "epochs": pa.int64(), "seconds": pa.float64(),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Comparison:
    """AP of one variant minus that of another, by period, with standard errors over blocks of events."""

    better: str  # the variant that learned later
    worse: str
    differences: dict[int, Difference]  # by period

    def average_from(self, place: int) -> Difference:
        """Return the mean difference from a period on."""
        return average_differences(list(self.differences.values())[place:])

    @property
    def first_significant(self) -> int | None:
        """Place of the first period that is significant, and from which on the mean is; None if there is none."""
        places = (
            place
            for place, one in enumerate(self.differences.values())
            if one.is_significant and self.average_from(place).is_significant
        )
        return next(places, None)


@dataclass(frozen=True, slots=True)
class Backtest:
    """Result of a backtest; `rows` has one row per period and variant, and per period and baseline.

    Attributes:
        data: Name of the dataset.
        model: Name of the model.
        folder: Where the page, the table and the JSON file are.
        variants: Those that were compared.
        rows: As in backtest.json.
        is_dated: Whether times are seconds since 1970.
    """

    data: str
    model: str
    folder: Path
    variants: tuple[str, ...]
    rows: list[Row]
    is_dated: bool = False

    @property
    def page(self) -> Path:
        """HTML page with a chart per metric."""
        return self.folder / f"{PAGE_NAME}.html"

    @property
    def table(self) -> pa.Table:
        """The rows as a table, with a date where times are dates."""
        kinds = KEY_COLUMNS | dict.fromkeys(FIGURES, pa.float64())
        dated = [
            row | {"date": self.format_time(row["begin"]) if self.is_dated else None} for row in self.rows
        ]
        return pa.table(
            {name: pa.array([row.get(name) for row in dated], kind) for name, kind in kinds.items()}
        )

    def list_variant_rows(self, model: str) -> list[Row]:
        """Return the rows of a variant or a rule, by period."""
        return [row for row in self.rows if row["model"] == model]

    @property
    def best_rule(self) -> str | None:
        """The baseline with the best AP, averaged over the periods; None if none was evaluated in every period."""
        periods = len({row["period"] for row in self.rows})
        found = {row["model"]: self.list_variant_rows(row["model"]) for row in self.rows if row["is_rule"]}
        means = {
            name: float(np.mean([row["ap"] for row in rows]))
            for name, rows in found.items()
            if len(rows) == periods
        }
        return max(means, key=lambda name: means[name], default=None)

    def compare(self, better: str, worse: str) -> Comparison:
        """Compare two variants in the periods after the first one, in which they are the same run."""
        pairs = zip(self.list_variant_rows(better)[1:], self.list_variant_rows(worse)[1:], strict=True)
        differences = {}
        for a, b in pairs:
            gaps = [x - y for x, y in zip(a["blocks"], b["blocks"], strict=True)]
            differences[a["period"]] = Difference(a["ap"] - b["ap"], standard_error(gaps))
        return Comparison(better, worse, differences)

    @property
    def comparisons(self) -> list[Comparison]:
        """Each variant against those that learned less."""
        known = [variant for variant in VARIANTS if variant in self.variants]
        return [self.compare(b, a) for k, a in enumerate(known) for b in known[k + 1 :]]

    @property
    def sentences(self) -> list[str]:
        """Conclusions from the comparisons: when the frozen model falls behind, and whether a warm start suffices."""
        return [self._describe(comparison) for comparison in self.comparisons if comparison.differences]

    def _describe(self, comparison: Comparison) -> str:
        place, count = comparison.first_significant, len(comparison.differences)
        better, worse = comparison.better, comparison.worse
        if place is None:
            return (
                f"{better} is not above {worse} by more than chance in a lasting way: "
                f"{comparison.average_from(0).format('{:+.2f}')} AP on average over {count} period{'s' * (count != 1)}"
            )
        row = self.list_variant_rows(better)[1 + place]
        age = row["begin"] - self.rows[0]["begin"]
        after = format_duration(float(f"{age:.3g}")) if self.is_dated else f"{age:.12g}"
        return (
            f"{better} is above {worse} from period {row['period'] + 1} on ({self.format_time(row['begin'])}, {after} "
            f"after the first origin): {comparison.average_from(place).format('{:+.2f}')} AP on average since"
        )

    def format_time(self, value: float) -> str:
        """Format the beginning of a period, with the time of day if periods are shorter than a day."""
        if not self.is_dated:
            return f"{value:.12g}"
        is_short = any(row["end"] - row["begin"] < SECONDS_PER_DAY for row in self.rows)
        return format_date(value)[: 16 if is_short else 10]

    def to_csv(self) -> str:
        """Return the table as CSV."""
        text, table = StringIO(newline=""), self.table
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(table.column_names)
        writer.writerows([row.values() for row in table.to_pylist()])
        return text.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        rows = [{name: value for name, value in row.items() if name != "blocks"} for row in self.rows]
        names = {"data": self.data, "model": self.model, "variants": list(self.variants)}
        return names | {
            "rows": rows,
            "findings": self.sentences,
            "folder": str(self.folder),
            "page": str(self.page),
        }

    def __repr__(self) -> str:
        periods = len({row["period"] for row in self.rows})
        return f"<Backtest of {self.model} on {self.data}: {periods} periods, {self.page}>"


def check_rows(rows: list[Row], variants: list[str]) -> None:
    """Raise KeyError, TypeError, ValueError or AttributeError unless these are the rows of the first periods."""
    for row in rows:
        itemgetter("period", "begin", "end", "events", "model", "is_rule", "blocks", *FIGURES)(row)
    result = Backtest("", "", Path(), tuple(variants), rows)
    done = result.table["period"].unique().to_pylist()
    if done != list(range(len(done))) or any(
        len(result.list_variant_rows(name)) != len(done) for name in variants
    ):
        raise ValueError("periods are missing")
    _ = result.sentences

"""What training and its weights look like: loss and validation by epoch, the learned forgetting."""

from typing import Any

from dygmamba.data.statistics import as_duration
from dygmamba.explain.forgetting import QUANTILES, Forgetting
from dygmamba.report.figures import Kind, Lines, Point
from dygmamba.report.sheets import Section

Rows = list[dict[str, Any]]


def training_section(epochs: Rows, watched: str, caption: str) -> Section:
    """Loss and the watched validation metric by epoch."""
    if not epochs:
        return Section("Training", "No epoch is finished yet.")
    name = f"validation {watched.upper()}"
    loss = Lines(
        "Training loss", "epoch", "loss (binary cross-entropy, nats)",
        {"training loss": [(entry["epoch"] + 1, entry["loss"]) for entry in epochs]}, "count",
        note="Mean of an epoch's batches; lower is better.",
    )  # fmt: skip
    quality = Lines(
        f"Validation {watched.upper()}",
        "epoch",
        f"{name} (%)",
        {name: validation(epochs, watched)},
        "count",
        note=caption,
    )
    return Section("Training", "", (), (loss, quality))


def validation(epochs: Rows, watched: str) -> list[Point]:
    """The watched metric by epoch, in per cent."""
    return [(entry["epoch"] + 1, 100 * entry[f"val_{watched}"]) for entry in epochs]


def forgetting_section(found: Forgetting | None, seconds: bool = False) -> Section | None:
    """The return weight that the scores imply, and the retention that the weights hold, each beside the law.

    `seconds`: whether the stream's times are; where the law is known they are.
    """
    if found is None:
        return None
    seconds = seconds or found.law is not None
    kind: Kind = "span" if seconds else "log"
    unit = "" if seconds else ", in the unit of the data"
    law: dict[str, list[Point]] = {}
    if found.true:
        law = {f"true law ({found.law})": list(zip(found.span, found.true, strict=True))}
    lines = list(zip(found.span, found.learned, found.error, strict=True))
    charts = [
        Lines(
            "What the scores say", f"span since the meeting{unit}", "return weight (1 at the smallest span)",
            {"learned": [(a, b) for a, b, _ in lines], **law}, kind,
            bands={"± 2 standard errors": [(a, max(b - 2 * e, 0.0), b + 2 * e) for a, b, e in lines]},
            note="How much a past meeting still counts after this span. In real pasts of the test period one meeting "
            "of the pair is moved to another moment and all else is kept; the weight is exp(logit if met) minus "
            f"exp(logit if never met), up to a factor per past, fitted over {found.probes:,} probes.",
        )
    ]  # fmt: skip
    if kept := found.retention:
        low, *_, high = (f"{level:g}" for level in QUANTILES)
        reach = _duration(found.reach) if seconds else f"{found.reach:.4g}"
        charts.append(
            Lines(
                "What the weights hold", f"gap between two events{unit}", "share of the state kept (1 = all)",
                {"median channel": list(zip(found.span, kept["0.5"], strict=True)), **law}, kind,
                bands={
                    "10 % to 90 % of the channels": list(zip(found.span, kept[low], kept[high], strict=True))
                },
                y_range=(0.0, 1.03),
                note=f"exp(Δ(s)·A) of Eq. 11 over channels and states, in a past of the median reach ({reach}). "
                "Channels are free to keep what no return depends on, so they need not follow the law one by one.",
            )
        )  # fmt: skip
    return Section("Learned forgetting", _closeness(found), (), tuple(charts))


def _closeness(found: Forgetting) -> str:
    if found.closeness is None:
        return "How fast the model lets a past meeting fade."
    close = found.closeness
    said = (
        "The data came from a known law of forgetting. What the model learned of it, over spans from "
        f"{_duration(found.span[0])} to {_duration(found.span[-1])}: correlation {close.correlation:.3f}, mean gap "
        f"{close.mean_gap:.3f}, largest gap {close.max_gap:.3f}, the weight at the smallest span being 1."
    )
    if close.half_life and close.true_half_life:
        said += (
            f" From there it halves after {_duration(close.half_life)}, by the law after "
            f"{_duration(close.true_half_life)}."
        )
    return said


def _duration(seconds: float) -> str:
    return as_duration(float(f"{seconds:.6g}"))

"""The figures of a report, as plotly draws them.

They are drawn in light colours; where the reader's screen is dark, the page exchanges them by DARK.
"""

from typing import Any

import numpy as np

from dygmamba.explain.forgetting import QUANTILES, Forgetting

OWN, LAW, FAINT, BAND = "#0072b2", "#d55e00", "#8a8f98", "rgba(0,114,178,0.16)"
DARK = {OWN: "#5bb8f0", LAW: "#ff9a4d", FAINT: "#9aa1ab", BAND: "rgba(91,184,240,0.22)"}
SECONDS = {"s": 1, "min": 60, "h": 3_600, "d": 86_400, "y": 31_557_600}
TICKS = {
    count * SECONDS[unit]: f"{count} {unit}"
    for unit, counts in {
        "s": (1, 10),
        "min": (1, 5, 15),
        "h": (1, 3, 8),
        "d": (1, 3, 10, 30, 100),
        "y": (1, 3),
    }.items()
    for count in counts
}

Rows = list[dict[str, Any]]


def training_figures(go: Any, epochs: Rows, watched: str) -> dict[str, Any]:
    """Loss and the watched validation metric by epoch."""
    if not epochs:
        return {}
    number = [entry["epoch"] + 1 for entry in epochs]
    loss = _line(go, number, [entry["loss"] for entry in epochs], "training loss", OWN)
    name = f"validation {watched.upper()}"
    metric = _line(go, number, [100 * entry[f"val_{watched}"] for entry in epochs], name, OWN)
    axis = {"title": "epoch", "dtick": max(1, len(epochs) // 8)}
    return {
        "loss": _figure(go, [loss], axis, {"title": "training loss"}),
        "validation": _figure(go, [metric], axis, {"title": f"{name} (%)"}),
    }


def forgetting_figures(go: Any, forgetting: Forgetting | None) -> dict[str, Any]:
    """The return weight that the scores imply, and the retention that the weights hold, each beside the law."""
    if forgetting is None:
        return {}
    span, law = forgetting.span, []
    if forgetting.true:
        law = [_line(go, span, forgetting.true, f"true law ({forgetting.law})", LAW, dash="dash")]
    learned, error = np.array(forgetting.learned), np.array(forgetting.error)
    band = _band(go, span, np.maximum(learned - 2 * error, 0), learned + 2 * error, "± 2 standard errors")
    axis = _span_axis(span, seconds=forgetting.law is not None, title="span since the meeting")
    weight = {"title": "return weight", "rangemode": "tozero"}
    figures = {"returns": _figure(go, [*band, *law, _line(go, span, learned, "learned", OWN)], axis, weight)}
    if kept := forgetting.retention:
        low, *_, high = (f"{level:g}" for level in QUANTILES)
        band = _band(go, span, np.array(kept[low]), np.array(kept[high]), "10 % to 90 % of the channels")
        lines = [*band, *law, _line(go, span, kept["0.5"], "median channel", OWN)]
        gap = axis | {"title": {"text": "gap between two events"}}
        figures["retention"] = _figure(
            go, lines, gap, {"title": "share of the state kept", "range": [0, 1.03]}
        )
    return figures


def _line(go: Any, x: Any, y: Any, name: str, colour: str, dash: str = "solid") -> Any:
    marks = "lines" if dash != "solid" else "lines+markers"
    return go.Scatter(
        x=list(x),
        y=list(map(float, y)),
        name=name,
        mode=marks,
        line={"color": colour, "width": 2.5, "dash": dash},
    )


def _band(go: Any, x: Any, low: np.ndarray, high: np.ndarray, name: str) -> list[Any]:
    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    under = go.Scatter(x=list(x), y=low.tolist(), showlegend=False, **edge)
    return [under, go.Scatter(x=list(x), y=high.tolist(), name=name, fill="tonexty", fillcolor=BAND, **edge)]


def _figure(go: Any, traces: list[Any], x: dict[str, Any], y: dict[str, Any]) -> Any:
    grid = {"gridcolor": "rgba(138,143,152,0.25)", "zeroline": False, "linecolor": FAINT, "automargin": True}
    layout = {
        "template": "none",
        "height": 340,
        "margin": {"l": 10, "r": 16, "t": 36, "b": 10},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": FAINT},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "showlegend": len(traces) > 1,
        "hovermode": "x unified" if len(traces) > 1 else "closest",
        "xaxis": grid | x,
        "yaxis": grid | y,
    }
    return go.Figure(traces, layout)


def _span_axis(span: list[float], seconds: bool, title: str) -> dict[str, Any]:
    """A logarithmic axis, with durations for ticks where the unit is the second."""
    axis: dict[str, Any] = {"type": "log", "title": {"text": title}}
    inside = [tick for tick in TICKS if span[0] * 0.8 <= tick <= span[-1] * 1.25]
    if not seconds or len(inside) < 2:
        return axis
    return axis | {"tickvals": inside, "ticktext": [TICKS[tick] for tick in inside]}

"""An audit as one page for somebody who has never seen the papers: no script, no request, figures as SVG."""

from importlib.resources import files
from pathlib import Path
from typing import Any

from dygmamba.errors import ConfigError
from dygmamba.files.writing import make_folder, write_text
from dygmamba.studies.audit import Audit
from dygmamba.studies.ceilings import Ceiling
from dygmamba.studies.published import printed

TEMPLATE = "page.html"
WIDTH, LEFT, RIGHT, ROW = 360, 8, 352, 46  # of the figure, in its own units; a telephone shows them 1:1
LOWEST = 40.0  # per cent at the figure's left edge
NODES = {"transductive": "all nodes", "inductive": "new nodes"}


def write_page(found: Audit, out: Path) -> Path:
    """The page at this place, whole or not at all."""
    if out.is_dir():
        raise ConfigError(f"{out} is a folder; give the name of a file with `out`")
    page = render(found)
    make_folder(out.parent)
    write_text(out, page)
    return out


def render(found: Audit) -> str:
    """The page as text."""
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters |= {"percent": percent, "share": share}
    template = environment.from_string(files("dygmamba.studies.audit").joinpath(TEMPLATE).read_text("utf-8"))
    tests = [one for one, _ in found.ceilings if one.split == "test"]
    return template.render(
        audit=found,
        test=next(one for one in found.periods if one.split == "test"),
        nodes=NODES,
        first=tests[0],
        figure=[_bar(found.dataset, one, place) for place, one in enumerate(tests)],
        height=ROW * len(tests) + 24,
        ticks=[(_x(value), value) for value in (50, 60, 70, 80, 90, 100)],
        above=[(one, cell) for one, cells in found.ceilings for cell in cells],
        rules=_by_rule(found),
        tells=max((max(one.auc, 1 - one.auc) for one in found.padding), default=0.5),
    )


def percent(value: float | None) -> str:
    """A metric, in per cent with one digit behind the point."""
    return "–" if value is None else f"{100 * value:.1f}"  # noqa: RUF001


def share(value: float) -> str:
    """A share, in per cent; little is not nothing."""
    return "less than 0.1 %" if 0 < value < 0.001 else f"{100 * value:.1f} %"


def _x(value: float) -> float:
    return round(LEFT + (RIGHT - LEFT) * (max(value, LOWEST) - LOWEST) / (100 - LOWEST), 1)


def _bar(dataset: str, one: Ceiling, place: int) -> dict[str, Any]:
    """A question's row: how far a bar reaches, and where published figures of AP lie."""
    limit = 100 * one.edge_oracle_ap
    cells = {
        (model, cell.mean)
        for model, metric, cell in printed(dataset, one.setting, one.negatives)
        if metric == "ap"
    }
    dots = [
        {"x": _x(mean), "above": mean > limit, "title": f"{model} {mean:.2f}"}
        for model, mean in sorted(cells, key=lambda cell: cell[1])
    ]
    return {
        "y": ROW * place,
        "title": f"{NODES[one.setting]}, {one.negatives} negatives",
        "limit": f"{limit:.1f}",
        "start": _x(LOWEST),
        "x": _x(limit),
        "member": _x(100 * one.membership_oracle_ap),
        "dots": dots,
    }


def _by_rule(found: Audit) -> dict[str, dict[str, list[float]]]:
    """A table per setting: a row per rule, a figure per kind of negatives."""
    tables: dict[str, dict[str, list[float]]] = {}
    for one in found.rules:
        tables.setdefault(one.setting, {}).setdefault(one.rule, []).append(one.ap)
    return tables

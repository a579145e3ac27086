"""Short HTML for notebooks, which `_repr_html_` of public classes returns; everything is escaped."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any


def format_facts(title: str, facts: Mapping[str, Any]) -> str:
    """Return a title and a table of two columns; facts that are empty are left out."""
    rows = [(name, value) for name, value in facts.items() if value not in (None, "")]
    return format_table((), rows, title)


def format_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> str:
    """Return a table; numbers are aligned to the right, floats below 10,000 have four digits."""
    head = "".join(f"<th>{escape(str(name))}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(map(_format_cell, row))}</tr>" for row in rows)
    heading = f"<p><b>{escape(title)}</b></p>" if title else ""
    return (
        f"{heading}<table>{f'<thead><tr>{head}</tr></thead>' if columns else ''}<tbody>{body}</tbody></table>"
    )


def _format_cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        text = f"{value:.{4 if abs(value) < 1e4 else 12}g}" if isinstance(value, float) else str(value)
        return f'<td style="text-align: right">{text}</td>'
    return f'<td style="text-align: left">{escape("-" if value is None else str(value))}</td>'

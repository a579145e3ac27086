"""An explanation in words, as a picture and as a page without script: it opens offline and prints."""

from html import escape
from importlib.resources import files
from math import log
from pathlib import Path

from dygmamba.data.statistics import as_duration
from dygmamba.errors import FileError
from dygmamba.explain.explanation import Explanation, Reason, Without
from dygmamba.files.writing import make_folder, write_text

WIDTH, ROW, LABELS = 720, 26, 330
FOR, AGAINST, SOFT = "#0072b2", "#d55e00", "#8a8f98"
STYLE = "why.css"


def headline(found: Explanation) -> str:
    """Who, when, and the score."""
    who = f"{found.src}" if found.dst is None else f"{found.src} -> {found.dst}"
    return f"{who} at {found.time}: score {found.score:.3f} (logit {found.logit:+.3f}), model {found.model}"


def ago(found: Explanation, reason: Reason) -> str:
    """When it happened, and how long before the question."""
    span = as_duration(reason.age) if found.seconds else f"{reason.age:.6g}"
    return f"{reason.time} ({span} before)"


def event_words(found: Explanation, reason: Reason) -> str:
    """Who with whom, or how many events of whom."""
    if reason.count == 1:
        return f"{reason.src} -> {reason.dst}" + (
            " (they met)" if reason.side == "both" and found.dst else ""
        )
    whose = found.src if reason.side == "src" else found.dst if reason.side == "dst" else "either"
    return f"{reason.count:,} older events of {whose}"


def rest_words(found: Explanation, top: int) -> tuple[str, float]:
    """The events that are not shown, and what they add; no name where all are."""
    rest = found.rest(top)
    return (f"{rest['count']:,} other events" if rest["count"] else "", rest["contribution"])


def base_words(found: Explanation) -> tuple[str, float]:
    """What the model says without the events."""
    lacks = "none of these events" if found.removal == "stream" else "no past at all"
    return f"base: {lacks}, score {found.base_score:.3f}", found.base


def in_words(found: Explanation) -> list[str]:
    """The exact what-ifs as sentences."""
    lines = [_without_words(found, one) for one in found.without]
    if _said_twice(found):
        lines.insert(
            0, "Several events say the same: no single one is missed, what they add together is divided."
        )
    if found.flip is not None:
        lines.append(
            f"Smallest set found that turns it: without {_count(found.flip)}, {found.flip.score:.3f}"
        )
    elif found.without:
        side = "below" if found.score >= 0.5 else "to"
        lines.append(f"No set of up to ten events was found without which it goes {side} 0.5.")
    return lines


def _said_twice(found: Explanation) -> bool:
    """Whether the score hardly moves without the strongest event alone, for all that it is credited with."""
    alone, most = found.reasons[0].score_without, abs(found.reasons[0].contribution)
    if alone is None or not 0 < alone < 1:
        return False
    return abs(found.logit - log(alone / (1 - alone))) < most / 4


def _without_words(found: Explanation, one: Without) -> str:
    did = "raised" if found.score >= 0.5 else "lowered"
    which = "event that" if len(one.events) == 1 else f"{len(one.events)} events that"
    return f"Without the {which} {did} it most: {one.score:.3f}"


def _count(one: Without) -> str:
    return f"{len(one.events)} event{'s' if len(one.events) > 1 else ''}"


def picture(found: Explanation, top: int = 10) -> str:
    """Bars to the right for what raised the logit, to the left for what lowered it; of trees their numbers."""
    rows = [
        (f"{_short(event_words(found, one))}, {_span(found, one)}", one.contribution)
        for one in found.reasons[:top]
    ]
    rows += [row for row in (rest_words(found, top), base_words(found)) if row[0]]
    return _bars(rows, f"What moved the score: {headline(found)}")


def numbers_picture(found: Explanation, top: int = 10) -> str:
    """The same of the numbers that trees look at."""
    if found.numbers is None:
        return ""
    rows = [(one.name, one.contribution) for one in found.numbers.strongest[:top]]
    others = sum(one.contribution for one in found.numbers.strongest[top:])
    return _bars(
        [*rows, ("all other numbers", others), ("base", found.numbers.base)], "What the trees look at"
    )


def page(found: Explanation, top: int = 10) -> str:
    """The page; what comes from a user is escaped."""
    parts = [f"<h1>{escape(headline(found))}</h1>"]
    if found.notes:
        parts.append(f'<p class="soft">{escape("; ".join(found.notes))}.</p>')
    if found.numbers is not None:
        parts += ["<h2>What the trees look at</h2>", _figure(
            numbers_picture(found, top),
            "Each bar is the exact Shapley value of one number; together with the base they are the logit.",
        )]  # fmt: skip
    parts += ["<h2>Which events moved the score</h2>", _figure(
        picture(found, top),
        "Bars to the right raised the logit, bars to the left lowered it; all of them together are the logit.",
    ), _table(found, top), "<h2>What if</h2>"]  # fmt: skip
    parts += [f"<p>{escape(line)}</p>" for line in in_words(found)]
    parts.append(
        f'<p class="soft">{found.scored:,} histories scored, {found.orders} pairs of orders; the sum of the parts '
        f"misses the logit by {found.gap:.1e}. A contribution says what the model did with an event, not what the "
        "event caused.</p>"
    )
    style = files("dygmamba.report").joinpath(STYLE).read_text("utf-8")
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{escape(headline(found))}</title><style>{style}</style></head>\n<body><main>\n"
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def write_why(found: Explanation, out: Path, top: int = 10) -> Path:
    """A page, or for a name that ends in .svg the picture alone; whole or not at all."""
    if out.is_dir():
        raise FileError(f"{out} is a folder; give the name of a file with `out`")
    make_folder(out.parent)
    write_text(out, picture(found, top) + "\n" if out.suffix.lower() == ".svg" else page(found, top))
    return out


def _table(found: Explanation, top: int) -> str:
    heads = ("event", "when", "contribution", "error", "score without it", "left after forgetting")
    lines = ["<tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"]
    for one in found.reasons[:top]:
        cells = (
            event_words(found, one),
            ago(found, one),
            f"{one.contribution:+.3f}",
            "" if one.error is None else f"{one.error:.3f}",
            "" if one.score_without is None else f"{one.score_without:.3f}",
            "" if one.left is None else f"{100 * one.left:.0f} %",
        )
        lines.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return '<div class="wide"><table>' + "".join(lines) + "</table></div>"


def _figure(drawn: str, said: str) -> str:
    return f"<figure>{drawn}<figcaption>{escape(said)}</figcaption></figure>"


def _span(found: Explanation, reason: Reason) -> str:
    return f"{as_duration(reason.age) if found.seconds else f'{reason.age:.4g}'} before"


def _short(text: str, most: int = 30) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _bars(rows: list[tuple[str, float]], title: str) -> str:
    """Labels on the left, a bar each from a common zero."""
    low, high = min([0.0, *(value for _, value in rows)]), max([0.0, *(value for _, value in rows)])
    scale = (WIDTH - LABELS - 120) / ((high - low) or 1.0)
    zero, height = LABELS + 60 - low * scale, ROW * len(rows) + 10
    parts = [f'<line x1="{zero:.1f}" x2="{zero:.1f}" y1="2" y2="{height - 4}" stroke="{SOFT}"/>']
    for at, (name, value) in enumerate(rows):
        y, long = 6 + at * ROW, abs(value) * scale
        left = zero if value >= 0 else zero - long
        colour = SOFT if name.startswith("base") else FOR if value >= 0 else AGAINST
        end, anchor = (left + long + 5, "start") if value >= 0 else (left - 5, "end")
        label = escape(_short(name, 52))
        parts += [
            f'<text x="{LABELS - 6}" y="{y + 14}" text-anchor="end" fill="currentColor">{label}</text>',
            f'<rect x="{left:.1f}" y="{y + 2}" width="{max(long, 0.5):.1f}" height="{ROW - 9}" fill="{colour}"/>',
            f'<text x="{end:.1f}" y="{y + 14}" text-anchor="{anchor}" fill="currentColor">{value:+.3f}</text>',
        ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="12" color="#6b7280">'
        f"<title>{escape(title)}</title>" + "".join(parts) + "</svg>"
    )

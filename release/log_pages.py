"""Add the logs of scheduled jobs to a built site, one page each.

`python release/log_pages.py LOGS SITE` writes SITE/checks/NAME.html for every LOGS/NAME.txt, and a list of them,
SITE/checks/index.html.
"""

import html
import sys
from datetime import UTC, datetime
from pathlib import Path

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 1rem/1.5 system-ui; margin: 1rem auto; max-width: 75rem; padding: 0 1rem }}
pre {{ overflow-x: auto }}
</style>
<p><a href="../index.html">dyg-mamba</a></p><h1>{title}</h1>{body}</html>
"""


def main(logs: Path, site: Path) -> None:
    """Write the pages."""
    folder, now = site / "checks", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    folder.mkdir(parents=True, exist_ok=True)
    items = []
    for log in sorted(logs.glob("*.txt")):
        text = log.read_text("utf-8", "replace")
        body = f"<p>{now}</p><pre>{html.escape(text)}</pre>"
        (folder / f"{log.stem}.html").write_text(PAGE.format(title=log.stem, body=body), "utf-8")
        items.append(f'<li><a href="{log.stem}.html">{log.stem}</a>, {len(text.splitlines()):,} lines</li>')
    body = f"<p>{now}</p><ul>{''.join(items)}</ul>" if items else f"<p>{now}: no job left a log.</p>"
    (folder / "index.html").write_text(PAGE.format(title="Scheduled checks", body=body), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

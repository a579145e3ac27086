"""A real browser for tests: what a page becomes, what it complains about, how it looks."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--virtual-time-budget=10000",
    "--enable-logging=stderr",
)


@dataclass(frozen=True, slots=True)
class Browser:
    """Chromium without a window; every call is a process of its own."""

    program: str
    profile: Path

    def _open(self, page: Path | str, *options: str, query: str = "") -> subprocess.CompletedProcess:
        address = page if isinstance(page, str) else page.as_uri()
        line = [self.program, *QUIET, f"--user-data-dir={self.profile}", *options, address + query]
        return subprocess.run(line, capture_output=True, text=True, timeout=120)

    def dom(self, page: Path | str, *options: str, query: str = "") -> tuple[str, list[str]]:
        """The page after its scripts ran, and what its console said."""
        done = self._open(page, "--dump-dom", *options, query=query)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout, re.findall(r"CONSOLE.*?\] (.*)", done.stderr)

    def screenshot(self, page: Path | str, image: Path, *options: str) -> bytes:
        """The page as a PNG file."""
        self._open(page, f"--screenshot={image}", "--window-size=1100,2200", *options)
        return image.read_bytes()


def find_browser(profile: Path) -> Browser:
    """The installed browser; the test skips where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser: install one of {', '.join(NAMES)}")
    return Browser(program, profile)

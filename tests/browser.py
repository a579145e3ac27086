"""A real browser for tests: what a page becomes, what it complains about, how it looks."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

    @contextmanager
    def drive(self, width: int, scheme: str) -> Iterator["Tab"]:
        """A tab of this width in light or dark that takes keys and answers expressions."""
        websocket = pytest.importorskip("tornado.websocket", reason="tornado is not installed")
        ioloop = pytest.importorskip("tornado.ioloop")
        options = [option for option in QUIET if not option.startswith("--virtual-time")]
        line = [self.program, *options, "--remote-debugging-port=0", "--remote-allow-origins=*"]
        process = subprocess.Popen(
            [*line, f"--user-data-dir={self.profile}", "about:blank"], stderr=subprocess.PIPE, text=True
        )
        loop = ioloop.IOLoop(make_current=False)
        try:
            said = next(text for text in process.stderr if "DevTools listening" in text)
            browser = Tab(loop, loop.run_sync(lambda: websocket.websocket_connect(said.split()[-1])))
            target = browser.call("Target.createTarget", url="about:blank")["targetId"]
            page = re.sub(r"browser/.*", f"page/{target}", said.split()[-1])
            tab = Tab(loop, loop.run_sync(lambda: websocket.websocket_connect(page)))
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
            tab.call("Emulation.setDeviceMetricsOverride", **size)
            tab.call(
                "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
            )
            yield tab
        finally:
            process.terminate()
            process.wait(30)
            process.stderr.close()
            loop.close(all_fds=True)


class Tab:
    """A tab over the DevTools protocol."""

    def __init__(self, loop: Any, connection: Any) -> None:
        self._loop, self._connection, self._count = loop, connection, 0

    def call(self, method: str, **parameters) -> dict:
        self._count += 1
        message = json.dumps({"id": self._count, "method": method, "params": parameters})
        self._loop.run_sync(lambda: self._connection.write_message(message))
        while True:
            answer = json.loads(self._loop.run_sync(self._connection.read_message, timeout=60))
            if answer.get("id") == self._count:
                return answer["result"]

    def evaluate(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + 60
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, expression
            time.sleep(0.05)

    def press(self, key: str, code: int, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more
            )


def find_browser(profile: Path) -> Browser:
    """The installed browser; the test skips where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser: install one of {', '.join(NAMES)}")
    return Browser(program, profile)

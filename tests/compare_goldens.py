"""Compare what the working tree computes with what a commit computes, to the last bit, on this machine.

    make goldens AT=COMMIT        or        python tests/compare_goldens.py COMMIT

Both are recorded by `golden_cases.py` of the working tree, in processes that differ in their sources only: weights and
scores of trainings, imported datasets, the `--json` output of the commands, and runs that earlier versions wrote. The
record of a commit stays in build/goldens/ until the recording code or the machine changes. Every value that differs is
printed; the exit code is 1 if there is one.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from golden_cases import ABLATIONS, HERE, fingerprint

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
RECORDS = ROOT / "build" / "goldens"
WIDTH = 48  # characters of a value in the table
ABSENT = object()


def main(commit: str) -> int:
    """Record both at the same time, on a core each, and print what differs."""
    sha = git("rev-parse", "--verify", f"{commit}^{{commit}}")
    RECORDS.mkdir(parents=True, exist_ok=True)
    began, record = time.monotonic(), RECORDS / f"{sha}.json"
    with tempfile.TemporaryDirectory(dir=RECORDS) as name:
        checkout, fresh = Path(name) / "checkout", Path(name) / "commit.json"
        recorders = {ROOT: Path(name) / "tree.json"} | ({} if is_current(record) else {checkout: fresh})
        processes: list[subprocess.Popen[bytes]] = []
        try:
            if checkout in recorders:
                git("worktree", "add", "--detach", str(checkout), sha)
            for sources, out in recorders.items():
                processes.append(start_recorder(sources / "src", out))
            exit_codes = [process.wait() for process in processes]
            if any(exit_codes):
                sys.exit("a recording failed; its error is above")
        finally:
            for process in processes:
                process.kill()  # where this one is interrupted
            if checkout in recorders:
                git("worktree", "remove", "--force", str(checkout))
        if checkout in recorders:
            record.write_text(json.dumps(read_record(fresh, checkout) | {"recorder": hash_recorder()}))
        before, after = json.loads(record.read_text()), read_record(recorders[ROOT], ROOT)
    found = [entry for part in after for entry in list_differences((part,), before[part], after[part])]
    for path, old, new in found:
        print(f"{' / '.join(path)}\n    {sha[:9]}     {shorten(old)}\n    working tree  {shorten(new)}")
    count = sum(1 for part in after.values() for _ in list_differences((), {}, part))
    print(f"{count:,} cases in {', '.join(after)} ({time.monotonic() - began:.0f} s)")
    print(
        f"values that differ from {sha[:9]}: {len(found):,}" if found else f"nothing differs from {sha[:9]}"
    )
    return 1 if found else 0


def git(*words: str) -> str:
    """Run git in this repository; a mistake ends the program with git's own message."""
    answer = subprocess.run(["git", "-C", str(ROOT), *words], stdout=subprocess.PIPE, text=True, check=False)
    if answer.returncode:
        sys.exit(answer.returncode)
    return answer.stdout.strip()


def start_recorder(sources: Path, out: Path) -> subprocess.Popen[bytes]:
    """Start the recording code of the working tree with these sources of the package."""
    environment = os.environ | {"PYTHONPATH": str(sources), "PYTHONWARNINGS": "ignore"}
    words = [sys.executable, str(TESTS / "golden_cases.py"), "--exact", "--out", str(out)]
    return subprocess.Popen(words, env=environment, cwd=out.parent)


def read_record(path: Path, checkout: Path) -> dict[str, Any]:
    """Read what a recorder wrote, after a check that it used the sources it was given."""
    content = json.loads(path.read_text())
    if not Path(content.pop("sources")).is_relative_to(checkout):
        sys.exit(f"the recorder did not import the package from {checkout}")
    return content


def is_current(record: Path) -> bool:
    """Whether a stored record was made by this recording code on this kind of machine."""
    if not record.exists():
        return False
    content = json.loads(record.read_text())
    return (content["fingerprint"], content["recorder"]) == (fingerprint(), hash_recorder())


def hash_recorder() -> str:
    """A digest of everything that decides what is recorded, besides the sources."""
    code = [TESTS / name for name in ("golden_cases.py", "old_runs.py", "board_cases.py")]
    sha = hashlib.sha256()
    for path in (*code, *sorted(HERE.glob("*.tar.gz")), ABLATIONS):
        sha.update(path.read_bytes())
    return sha.hexdigest()


def list_differences(path: tuple[str, ...], old: Any, new: Any) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """The path and both values of everything that differs; one entry for what is missing on one side."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from list_differences((*path, key), old.get(key, ABSENT), new.get(key, ABSENT))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, pair in enumerate(zip(old, new, strict=True)):
            yield from list_differences((*path, str(place)), *pair)
    elif write_value(old) != write_value(new):  # as text: NaN is itself, and 1 is not 1.0
        yield path, old, new


def write_value(value: Any) -> str:
    return "absent" if value is ABSENT else json.dumps(value)


def shorten(value: Any) -> str:
    text = write_value(value)
    return text if len(text) <= WIDTH else f"{text[:WIDTH]}..."


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make goldens AT=COMMIT")
    sys.exit(main(sys.argv[1]))

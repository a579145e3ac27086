"""Whatever the locale and the terminal's encoding, commands work with any letters, and files are UTF-8."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dygmamba
from dygmamba.core.errors import FileError
from dygmamba.data.readers import read_dataset
from raising import raises
from torture_cases import SECONDS

ENVIRONMENTS = {
    "C": {"LC_ALL": "C"},
    "C without UTF-8": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1", "LC_ALL": "C"},
}
WORDS = (
    "data import {table} --out {name} --data-dir .",
    "data describe {name} --data-dir .",
    "data describe 日本 --data-dir .",
    "data list --data-dir .",
    "evaluate {name} --model recency --data-dir .",
)
# all calls in one process: what the environment decides is decided at its start
CALLS = """
import sys
from dygmamba.cli import main
for words in sys.argv[1:]:
    sys.argv = ["dygmamba", *words.split()]
    try:
        main()
        sys.stdout.write("<0>\\n")
    except SystemExit as left:
        sys.stdout.write(f"<{left.code or 0}>\\n")
"""


@pytest.mark.parametrize("name", list(ENVIRONMENTS) if SECONDS else ["C without UTF-8", "latin-1"])
def test_any_letters_work_in_any_locale(name, tmp_path):
    """For all locales and encodings of the terminal: no command fails for its letters; the refused one says so."""
    # without UTF-8 a file's name is bytes that are no letters, and is refused
    dataset, table = ("log", "table.csv") if "without" in name else ("łog", "Ünïcode-表.csv")
    rows = "".join(f"é{n % 7},日本{n % 5},{n}\n" for n in range(300))
    (tmp_path / table).write_text(f"src,dst,time\n{rows}", encoding="utf-8")
    (tmp_path / "calls.py").write_text(CALLS, encoding="utf-8")
    own = {
        "DYGMAMBA_DATA": str(tmp_path),
        "COLUMNS": "100",
        "PYTHONPATH": str(Path(dygmamba.__file__).parents[1]),
    }
    found = subprocess.run(
        [sys.executable, "calls.py", *(words.format(name=dataset, table=table) for words in WORDS)],
        cwd=tmp_path,
        env=os.environ | own | ENVIRONMENTS[name],
        capture_output=True,
        timeout=100,
    )
    assert b"Traceback" not in found.stderr, found.stderr.decode("utf-8", "replace")
    codes = [line for line in found.stdout.splitlines() if line.startswith(b"<") and line.endswith(b">")]
    assert codes == [b"<0>", b"<0>", b"<2>", b"<0>", b"<0>"], found.stderr.decode("utf-8", "replace")
    assert f"{dataset}.safetensors".encode() in os.listdir(os.fsencode(tmp_path))


def test_a_file_name_that_is_not_text_is_an_error(tmp_path):
    """Linux allows any bytes in a name; Arrow does not."""
    path = tmp_path / os.fsdecode(b"\xff.csv")
    path.write_text("src,dst,time\n1,2,3\n")
    with raises("not-utf8", FileError):
        read_dataset(path)

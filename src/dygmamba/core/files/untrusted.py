"""Files, names and text from untrusted sources.

Files are read only if they are regular, of bounded size, not a symbolic link, and match their checksum. Names are used
only if they stay a single path component, and paths in stored files only if they stay below their folder. Text is
written to spreadsheets, Markdown and LaTeX only after escaping what these would not show as text.
"""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dygmamba.core.errors import FileError, first_line, make_unreadable_error

CHUNK_BYTES = 1 << 22
RETRY_HINT = "get it again"
MAX_NAME_BYTES = 200  # file systems take 255; this leaves room for suffixes
# Path separators of any system, and characters that some file systems refuse.
RESERVED_CHARACTERS = frozenset('/\\<>:"|?*')
# Spreadsheets run cells that begin with these as formulas, full-width characters included.
FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001


def require_regular_file(path: Path) -> None:
    """Raise FileError unless the path names a regular file, or a link to one, that can be opened for reading."""
    # surrogates stand for bytes of the name that this locale cannot decode; Arrow cannot open such a path
    if re.search("[\ud800-\udfff]", str(path)):
        raise FileError(f"the name of {path} is not valid text in this locale; rename it", code="not-utf8")
    if path.is_dir():
        raise FileError(f"{path} is a folder; give a file in it", code="is-a-folder")
    if not path.exists():
        raise FileError(f"{path} does not exist; check the name and the folder", code="file-missing")
    if not (path.is_file() and os.access(path, os.R_OK)):
        raise FileError(
            f"{path} cannot be opened for reading; check that it is a regular file and its permissions",
            code="file-unreadable",
        )


@contextmanager
def report_damage(
    path: Path,
    what: str,
    kinds: tuple[type[Exception], ...],
    advice: str,
    describe: Callable[[Exception], str] = first_line,
) -> Iterator[None]:
    """Context manager: errors with which a package says that a file is damaged become a FileError.

    It says that the file is not `what`, such as "a complete Parquet file", and why, as `describe` returns it.
    """
    try:
        yield
    except kinds as error:
        raise FileError(f"{path} is not {what} ({describe(error)}); {advice}", code="file-damaged") from error


def read_regular_file(path: Path, max_bytes: int) -> Iterator[bytes]:
    """Yield the bytes of a regular file of at most `max_bytes`; symbolic links are not followed."""
    # O_NONBLOCK: opening a named pipe would otherwise wait for a writer for ever.
    # not on every system
    optional = (getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    handle = os.open(path, os.O_RDONLY | sum(optional))
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
            raise FileError(
                f"{path} is not a regular file of at most {max_bytes:,} bytes; {RETRY_HINT}",
                code="not-a-regular-file",
            )
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def read_verified_file(path: Path, size: int, digest: str) -> Iterator[bytes]:
    """Yield the bytes of a file and raise FileError at the end unless size and sha256 are the expected ones."""
    sha, seen = hashlib.sha256(), 0
    try:
        for chunk in read_regular_file(path, size):
            sha.update(chunk)
            seen += len(chunk)
            yield chunk
    except OSError as error:
        raise make_unreadable_error(path, error) from error
    if seen != size or sha.hexdigest() != digest:
        raise FileError(
            f"{path} is damaged: its content does not match its checksum; {RETRY_HINT}", code="file-damaged"
        )


def describe_file(path: Path) -> dict[str, Any]:
    """Return the size and the checksum of a file as `{"bytes": ..., "sha256": ...}`."""
    sha, size = hashlib.sha256(), 0
    for chunk in read_regular_file(path, path.stat().st_size):
        sha.update(chunk)
        size += len(chunk)
    return {"bytes": size, "sha256": sha.hexdigest()}


def is_valid_folder_name(name: str) -> bool:
    """Return whether `name` is one path component for every file system: no separators, no invisible characters."""
    is_plain = name == name.strip() and name == name.rstrip(".") and name.isprintable()
    is_short = len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES
    return bool(name) and is_plain and not RESERVED_CHARACTERS & set(name) and is_short


def locate_inside(folder: Path, name: object, source: Path) -> Path:
    """Return the path below `folder` that a stored file, `source`, names with "/" between components.

    Raises:
        FileError: The name is not text, is absolute, or could lead out of the folder.
    """
    if not isinstance(name, str) or not all(map(is_valid_folder_name, name.split("/"))):
        raise FileError(
            f"{source} names {name!r:.80}, which is no path inside {folder}; restore it, or delete it",
            code="path-outside-folder",
        )
    return folder / name


def escape_formula(text: str) -> str:
    """Put a single quote in front of text that a spreadsheet would run as a formula (OWASP, CSV injection)."""
    return f"'{text}" if text.startswith(FORMULA_PREFIXES) else text


# The ends of a word: an underscore inside of one is no markup in Markdown.
MARKDOWN_MARKUP = re.compile(r"[\\`*\[\]<>|~]|(?<!\w)_|_(?!\w)|^[#+-](?=\s|#)|^(?=\d+[.)]\s)")
LATEX_ESCAPES = {
    "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}", "±": r"$\pm$",
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
}  # fmt: skip


def to_one_line(text: object) -> str:
    """Return text as one line: line ends and other white space become blanks, control characters are left out."""
    joined = " ".join(str(text).split())
    return joined if joined.isprintable() else "".join(letter for letter in joined if letter.isprintable())


def escape_markdown(text: object) -> str:
    """Return text that Markdown shows as it is, on one line and inside of a table cell."""
    return MARKDOWN_MARKUP.sub(lambda match: f"\\{match[0]}", to_one_line(text))


def format_markdown_code(text: object) -> str:
    """Return text as a code span of Markdown; back quotes, which would end it, become single quotes."""
    return f"`{to_one_line(text).replace('`', chr(39)).replace('|', '/')}`"


def escape_latex(text: object) -> str:
    """Return text that LaTeX prints as it is, on one line."""
    return "".join(LATEX_ESCAPES.get(letter, letter) for letter in to_one_line(text))

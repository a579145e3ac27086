"""Text files: decompress and decode them, and normalize lines for Arrow's CSV parser.

Arrow accepts a single delimiter and no undecodable line, so runs of blanks are collapsed and such lines replaced by a
mark while the file is read.
"""

import codecs
import io
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from dygmamba.core.errors import ConfigError, FileError, first_line
from dygmamba.core.files.untrusted import require_regular_file

HEAD_BYTES = 1 << 20  # enough for the column names and some rows
MAX_LINE_BYTES = 4 << 20  # a longer line is a file without line ends, an open quote, or a hole of zeros
COMPRESSION_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd"}
# codecs of Python for names and source code; they decode nearly any file to nonsense
NOT_FOR_FILES = {"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape"}
ZIP_MAGIC = b"PK\x03\x04"
TAR_MAGIC = slice(257, 262)  # where a tar archive says "ustar"


def detect_compression(path: Path) -> str | None:
    """Detect the compression by the first bytes; file names are often wrong about it."""
    require_regular_file(path)  # a named pipe would wait for its writer for ever
    with path.open("rb") as file:
        start = file.read(4)
    if start == ZIP_MAGIC and is_zipped_text(path):
        return "zip"
    return next((kind for magic, kind in COMPRESSION_MAGIC.items() if start.startswith(magic)), None)


def open_decompressed(path: Path) -> pa.NativeFile:
    """Open a file as a stream of bytes, decompressed while reading."""
    compression = detect_compression(path)
    if compression == "zip":
        return pa.PythonFile(_ZippedFile(path), "r")
    return pa.input_stream(path, compression=compression)


class _ZippedFile(io.RawIOBase):
    """The only file of a zip archive; errors of the archive are OSErrors, as of other compressions."""

    def __init__(self, path: Path) -> None:
        # the stream stays open without the archive
        with _raise_os_errors(), zipfile.ZipFile(path) as archive:
            self._stream = archive.open(_list_zipped_files(path)[0])

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _raise_os_errors():
            block = self._stream.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)

    def close(self) -> None:
        self._stream.close()
        super().close()


@contextmanager
def _raise_os_errors() -> Iterator[None]:
    try:
        yield
    # damaged; encrypted; an unknown method of compression, or a later version of the format
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise OSError(str(error)) from error


def is_zipped_text(path: Path) -> bool:
    """Return whether a zip archive has exactly one file, and not of arrays; raise FileError if it has several."""
    names = _list_zipped_files(path)
    if not names or any(name.endswith(".npy") for name in names):
        return False
    if len(names) > 1:
        raise FileError(
            f"{path} has {len(names)} files ({', '.join(names[:3])}, ...); unpack it and give the files of events",
            code="unsupported-file",
        )
    return True


def _list_zipped_files(path: Path) -> list[str]:
    try:
        with _raise_os_errors(), zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except OSError:
        return []
    return [name for name in names if not name.endswith("/") and not name.startswith("__MACOSX/")]


def read_head(path: Path, encoding: str) -> tuple[str, bool]:
    """Read the beginning of a file as text.

    Returns:
        The text, undecodable bytes replaced by U+FFFD, and whether it is the whole file.
    """
    decoder = create_decoder(encoding, "replace")
    try:
        with open_decompressed(path) as stream:
            start = stream.read(HEAD_BYTES)
    except OSError as error:
        raise unreadable_error(path, error) from error
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and "16" not in encoding:
        raise FileError(f"{path} is UTF-16 text; read it with `encoding='utf-16'`", code="wrong-encoding")
    if start[TAR_MAGIC] == b"ustar":
        raise FileError(
            f"{path} is a tar archive; unpack it and give the file of events in it", code="unsupported-file"
        )
    try:
        text = decoder.decode(start)
    except UnicodeError as error:  # UTF-16 and UTF-32 need a byte order mark even when errors are replaced
        raise undecodable_error(path, encoding, skip_bad=False) from error
    if b"\n" in start and start.isascii() and "\n" not in text:
        raise FileError(f"{path} is ASCII text, not {encoding}; leave out `encoding`", code="wrong-encoding")
    if "\0" in text:
        raise FileError(
            f"{path} is a binary file, not delimited text; give a CSV, JSONL or Parquet file",
            code="unsupported-file",
        )
    return text.removeprefix("\ufeff"), len(start) < HEAD_BYTES


def create_decoder(encoding: str, errors: str = "strict") -> codecs.IncrementalDecoder:
    """Create the decoder of a text encoding; codecs that do not yield text, such as hex, are rejected."""
    # LookupError: unknown; ValueError: not a name
    with suppress(LookupError, ValueError):
        codec = codecs.lookup(encoding)
        is_text = getattr(codec, "_is_text_encoding", True)  # False for rot13 and hex; open() asks for it too
        if is_text and codec.name.replace("_", "-") not in NOT_FOR_FILES and codec.incrementaldecoder:
            return codec.incrementaldecoder(errors)
    raise ConfigError(
        f"encoding {encoding!r} is unknown; try utf-8, latin-1 or utf-16", code="unknown-encoding"
    )


def is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name == "utf-8"


def long_line_error(path: Path) -> FileError:
    return FileError(
        f"{path} has a line of more than {MAX_LINE_BYTES >> 20} MB, no event is that long; check its line ends and "
        "quotes, and remove the line",
        code="line-too-long",
    )


def unreadable_error(path: Path, error: OSError) -> FileError:
    """Build the error for a file that cannot be read or decompressed."""
    return FileError(f"{path} cannot be read ({first_line(error)}); check the file", code="file-unreadable")


def undecodable_error(path: Path, encoding: str, skip_bad: bool | None) -> FileError:
    """Build the error for the first undecodable byte; a second pass over the file finds it.

    Without an option `skip_bad` (None) the caller has none for encodings either.
    """
    advice = "convert it to UTF-8 with iconv"
    if skip_bad is not None:
        likely = guess_encoding(path)
        read, skip = f"read it with `encoding='{likely}'`", "leave out such rows with `skip_bad=True`"
        advice = f"{read} or {advice}" if skip_bad else f"{read}, {advice}, or {skip}"
    decoder = create_decoder(encoding)
    offset, lines = 0, 1
    with open_decompressed(path) as stream:
        while True:
            pending = len(decoder.getstate()[0])  # bytes of an unfinished character from the previous block
            block = stream.read(HEAD_BYTES)
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                lines += block[: max(error.start - pending, 0)].count(b"\n")
                position = f"byte {offset - pending + error.start} (line {lines})"
                return FileError(
                    f"{path} is not {encoding}: {position} cannot be decoded; {advice}", code="wrong-encoding"
                )
            except UnicodeError as error:
                return FileError(f"{path} is not {encoding} ({error}); {advice}", code="wrong-encoding")
            if not block:
                return FileError(f"{path} is not {encoding}; {advice}", code="wrong-encoding")
            offset, lines = offset + len(block), lines + block.count(b"\n")


def guess_encoding(path: Path) -> str:
    """Guess the encoding of text that is not UTF-8, by the bytes beyond ASCII at its beginning.

    In Cyrillic they make up words of high bytes, Japanese has kana, Chinese pairs of bytes; in western languages they
    stand alone.
    """
    with open_decompressed(path) as stream:
        start = stream.read(HEAD_BYTES)
    runs = re.findall(rb"[\x80-\xff]+", start)
    letters = b"".join(runs)
    if len(letters) >= 3 * len(runs) and sum(byte >= 0xC0 for byte in letters) > 0.9 * len(letters):
        return "cp1251"
    if len(re.findall("[\u3040-\u30ff]", start.decode("shift_jis", "ignore"))) > 0.1 * len(letters):
        return "shift_jis"
    if letters and min(letters) > 0xA0 and all(len(run) % 2 == 0 for run in runs):
        return "gb18030"
    return "cp1252" if any(byte < 0xA0 for byte in letters) else "latin-1"


UNDECODABLE_MARK = "\ufffd"  # replaces a whole line that cannot be decoded
TABS_TO_BLANKS = bytes.maketrans(b"\t\x0b\x0c", b"   ")
LineFilter = Callable[[bytes], bytes]


def collapse_whitespace(lines: bytes) -> bytes:
    """Turn runs of blanks and tabs into one blank, and strip them at both ends of each line."""
    lines = re.sub(rb" {2,}", b" ", lines.translate(TABS_TO_BLANKS)).replace(b"\r\n", b"\n")
    return lines.replace(b"\n ", b"\n").replace(b" \n", b"\n").strip(b" ")


def mark_undecodable(lines: bytes) -> bytes:
    """Replace each line that is not UTF-8 by `UNDECODABLE_MARK`."""
    try:
        lines.decode()
    except UnicodeDecodeError:
        parts = lines.splitlines(keepends=True)
        if len(parts) > 1:
            return b"".join(map(mark_undecodable, parts))
        return UNDECODABLE_MARK.encode() + lines[len(lines.rstrip(b"\r\n")) :]
    return lines


class NormalizedLines(io.RawIOBase):
    """A text file re-encoded as UTF-8 while it is read, with filters applied to runs of whole lines."""

    def __init__(self, path: Path, encoding: str, block: int, *filters: LineFilter) -> None:
        self._path, self._stream, self._block, self._filters = path, open_decompressed(path), block, filters
        self._decoder = None if is_utf8(encoding) else create_decoder(encoding)
        self._rest, self._ready, self._done = b"", memoryview(b""), False

    @property
    def at_end(self) -> bool:
        return self._done and not self._ready

    def iter_blocks(self) -> Iterator[bytes]:
        """Iterate over runs of whole lines; iterating over the file itself would read it byte by byte."""
        while not self._done:
            yield self._read_lines()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        # fill the buffer as far as possible: Arrow takes a short read for the end of the file
        filled = 0
        while filled < len(buffer):
            while not self._ready and not self._done:
                self._ready = memoryview(self._read_lines())
            if not self._ready:
                break
            count = min(len(buffer) - filled, len(self._ready))
            buffer[filled : filled + count] = self._ready[:count]
            self._ready, filled = self._ready[count:], filled + count
        return filled

    def close(self) -> None:
        self._stream.close()
        super().close()

    def _read_lines(self) -> bytes:
        """Read another block and return its whole lines; the unfinished last line waits for the next block."""
        block = self._stream.read(self._block)
        self._done = not block
        if self._decoder is not None:
            block = self._decoder.decode(block, final=self._done).encode()
        whole, end, rest = (self._rest + block).rpartition(b"\n")
        lines, self._rest = (whole + end, rest) if not self._done else (self._rest + block, b"")
        if len(self._rest) > MAX_LINE_BYTES:
            raise long_line_error(self._path)
        for line_filter in self._filters:
            lines = line_filter(lines)
        return lines

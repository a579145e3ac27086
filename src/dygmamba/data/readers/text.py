"""Text files as they lie: packed or not, in whatever encoding, and where the first byte is that is no letter.

A text file line by line for Arrow, which knows one plain delimiter and no broken line: made plain as it is read.
"""

import codecs
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from dygmamba.core.errors import ConfigError, FileError, first_line

HEAD_BYTES = 1 << 20  # enough for the column names and some rows
COMPRESSION_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd"}
TAR_MAGIC = slice(257, 262)


def detect_compression(path: Path) -> str | None:
    """How a file is packed, by its first bytes: a name may say anything."""
    with path.open("rb") as file:
        start = file.read(4)
    return next((kind for magic, kind in COMPRESSION_MAGIC.items() if start.startswith(magic)), None)


def open_decompressed(path: Path) -> pa.NativeFile:
    """The bytes of a file, unpacked as they are read."""
    return pa.input_stream(path, compression=detect_compression(path))


def read_head(path: Path, encoding: str) -> tuple[str, bool]:
    """The beginning of a file as text, undecodable bytes marked; and whether that is all of it."""
    decoder = create_decoder(encoding, "replace")
    try:
        with open_decompressed(path) as stream:
            start = stream.read(HEAD_BYTES)
    except OSError as error:
        raise unreadable_error(path, error) from error
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and "16" not in encoding:
        raise FileError(f"{path} is UTF-16 text; read it with `encoding='utf-16'`")
    if start[TAR_MAGIC] == b"ustar":
        raise FileError(f"{path} is an archive of files; unpack it and give the file of events in it")
    try:
        text = decoder.decode(start)
    except UnicodeError as error:  # UTF-16 and UTF-32 want a mark at the beginning, errors replaced or not
        raise undecodable_error(path, encoding) from error
    if "\0" in text:
        raise FileError(f"{path} is a binary file, not delimited text; give a CSV, JSONL or Parquet file")
    return text.removeprefix("\ufeff"), len(start) < HEAD_BYTES


def create_decoder(encoding: str, errors: str = "strict") -> codecs.IncrementalDecoder:
    """The decoder of that name, if it makes text of bytes; Python knows others, such as hex."""
    try:
        decoder = codecs.getincrementaldecoder(encoding)(errors)
        if isinstance(decoder.decode(b""), str):
            return decoder
    except (LookupError, ValueError, AssertionError):  # unknown, not a name, or for strict errors alone
        pass
    raise ConfigError(f"encoding {encoding!r} is unknown; try utf-8, latin-1 or utf-16")


def is_utf8(encoding: str) -> bool:
    """Whether the encoding is UTF-8 under any of its names."""
    return codecs.lookup(encoding).name == "utf-8"


def unreadable_error(path: Path, error: OSError) -> FileError:
    """The complaint about a file that cannot be read, or is not packed as it claims."""
    return FileError(f"{path} cannot be read ({first_line(error)}); check the file")


def undecodable_error(path: Path, encoding: str) -> FileError:
    """The complaint about the first byte that is not text, found by a second pass over the file."""
    decoder = create_decoder(encoding)
    offset, lines = 0, 1
    with open_decompressed(path) as stream:
        while True:
            pending = len(decoder.getstate()[0])
            block = stream.read(HEAD_BYTES)
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                lines += block[: max(error.start - pending, 0)].count(b"\n")
                place = f"byte {offset - pending + error.start} (line {lines})"
                return FileError(
                    f"{path} is not {encoding}: {place} is no character; read it with `encoding='latin-1'`, "
                    "convert it with iconv, or leave out such rows with `skip_bad=True`"
                )
            except UnicodeError as error:
                return FileError(f"{path} is not {encoding} ({error}); give its `encoding`")
            if not block:
                return FileError(f"{path} is not {encoding}; give its `encoding`")
            offset, lines = offset + len(block), lines + block.count(b"\n")


UNDECODABLE_MARK = "\ufffd"  # stands alone in place of a line that is no text
TABS_TO_BLANKS = bytes.maketrans(b"\t\x0b\x0c", b"   ")
LineFilter = Callable[[bytes], bytes]


def collapse_whitespace(lines: bytes) -> bytes:
    """Runs of blanks and tabs as one blank, none at the ends of a line."""
    lines = re.sub(rb" {2,}", b" ", lines.translate(TABS_TO_BLANKS)).replace(b"\r\n", b"\n")
    return lines.replace(b"\n ", b"\n").replace(b" \n", b"\n").strip(b" ")


def mark_undecodable(lines: bytes) -> bytes:
    """The same lines, each that is no UTF-8 replaced by a mark."""
    try:
        lines.decode()
    except UnicodeDecodeError:
        return b"".join(_mark_line(line) for line in lines.splitlines(keepends=True))
    return lines


def _mark_line(line: bytes) -> bytes:
    try:
        line.decode()
    except UnicodeDecodeError:
        return UNDECODABLE_MARK.encode() + line[len(line.rstrip(b"\r\n")) :]
    return line


class NormalizedLines(io.RawIOBase):
    """A file of UTF-8, whatever its encoding was, each run of whole lines made plain by these functions."""

    def __init__(self, path: Path, encoding: str, block: int, *tidy: LineFilter) -> None:
        self._stream, self._block, self._tidy = open_decompressed(path), block, tidy
        self._decoder = None if is_utf8(encoding) else create_decoder(encoding)
        self._rest, self._ready, self._done = b"", memoryview(b""), False

    @property
    def at_end(self) -> bool:
        """Whether everything was read."""
        return self._done and not self._ready

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """The next bytes, as many as there is room for: Arrow takes fewer for the end."""
        filled = 0
        while filled < len(buffer):
            while not self._ready and not self._done:
                self._ready = memoryview(self._more())
            if not self._ready:
                break
            count = min(len(buffer) - filled, len(self._ready))
            buffer[filled : filled + count] = self._ready[:count]
            self._ready, filled = self._ready[count:], filled + count
        return filled

    def close(self) -> None:
        """The file too."""
        self._stream.close()
        super().close()

    def _more(self) -> bytes:
        block = self._stream.read(self._block)
        self._done = not block
        if self._decoder is not None:
            block = self._decoder.decode(block, final=self._done).encode()
        whole, end, rest = (self._rest + block).rpartition(b"\n")
        lines, self._rest = (whole + end, rest) if not self._done else (self._rest + block, b"")
        for tidy in self._tidy:
            lines = tidy(lines)
        return lines

"""A text file line by line for Arrow, which knows one plain delimiter and no broken line: made plain as it is read."""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dygmamba.data.formats.text import decoder_of, is_utf8, opened

UNDECODABLE = "\ufffd"  # stands alone in place of a line that is no text
TABS = bytes.maketrans(b"\t\x0b\x0c", b"   ")
Tidy = Callable[[bytes], bytes]


def single_blanks(lines: bytes) -> bytes:
    """Runs of blanks and tabs as one blank, none at the ends of a line."""
    lines = re.sub(rb" {2,}", b" ", lines.translate(TABS)).replace(b"\r\n", b"\n")
    return lines.replace(b"\n ", b"\n").replace(b" \n", b"\n").strip(b" ")


def decodable(lines: bytes) -> bytes:
    """The same lines, each that is no UTF-8 replaced by a mark."""
    try:
        lines.decode()
    except UnicodeDecodeError:
        return b"".join(_marked(line) for line in lines.splitlines(keepends=True))
    return lines


def _marked(line: bytes) -> bytes:
    try:
        line.decode()
    except UnicodeDecodeError:
        return UNDECODABLE.encode() + line[len(line.rstrip(b"\r\n")) :]
    return line


class Lines(io.RawIOBase):
    """A file of UTF-8, whatever its encoding was, each run of whole lines made plain by these functions."""

    def __init__(self, path: Path, encoding: str, block: int, *tidy: Tidy) -> None:
        self._stream, self._block, self._tidy = opened(path), block, tidy
        self._decoder = None if is_utf8(encoding) else decoder_of(encoding)
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

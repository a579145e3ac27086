"""Text files as they lie: packed or not, in whatever encoding, and where the first byte is that is no letter."""

import codecs
from pathlib import Path

import pyarrow as pa

from dygmamba.errors import ConfigError, FileError, first_line

HEAD = 1 << 20  # enough for the column names and some rows
PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd"}
TAR = slice(257, 262)


def packing(path: Path) -> str | None:
    """How a file is packed, by its first bytes: a name may say anything."""
    with path.open("rb") as file:
        start = file.read(4)
    return next((kind for magic, kind in PACKED.items() if start.startswith(magic)), None)


def opened(path: Path) -> pa.NativeFile:
    """The bytes of a file, unpacked as they are read."""
    return pa.input_stream(path, compression=packing(path))


def head(path: Path, encoding: str) -> tuple[str, bool]:
    """The beginning of a file as text, undecodable bytes marked; and whether that is all of it."""
    decoder = decoder_of(encoding, "replace")
    try:
        with opened(path) as stream:
            start = stream.read(HEAD)
    except OSError as error:
        raise unreadable(path, error) from error
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and "16" not in encoding:
        raise FileError(f"{path} is UTF-16 text; read it with `encoding='utf-16'`")
    if start[TAR] == b"ustar":
        raise FileError(f"{path} is an archive of files; unpack it and give the file of events in it")
    try:
        text = decoder.decode(start)
    except UnicodeError as error:  # UTF-16 and UTF-32 want a mark at the beginning, errors replaced or not
        raise undecodable(path, encoding) from error
    if "\0" in text:
        raise FileError(f"{path} is a binary file, not delimited text; give a CSV, JSONL or Parquet file")
    return text.removeprefix("\ufeff"), len(start) < HEAD


def decoder_of(encoding: str, errors: str = "strict") -> codecs.IncrementalDecoder:
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


def unreadable(path: Path, error: OSError) -> FileError:
    """The complaint about a file that cannot be read, or is not packed as it claims."""
    return FileError(f"{path} cannot be read ({first_line(error)}); check the file")


def undecodable(path: Path, encoding: str) -> FileError:
    """The complaint about the first byte that is not text, found by a second pass over the file."""
    decoder = decoder_of(encoding)
    offset, lines = 0, 1
    with opened(path) as stream:
        while True:
            pending = len(decoder.getstate()[0])
            block = stream.read(HEAD)
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

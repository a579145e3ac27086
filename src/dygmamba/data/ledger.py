"""What an archive was the first time it could be used: NAME.sha256 beside it, checked ever after.

Nobody publishes the digests of some archives. The first one that opens is trusted, and no other under its name. A file
per archive, as `sha256sum -c` reads it: fetches at the same time need no lock.
"""

import re
from pathlib import Path

from dygmamba.errors import FileError
from dygmamba.files.writing import write_text


def ledger_of(archive: Path) -> Path:
    """Where the digest of this archive is kept."""
    return archive.with_name(f"{archive.name}.sha256")


def recorded(archive: Path) -> str | None:
    """The digest of the first archive of this name, "sha256:...", None where there was none."""
    path = ledger_of(archive)
    try:
        text = path.read_bytes().decode("ascii", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error.strerror}); allow it, or delete it") from error
    found = re.fullmatch(r"([0-9a-f]{64})  [^\n]*\n?", text)
    if found is None:
        raise FileError(f"{path} holds no digest; delete it to trust the next {archive.name} that opens")
    return f"sha256:{found[1]}"


def record(archive: Path, digest: str) -> None:
    """From now on the archive of this name is this one."""
    write_text(ledger_of(archive), f"{digest.removeprefix('sha256:')}  {archive.name}\n")

"""The data folder from Python: save a dataset under its name, see what is there and who uses it, remove it."""

from pathlib import Path

import pyarrow as pa

from dygmamba.data.library import data_folder, data_folders
from dygmamba.data.store import OLDER, Dataset
from dygmamba.data.versions import Version, remove_version, save_version, versions_in
from dygmamba.errors import FileError, NotFoundError
from dygmamba.runs.usage import Use, uses

COLUMNS = {
    "name": pa.string(),
    "version": pa.string(),
    "newest": pa.bool_(),
    "nodes": pa.int64(),
    "events": pa.int64(),
}
COLUMNS |= {"runs": pa.list_(pa.string()), "path": pa.string()}


def save(dataset: Dataset, *, data_dir: Path | str | None = None) -> Path:
    """Put a dataset into the data folder under its name; another one of that name is kept as NAME@VERSION.

    >>> import dygmamba as dm
    >>> path = dm.save(dm.read([("ann", "bob", 1), ("bob", "cid", 2)], name="mail"), data_dir="data")
    >>> dm.load("mail", "data")
    <Dataset 'mail': 3 nodes, 2 events>
    """
    return save_version(dataset, data_folder(None if data_dir is None else Path(data_dir))).path


def datasets(*, data_dir: Path | str | None = None, runs: Path | str = "runs") -> pa.Table:
    """The imported datasets, older versions among them, and which runs under `runs` were trained on each.

    >>> import dygmamba as dm
    >>> path = dm.save(dm.read([("ann", "bob", 1)], name="mail"), data_dir="data")
    >>> dm.datasets(data_dir="data").select(["name", "newest", "events", "runs"]).to_pylist()
    [{'name': 'mail', 'newest': True, 'events': 1, 'runs': []}]
    """
    known = uses(Path(runs))
    rows = [
        {
            **{key: getattr(version, key) for key in ("name", "version", "newest", "nodes", "events")},
            "runs": [str(use.run) for use in known if use.is_of(version)],
            "path": str(version.path),
        }
        for version in _all(None if data_dir is None else Path(data_dir))
    ]
    return pa.Table.from_pylist(rows, pa.schema(COLUMNS))


def remove(
    name: str, *, data_dir: Path | str | None = None, runs: Path | str = "runs", force: bool = False
) -> list[str]:
    """Delete NAME@VERSION, or all versions of NAME, unless a run under `runs` needs one; what was deleted.

    >>> import dygmamba as dm
    >>> path = dm.save(dm.read([("ann", "bob", 1)], name="mail"), data_dir="data")
    >>> len(dm.remove("mail", data_dir="data"))
    1
    """
    found = _named(name, None if data_dir is None else Path(data_dir))
    known = uses(Path(runs))
    for version in found:
        users = [use for use in known if use.is_of(version)]
        if users and not force:
            raise FileError(
                f"{_called(version)} is the data of {_told(users)}; remove those first, or give `force=True`"
            )
    for version in reversed(found):  # the newest last, so that no older one takes its name in between
        remove_version(version)
    return [_called(version) for version in found]


def _all(data_dir: Path | None) -> list[Version]:
    folders = dict.fromkeys(folder.absolute() for folder in data_folders(data_dir))
    return [version for folder in folders for version in versions_in(folder)]


def _named(name: str, data_dir: Path | None) -> list[Version]:
    base, _, wanted = name.partition(OLDER)
    own = [version for version in _all(data_dir) if version.name == base]
    first = [version for version in own if version.path.parent == own[0].path.parent]
    found = [version for version in first if wanted in ("", version.version)]
    if not found:
        there = f"there is {', '.join(map(_called, own))}" if own else "see `dygmamba data list`"
        raise NotFoundError(f"no imported dataset is called {name!r}; {there}")
    return found


def _called(version: Version) -> str:
    return f"{version.name}{OLDER}{version.version}"


def _told(users: list[Use]) -> str:
    more = f" and {len(users) - 1:,} more run{'s' * (len(users) > 2)}" if len(users) > 1 else ""
    return f"{users[0].run}{more}"

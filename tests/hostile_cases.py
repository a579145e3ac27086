"""Archives and stores that lie: made by their formats' rules and yet absurd, or made well and then damaged."""

import io
import json
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable

import numpy as np

from bad_server import dyglib_zip, zipped
from dygmamba.data.storage.dataset import (  # an attacker knows how digests are made, too
    _hash_columns,
    _hash_ids,
)


def flipped(good: bytes, rng: random.Random) -> bytes:
    """Other bytes: flipped bits, a cut, or a number where lengths and offsets stand."""
    bad = bytearray(good)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(bad))
        match rng.randrange(4):
            case 0:
                bad[at] ^= 1 << rng.randrange(8)
            case 1 if len(bad) > 60:
                del bad[max(at, 30) :]
            case 2:
                bad[at : at + 4] = struct.pack("<I", rng.choice((0, 1, 2**31, 2**32 - 1)))
            case _:
                bad[at:at] = rng.randbytes(rng.randint(1, 40))
    return bytes(bad)


def at_the_end(good: bytes, rng: random.Random) -> bytes:
    """Flipped where a zip archive says what it holds: in its directory."""
    start = good.rfind(b"PK\x01\x02", 0, len(good) - 60)
    return good[:start] + flipped(good[start:], rng)


def many(_: random.Random) -> bytes:
    """Twenty thousand members that nobody asked for."""
    return zipped({f"junk/{k}": b"" for k in range(20_000)}, zipfile.ZIP_STORED)


def bomb(_: random.Random) -> bytes:
    """A member of the right name that unpacks to three hundred million zeros."""
    return zipped({"uci/ml_uci.csv": bytes(300_000_000), "uci/ml_uci.npy": b"", "uci/ml_uci_node.npy": b""})


def unused(_: random.Random) -> bytes:
    """The right files, and beside them one of a claimed three gigabytes."""
    good = dyglib_zip()
    buffer = io.BytesIO(good)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("uci/huge.bin", bytes(1000))
    return lying(buffer.getvalue(), 3 << 30)


def lying(archive: bytes, size: int) -> bytes:
    """The same archive, its last member said to be so long."""
    bad, at = bytearray(archive), archive.rfind(b"PK\x01\x02")
    bad[at + 24 : at + 28] = struct.pack("<I", size)
    return bytes(bad)


def short(rng: random.Random) -> bytes:
    """The directory says that the last member is longer or shorter than it is."""
    return lying(dyglib_zip(), rng.choice((0, 1, 10**6, 2**32 - 2)))


def encrypted(_: random.Random) -> bytes:
    """All members are said to be encrypted."""
    bad = bytearray(dyglib_zip())
    for sign, place in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        at = bad.find(sign)
        while at >= 0:
            bad[at + place] |= 1
            at = bad.find(sign, at + 4)
    return bytes(bad)


def elsewhere(_: random.Random) -> bytes:
    """Members whose paths lead out of the folder."""
    names = ("../../ml_uci.csv", "/tmp/torture/ml_uci.npy", "C:\\ml_uci_node.npy")
    return zipped(dict.fromkeys(names, b"x"))


def links(_: random.Random) -> bytes:
    """The members are symbolic links to a file outside."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        for name in ("ml_uci.csv", "ml_uci.npy", "ml_uci_node.npy"):
            link = zipfile.ZipInfo(f"uci/{name}")
            link.external_attr = 0o120777 << 16
            bundle.writestr(link, "/etc/passwd")
    return buffer.getvalue()


def nested(_: random.Random) -> bytes:
    """An archive in an archive."""
    return zipped({"uci.zip": dyglib_zip()})


def methods(rng: random.Random) -> bytes:
    """Members packed by a method that there is none of, or that is not theirs."""
    bad = bytearray(dyglib_zip())
    at = bad.find(b"PK\x01\x02")
    bad[at + 10 : at + 12] = struct.pack("<H", rng.choice((1, 9, 12, 14, 93, 99)))
    return bytes(bad)


def tarred(_: random.Random) -> bytes:
    """Another kind of archive, with an absolute path."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as bundle:
        bundle.addfile(tarfile.TarInfo("/ml_uci.csv"))
    return buffer.getvalue()


def page(_: random.Random) -> bytes:
    """What a hotel's network answers."""
    return b"<!doctype html><title>Log in</title>" + b" " * 1000


ARCHIVES: tuple[Callable[[random.Random], bytes], ...] = (
    *(lambda rng: flipped(dyglib_zip(), rng), lambda rng: at_the_end(dyglib_zip(), rng)) * 6,
    *(many, unused, short, encrypted, elsewhere, links, nested, methods, tarred, page),
)


def store_of(columns: dict[str, np.ndarray], about: dict, **lies: str) -> bytes:
    """A stored dataset as an attacker makes it: whatever is in it, its digests are right."""
    ids = {name: column for name, column in columns.items() if name.startswith("ids")}
    events = {name: column for name, column in columns.items() if name not in ids}
    text = json.dumps(about)
    metadata = {"format": "dygmamba-events", "version": "1", "about": text, "digest": _hash_columns(events)}
    metadata |= {"ids_digest": _hash_ids(ids, text)} | lies
    kinds = {
        "f8": "F64",
        "f4": "F32",
        "f2": "F16",
        "i8": "I64",
        "i4": "I32",
        "i2": "I16",
        "u1": "U8",
        "b1": "BOOL",
    }
    header, body = {"__metadata__": metadata}, b""
    for name, column in columns.items():
        raw = np.ascontiguousarray(column).tobytes()
        span = [len(body), len(body) + len(raw)]
        header[name] = {
            "dtype": kinds[column.dtype.str[1:]],
            "shape": list(column.shape),
            "data_offsets": span,
        }
        body += raw
    text = json.dumps(header).encode()
    return struct.pack("<q", len(text)) + text + body


def columns(events: int = 12, nodes: int = 4) -> dict[str, np.ndarray]:
    """A good store's columns."""
    k = np.arange(events)
    return {
        "src": k % nodes,
        "dst": (k + 1) % nodes,
        "time": k * 1.0,
        "edge": np.zeros((events, 2), np.float32),
        "node": np.zeros((nodes, 1), np.float32),
        "label": np.zeros(events, np.float32),
        "ids": np.arange(nodes),
    }


ABOUT = {"bipartite": False, "sources": None, "origin": {"features": []}}


def absurd_store(rng: random.Random) -> tuple[str, bytes]:
    """What was done to it, and the store."""
    own, about, name = columns(), json.loads(json.dumps(ABOUT)), rng.choice(sorted(COLUMN_LIES | ABOUT_LIES))
    if name in COLUMN_LIES:
        COLUMN_LIES[name](own, rng)
    else:
        about = ABOUT_LIES[name](about)
    return name, store_of(own, about)


def _put(column: str, row: int, value: float) -> Callable:
    def lie(own, _):
        own[column][row] = value

    return lie


def _as(column: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable:
    def lie(own, _):
        own[column] = change(own[column])

    return lie


def _kind(own, rng) -> None:
    name = rng.choice(sorted(own))
    kinds = [
        kind for kind in ("f8", "f4", "f2", "i8", "i4", "i2", "u1", "b1") if kind != own[name].dtype.str[1:]
    ]
    own[name] = own[name].astype(rng.choice(kinds))


def _gone(own, rng) -> None:
    del own[rng.choice(sorted(set(own) - {"label"}))]


def _words(offsets: np.ndarray) -> Callable:
    def lie(own, _):
        del own["ids"]
        own |= {"ids_bytes": np.frombuffer("abcé".encode(), np.uint8), "ids_offsets": offsets}

    return lie


COLUMN_LIES: dict[str, Callable] = {
    "node out of range": _put("dst", 3, 2**40),
    "node below zero": _put("src", 0, -1),
    "time not a number": _put("time", 5, np.nan),
    "time infinite": _put("time", 11, np.inf),
    "time not sorted": _put("time", 11, -7.0),
    "feature not a number": _put("edge", 0, np.nan),
    "node feature infinite": _put("node", 0, np.inf),
    "label not a number": _put("label", 1, np.nan),
    "ids twice": _put("ids", 0, 3),
    "too few rows": _as("label", lambda column: column[:3]),
    "a matrix of nodes": _as("src", lambda column: column.reshape(3, 4)),
    "a scalar of time": _as("time", lambda column: np.float64(1.0).reshape(())),
    "flat features": _as("edge", lambda column: column.reshape(-1)),
    "many empty rows": _as("node", lambda _: np.zeros((10**12, 0), np.float32)),
    "many empty events": _as("edge", lambda _: np.zeros((10**12, 0), np.float32)),
    "labels in columns": _as("label", lambda column: column.reshape(-1, 1)),
    "ids in columns": _as("ids", lambda column: column.reshape(2, 2)),
    "words whose ends fall": _words(np.array([0, 3, 2, 4, 5])),
    "words beyond the letters": _words(np.array([0, 1, 2, 3, 2**40])),
    "words below the letters": _words(np.array([-9, 1, 2, 3, 4])),
    "words in half of a letter": _words(np.array([0, 1, 2, 4, 5])),
    "words by other numbers": _words(np.arange(5).astype(np.int32)),
    "no words": _words(np.zeros(0, np.int64)),
    "another type": _kind,
    "a column less": _gone,
}
ABOUT_LIES: dict[str, Callable[[dict], object]] = {
    "sources beyond the nodes": lambda about: about | {"sources": 10**9, "bipartite": True},
    "sources in words": lambda about: about | {"sources": "many"},
    "bipartite in words": lambda about: about | {"bipartite": "perhaps"},
    "no origin": lambda about: {key: value for key, value in about.items() if key != "origin"},
    "origin of another kind": lambda about: about | {"origin": 3},
    "features of another kind": lambda about: about | {"origin": {"features": 3}},
    "origin with more": lambda about: about | {"origin": {"features": [], "password": "x"}},
    "names of another kind": lambda about: (
        about | {"origin": {"features": [1, None], "src": 7, "time_origin": []}}
    ),
    "a list": lambda about: [about],
    "a word": lambda about: "about",
}


def overlapping() -> bytes:
    """Two columns that are said to lie in the same bytes."""
    good = store_of(columns(), ABOUT)
    length = struct.unpack("<q", good[:8])[0]
    header = json.loads(good[8 : 8 + length])
    header["dst"]["data_offsets"] = header["src"]["data_offsets"]
    text = json.dumps(header).encode()
    return struct.pack("<q", len(text)) + text + good[8 + length :]

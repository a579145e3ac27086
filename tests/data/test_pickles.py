"""Files of negatives are read without unpickling: what numpy writes comes out whole, all else is one sentence."""

import contextlib
import os
import pickle
import pickletools
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from board_cases import tgb_folder
from commands import invoke
from dygmamba.core.errors import FileError
from dygmamba.data.readers.pickles import iter_negatives, read_pickle

KEYS = st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 3)
LISTS = st.lists(st.integers(0, 2**31 - 1), max_size=9)


class Calls:
    """Pickles into a call."""

    def __init__(self, function, *given):
        self.reduced = (function, given)

    def __reduce__(self):
        return self.reduced


@settings(deadline=None, max_examples=60)
@given(
    found=st.dictionaries(KEYS, LISTS, max_size=6),
    protocol=st.integers(2, 5),
    kind=st.sampled_from(["i4", "<i8", ">i8", "f8", "u4", "list"]),
    scalar=st.booleans(),
)
def test_what_numpy_writes_comes_out_whole(tmp_path_factory, found, protocol, kind, scalar):
    """For all dictionaries, protocols from 2 and kinds of numbers: the same keys, the same nodes, in the same order."""
    path = tmp_path_factory.getbasetemp() / "found.pkl"
    made = {}
    for key, nodes in found.items():
        own = tuple(np.int64(part) for part in key) if scalar else key
        made[own] = nodes if kind == "list" else np.array(nodes, kind)
    path.write_bytes(pickle.dumps(made, protocol=protocol))
    got = list(iter_negatives(path))
    assert [key for key, _ in got] == list(found)
    assert [nodes.tolist() for _, nodes in got] == list(found.values())


def hostile(mark):
    """Pickles that do something, by name; where one runs, the file `mark` appears."""
    touch = f"touch {mark}"
    return {
        "os.system": pickle.dumps({(1, 2, 3): Calls(os.system, touch)}),
        "eval": pickle.dumps({(1, 2, 3): Calls(eval, f"open({str(mark)!r}, 'w')")}),
        "old protocol": pickle.dumps(Calls(os.system, touch), protocol=2),
        "an import": pickle.dumps({1: Calls(__import__, "os")}),
        "text protocol": b"cos\nsystem\n(S'" + touch.encode() + b"'\ntR.",
        "instance": b"(S'" + touch.encode() + b"'\nios\nsystem\n.",
        "numpy's loader": pickle.dumps({1: Calls(np.load, str(mark), None, True)}),
        "numpy's ndarray": pickle.dumps({1: Calls(np.ndarray, (1 << 40,))}),
        "an extension": b"\x80\x02\x82\x01.",
        "a persistent id": b"\x80\x02]Q.",
        "a state for a dictionary": b"\x80\x02}}b.",
        "a call of a tuple": b"\x80\x02))R.",
        "a call of the memo": b"\x80\x02}q\x00h\x00)R.",
    }


@pytest.mark.parametrize("name", hostile("x"))
def test_nothing_in_a_file_is_called(tmp_path, name):
    """For all of these: refused in one sentence, and nothing has happened."""
    path, mark = tmp_path / "bad.pkl", tmp_path / "mark"
    path.write_bytes(hostile(mark)[name])
    with pytest.raises(FileError) as caught:
        read_pickle(path)
    assert "\n" not in str(caught.value)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("name", "data"),
    {
        "a length beyond the file": b"\x80\x05\x8e" + struct.pack("<Q", 1 << 60) + b"x.",
        "an array beyond its bytes": pickle.dumps({1: np.zeros(3)}, 2).replace(
            b"K\x03\x85", b"J\xff\xff\xff\x7f\x85"
        ),
        "a place in the memo that is none": b"\x80\x02j\xff\xff\xff\xff.",
        "objects": pickle.dumps({1: np.array([{}, []], dtype=object)}),
        "fields": pickle.dumps({1: np.zeros(2, [("a", "i4")])}),
        "no dictionary": pickle.dumps([1, 2]),
        "a mark alone": b"\x80\x02(.",
        "nothing": b"",
        "no pickle": b"PK\x03\x04 this is a zip",
        "an unhashable key": b"\x80\x02}(]]u.",
    }.items(),
)
def test_damage_is_one_sentence(tmp_path, name, data):
    """For all of these: refused in one sentence, quickly and without taking memory."""
    path = tmp_path / "bad.pkl"
    path.write_bytes(data)
    with pytest.raises(FileError) as caught:
        read_pickle(path)
    assert "\n" not in str(caught.value)


@settings(deadline=None, max_examples=200)
@given(flip=st.data())
def test_a_flipped_byte_is_numbers_or_one_sentence(tmp_path_factory, flip):
    """For all bytes of a whole file: with another value there it is read, or refused as a FileError, never more."""
    whole = pickle.dumps({(np.int64(k), 2, 3): np.arange(k) for k in range(4)})
    at, value = flip.draw(st.integers(0, len(whole) - 1)), flip.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "flipped.pkl"
    path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
    with contextlib.suppress(FileError):
        list(iter_negatives(path))


def test_every_instruction_that_is_read_is_pickles_own():
    """The table knows no instruction that Python's does not, and none that makes an object of a class."""
    from dygmamba.data.readers.pickles import OPCODES

    known = {op.code: op.name for op in pickletools.opcodes}
    assert set(OPCODES) <= set(known)
    assert not {"INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID"} & {
        known[code] for code in OPCODES
    }


def test_the_command_refuses_a_hostile_folder(monkeypatch, capsys, tmp_path):
    """`data import` of a folder whose negatives call `os.system`: exit code 2, one line, nothing written."""
    tgb_folder(tmp_path / "wiki")
    mark = tmp_path / "mark"
    (tmp_path / "wiki" / "tgbl-wiki_test_ns_v2.pkl").write_bytes(hostile(mark)["os.system"])
    code, _, error = invoke(
        monkeypatch, capsys, "data", "import", str(tmp_path / "wiki"), "--data-dir", str(tmp_path / "data")
    )
    assert (code, error.count("\n")) == (2, 1)
    assert "system" in error
    assert not mark.exists()
    assert not (tmp_path / "data").exists()

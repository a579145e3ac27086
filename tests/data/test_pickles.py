"""Pickled negatives: what numpy writes is read in full, everything else is an error, and nothing in a file runs."""

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
from dygmamba.data.readers.pickles import OPCODES, iter_negatives, read_pickle
from raising import raises

KEYS = st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 3)
LISTS = st.lists(st.integers(0, 2**31 - 1), max_size=9)


class Calls:
    """An object that pickles as a call of a function."""

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
def test_what_numpy_writes_is_read_in_full(tmp_path_factory, found, protocol, kind, scalar):
    """Keys and nodes come back in order, for protocols from 2 and all plain dtypes."""
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
    """Pickles that run something, by name; if one runs, the file `mark` appears."""
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
def test_nothing_in_a_file_runs(tmp_path, name):
    path, mark = tmp_path / "bad.pkl", tmp_path / "mark"
    path.write_bytes(hostile(mark)[name])
    # a call of a value that is no function is Python's own TypeError
    with raises("file-damaged" if name.startswith("a call") else "forbidden-pickle", kind=FileError):
        read_pickle(path)
    assert not mark.exists()


DAMAGED = {
    "a length beyond the file": b"\x80\x05\x8e" + struct.pack("<Q", 1 << 60) + b"x.",
    "a bytearray beyond the file": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.",
    "a frame beyond the file": b"\x80\x05\x95" + struct.pack("<Q", 1 << 60) + b"x.",
    "an array beyond its bytes": pickle.dumps({(1,): np.zeros(3)}, 2).replace(
        b"K\x03\x85", b"J\xff\xff\xff\x7f\x85"
    ),
    "an unknown place in the memo": b"\x80\x02j\xff\xff\xff\xff.",
    "a far place in the memo": b"\x80\x02}r\xff\xff\xff\xff0.",
    "a shape of a million axes": b"\x80\x04}K\x01\x85cnumpy.core.multiarray\n_reconstruct\n)R(K\x01("
    + b"M\xff\xff" * 1_000_000
    + b"tcnumpy\ndtype\nX\x02\x00\x00\x00i1\x85R\x89C\x01atbs.",
    "a matrix": pickle.dumps({(1,): np.zeros((2, 2))}),
    "objects": pickle.dumps({(1,): np.array([{}, []], dtype=object)}),
    "fields": pickle.dumps({(1,): np.zeros(2, [("a", "i4")])}),
    "a list": pickle.dumps([1, 2]),
    "a mark alone": b"\x80\x02(.",
    "nothing": b"",
    "no pickle": b"PK\x03\x04 this is a zip",
    "an unhashable key": b"\x80\x02}(]]u.",
    "a key of a million nested tuples": b"\x80\x02})" + b"\x85" * 1_000_000 + b"]s.",
    "a value of a million nested tuples": b"\x80\x02}K\x01\x85)" + b"\x85" * 1_000_000 + b"s.",
    "a value of nested lists": b"\x80\x02}K\x01\x85" + b"]" * 1000 + b"a" * 999 + b"s.",
    "keys that all have one hash": pickle.dumps({(k * (2**61 - 1), 0): [] for k in range(99)}),
    "a key that is no whole number": pickle.dumps({(0.5, 1): []}),
    "a state for a function": b"\x80\x02c_codecs\nencode\n}b.",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_errors(tmp_path, name):
    """A message of one line, quickly and without taking memory."""
    path = tmp_path / "bad.pkl"
    path.write_bytes(DAMAGED[name])
    with pytest.raises(FileError) as caught:
        read_pickle(path)
    assert caught.value.code in ("forbidden-pickle", "file-damaged", "not-negatives")
    assert "\n" not in str(caught.value)


def shared_lists(depth=30):
    """Instructions for nested lists that share parts: 2**depth items if written out."""
    return b"]K\x01a\x94" + b"".join(b"](h%ch%ce\x94" % (k, k) for k in range(depth))


def test_shared_lists_are_never_written_out(tmp_path):
    """Neither as nodes nor in a message: a few hundred bytes would take gigabytes."""
    path = tmp_path / "shared.pkl"
    path.write_bytes(b"\x80\x04}K\x01\x85(" + shared_lists() + b"ts.")
    with raises("forbidden-pickle"):
        list(iter_negatives(path))
    dtype = b"cnumpy\ndtype\nX\x02\x00\x00\x00i1\x85R"
    array = (
        b"cnumpy.core.numeric\n_frombuffer\n(C\x01a"
        + dtype
        + b"("
        + shared_lists()
        + b"tX\x01\x00\x00\x00CtR"
    )
    path.write_bytes(b"\x80\x04}K\x01\x85" + array + b"s.")
    with raises("forbidden-pickle"):
        list(iter_negatives(path))


@settings(deadline=None, max_examples=200)
@given(flip=st.data())
def test_a_flipped_byte_is_read_or_an_error(tmp_path_factory, flip):
    """With any byte of a file changed, it is read or raises FileError, nothing else."""
    whole = pickle.dumps({(np.int64(k), 2, 3): np.arange(k) for k in range(4)})
    at, value = flip.draw(st.integers(0, len(whole) - 1)), flip.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "flipped.pkl"
    path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
    with contextlib.suppress(FileError):
        list(iter_negatives(path))


def test_no_instruction_creates_instances(tmp_path):
    """Of all instructions that pickle has, those that make an object of a class or leave the file are rejected."""
    path = tmp_path / "one.pkl"
    for op in pickletools.opcodes:
        path.write_bytes(b"\x80\x05}" + op.code.encode("latin1") + bytes(8) + b"\n\n.")
        with pytest.raises(FileError) if op.code != "." else contextlib.nullcontext() as caught:
            read_pickle(path)
        if op.name in {"INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID"}:
            assert op.name not in OPCODES
            assert caught is not None
            assert caught.value.code == "forbidden-pickle"


def test_deep_tuples_and_far_places_are_found_behind_detours(tmp_path):
    """Over the memo, beside other values, in batches of keys; a bytearray beyond the file takes no memory."""
    path, pair = tmp_path / "deep.pkl", b"K\x01\x86"
    for levels in (b"K\x01" + pair * 5, b")\x94" + b"".join(b"h%c\x85\x94" % k for k in range(9))):
        path.write_bytes(b"\x80\x04}" + levels + b"]s.")
        with raises("forbidden-pickle"):
            read_pickle(path)
    path.write_bytes(b"\x80\x02}r\x00\x00\x00\x100.")
    with raises("forbidden-pickle"):
        read_pickle(path)


def test_the_import_command_rejects_a_hostile_folder(monkeypatch, capsys, tmp_path):
    """A folder whose negatives call `os.system`: exit code 2, one line, nothing written."""
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

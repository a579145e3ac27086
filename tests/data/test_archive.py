"""Unpacking: only what was asked for, no more than was expected, all or nothing."""

import shutil
import zipfile
import zlib

from bad_server import zipped
from dygmamba.core.errors import FileError, NotFoundError
from dygmamba.data.catalogue.archive import unpack_archive
from raising import raises


def deflate64(body: bytes) -> bytes:
    """A zip whose member `a/x.csv` says Deflate64; literals alone mean the same in both methods."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    packed = packer.compress(body) + packer.flush()
    plain = bytearray(zipped({"a/x.csv": packed}, zipfile.ZIP_STORED))
    central = plain.index(b"PK\x01\x02")
    for start, method in ((0, 8), (central, 10)):
        plain[start + method : start + method + 2] = (9).to_bytes(2, "little")
        plain[start + method + 6 : start + method + 10] = zlib.crc32(body).to_bytes(4, "little")
        plain[start + method + 14 : start + method + 18] = len(body).to_bytes(4, "little")
    return bytes(plain)


def test_no_path_in_an_archive_leads_out_of_the_folder(tmp_path):
    """Only the wanted names are written, whatever paths the archive holds."""
    body = zipped({"../../x.csv": b"a", "/etc/y.csv": b"b", "../evil.txt": b"c", "__MACOSX/x.csv": b"d"})
    (tmp_path / "a.zip").write_bytes(body)
    unpack_archive(tmp_path / "a.zip", tmp_path / "in" / "set", ["x.csv"], ["y.csv", "z.csv"], 100)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "a.zip", "in/set/x.csv", "in/set/y.csv",
    ]  # fmt: skip
    assert (tmp_path / "in" / "set" / "x.csv").read_bytes() == b"a"


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path):
    """More bytes than the entry allows are an error, and nothing is left."""
    (tmp_path / "a.zip").write_bytes(zipped({"x.csv": bytes(10**7)}))
    with raises("archive-too-large", FileError):
        unpack_archive(tmp_path / "a.zip", tmp_path / "set", ["x.csv"], [], 10**6)
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


def test_a_zip_that_lies_about_its_sizes_is_refused(tmp_path):
    """A member that unpacks to more than it states is damaged."""
    body = bytearray(zipped({"x.csv": bytes(10**6)}))
    central = body.index(b"PK\x01\x02")
    body[central + 24 : central + 28] = (10).to_bytes(4, "little")
    (tmp_path / "a.zip").write_bytes(body)
    with raises("archive-damaged", FileError):
        unpack_archive(tmp_path / "a.zip", tmp_path / "set", ["x.csv"], [], 10**6)
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


def test_a_missing_member_is_named(tmp_path):
    """An archive without the events is not the published one."""
    (tmp_path / "a.zip").write_bytes(zipped({"readme.txt": b""}))
    with raises("archive-members-missing", FileError) as caught:
        unpack_archive(tmp_path / "a.zip", tmp_path / "set", ["x.csv", "y.npy"], [], 100)
    assert "x.csv and y.npy" in str(caught.value)


def test_unpacking_into_a_folder_keeps_what_else_is_there(tmp_path):
    """Files of the user beside the members survive."""
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "notes.txt").write_text("mine")
    (tmp_path / "a.zip").write_bytes(zipped({"x.csv": b"1"}))
    unpack_archive(tmp_path / "a.zip", tmp_path / "set", ["x.csv"], [], 100)
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == ["notes.txt", "x.csv"]


def test_deflate64_is_unpacked_by_a_tool(tmp_path, monkeypatch):
    """With unzip or 7z a Deflate64 member is unpacked; elsewhere it is an error."""
    body = b"".join(b"%d,%d\n" % (k, k * k) for k in range(1000))
    (tmp_path / "a.zip").write_bytes(deflate64(body))
    if shutil.which("unzip") or shutil.which("7z"):
        unpack_archive(tmp_path / "a.zip", tmp_path / "set", ["x.csv"], [], 10**6)
        assert (tmp_path / "set" / "x.csv").read_bytes() == body
        broken = deflate64(body).replace(zlib.crc32(body).to_bytes(4, "little"), b"\0\0\0\0")
        (tmp_path / "b.zip").write_bytes(broken)
        with raises("archive-damaged", FileError):
            unpack_archive(tmp_path / "b.zip", tmp_path / "broken", ["x.csv"], [], 10**6)
    monkeypatch.setenv("PATH", "")
    with raises("deflate64-unsupported", NotFoundError):
        unpack_archive(tmp_path / "a.zip", tmp_path / "other", ["x.csv"], [], 10**6)
    assert not (tmp_path / "other").exists()

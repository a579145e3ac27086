"""Damaged, hostile and absurd input: for all of it a reader gives data or one sentence, never another exception."""

import io
import random
import struct
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dygmamba.cli import print_error
from dygmamba.cli.messages import escape_text
from dygmamba.cli.options import parse_overrides
from dygmamba.core.errors import ConfigError, DygError, DygWarning, FileError
from dygmamba.core.settings import check_value
from dygmamba.data.readers import ReadOptions, read_dataset
from dygmamba.data.storage.dataset import load_dataset
from dygmamba.engine.run_directory import RunDirectory
from raising import raises
from torture_cases import seeds, tally

ROUNDS = 40  # mutants per file and seed
WORDS = (
    *(
        b"1e999",
        b"-1",
        b"nan",
        b"9" * 400,
        b"200000000",
        b"18446744073709551616",
        b"\0",
        b"\xff\xfe",
        b"\n",
        b'"',
        b",",
    ),
    *(
        b"2024-13-45",
        b"0001-01-01",
        b"9999-12-31T23:59:59Z",
        b"1e18",
        b"\x1b[2J",
        b"[red]",
        b"\xed\xa0\x80",
        b"=",
    ),
)
CODECS = ("utf-16", "utf-32", "cp500", "latin-1", "utf-7")


def mutant(good: bytes, rng: random.Random) -> bytes:
    """Other bytes: flipped, cut, stretched, spliced, or in another encoding."""
    bad = bytearray(good)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(bad) + 1)
        match rng.randrange(7):
            case 0:
                for bit in rng.choices(range(8 * max(len(bad), 1)), k=rng.randint(1, 5)):
                    bad[bit // 8 : bit // 8 + 1] = bytes(
                        byte ^ 1 << bit % 8 for byte in bad[bit // 8 : bit // 8 + 1]
                    )
            case 1:
                del bad[at:]
            case 2:
                bad[at : at + rng.randint(0, 8)] = rng.choice(WORDS)
            case 3:
                bad[at : at + 8] = struct.pack("<q", rng.choice((-1, 0, 2**31, 2**40, 2**62)))
            case 4:
                bad[at:at] = bad[at // 2 : at]
            case 5:
                bad[at : at + rng.randint(1, 30)] = bytes(rng.randint(1, 30))
            case _:
                bad = bytearray(bad.decode("utf-8", "replace").encode(rng.choice(CODECS), "replace"))
    return bytes(bad)


def packed(**arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def matrix(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def parquet(**columns) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


k = np.arange(9)
DYGLIB = ",u,i,ts,label,idx\n" + "".join(f"{n},{n % 3 + 1},{n % 2 + 4},{n}.0,0,{n + 1}\n" for n in k)
JODIE = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
FILES = {
    "plain.csv": "src,dst,time,w\n" + "".join(f"{n},{n % 4},{n},{n}.5\n" for n in k),
    "dates.csv": "src,dst,time,w\n" + "".join(f"a{n},b,2024-01-0{n + 1}T00:00:00Z,\n" for n in k),
    "tabs.tsv": "src\tdst\ttime\n" + "".join(f"é{n}\t'x'\t{n}\n" for n in k),
    "jodie.csv": JODIE + "".join(f"{n},{n % 2},{n},0,0.5,1\n" for n in k),
    "ml_x.csv": DYGLIB,
    "numbers.parquet": parquet(src=k, dst=k % 4, time=k * 1.0, w=k),
    "words.parquet": parquet(
        src=[f"a{n}" for n in k],
        dst=pa.array(["x"] * 9).dictionary_encode(),
        time=pa.array(k, pa.timestamp("ms")),
    ),
    "all.npz": packed(
        src=k % 3, dst=k % 4 + 3, t=k * 1.0, edge_feat=np.ones((9, 2)), node_feat=np.ones((9, 2)), label=k
    ),
}
OPTIONS = (
    ReadOptions(),
    ReadOptions(features=("w",), label="w"),
    ReadOptions(features=("w",), fill=0.0, bipartite=True, time_unit="ms"),
    ReadOptions(time_unit="ns", encoding="utf-16"),
    ReadOptions(delimiter="\t", encoding="cp500"),
)


def tame(name: str, read, *words) -> None:
    """Data, or one sentence without a line break."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DygWarning)
        said = "data"
        try:
            read(*words)
        except DygError as error:
            said = str(error)
        assert len(said.splitlines()) == 1
        tally(name, "done" if said == "data" else "refused")


@pytest.mark.parametrize("name", FILES)
def test_a_mutant_file_is_data_or_one_sentence(name, tmp_path):
    """For all mutants of a file of any format, and all options: a dataset or a DygError."""
    good = FILES[name].encode() if isinstance(FILES[name], str) else FILES[name]
    path = tmp_path / name
    for seed in seeds(f"mutants of {name}", 1):
        rng = random.Random(f"{name} {seed}")
        for _ in range(ROUNDS):
            path.write_bytes(mutant(good, rng))
            tame(f"mutants of {name}", read_dataset, path, rng.choice(OPTIONS))


def test_a_mutant_matrix_beside_dyglib_is_data_or_one_sentence(tmp_path):
    """For all mutants of the feature files."""
    (tmp_path / "ml_x.csv").write_text(DYGLIB)
    good = matrix(np.ones((10, 2)))
    for seed in seeds("mutants of ml_x.npy", 1):
        rng = random.Random(seed)
        for _ in range(ROUNDS):
            (tmp_path / rng.choice(("ml_x.npy", "ml_x_node.npy"))).write_bytes(mutant(good, rng))
            tame("mutants of ml_x.npy", read_dataset, tmp_path / "ml_x.csv")


def test_a_mutant_store_is_the_same_data_or_one_sentence(data, dataset, tmp_path):
    """For all mutants of a stored dataset, also of its header alone."""
    good = (data / "tiny.safetensors").read_bytes()
    head = 8 + int.from_bytes(good[:8], "little")
    for seed in seeds("mutants of a store", 1):
        rng = random.Random(seed)
        for _ in range(ROUNDS):
            bad = mutant(good[8:head], rng)
            whole = rng.random() < 0.3
            path = tmp_path / "tiny.safetensors"
            path.write_bytes(mutant(good, rng) if whole else struct.pack("<q", len(bad)) + bad + good[head:])
            tame("mutants of a store", load_dataset, path)


def test_a_mutant_run_folder_is_one_sentence(tmp_path):
    """For all mutants of the text files of a run, sealed anew or not: rows and settings, or a DygError."""
    run = RunDirectory(tmp_path)
    run.write_config({"run": {"task": "link", "seed": 0}, "model": {"width": 4, "rate": 1e-3}})
    run.write_metrics([{"epoch": 0, "loss": 0.5}, {"epoch": 1, "loss": 0.25}])
    run.write_results([{"split": "val", "ap": 0.5}])
    reads = {"config.toml": run.config, "metrics.jsonl": run.metrics, "results.json": run.results}
    for seed in seeds("mutants of a run", 1):
        rng = random.Random(seed)
        for name, read in reads.items():
            path = run.path / name
            good = path.read_bytes()
            for _ in range(ROUNDS):
                path.write_bytes(mutant(good, rng))
                tame("mutants of a run", read)
            path.write_bytes(good)
            tame("mutants of a run", read)


@pytest.mark.parametrize(
    "content", [b"folder = 3", b"a = " + b"[" * 9999, b"[folder]\nsha256='1'", b"x = 1\n[folder]"]
)
def test_settings_that_are_no_sections_are_one_sentence(content, tmp_path):
    """TOML that is whole and yet no configuration."""
    (tmp_path / "config.toml").write_bytes(content)
    with raises("damaged-config", FileError):
        RunDirectory(tmp_path).config()


@pytest.mark.parametrize(
    "content", [b"3", b"[3]", b'{"results": {"a": 1}}', b'{"results": [1]}', b"[" * 99999]
)
def test_rows_that_are_no_rows_are_one_sentence(content, tmp_path):
    """JSON that is whole and yet no result."""
    for name, read in (("results.json", RunDirectory.results), ("metrics.jsonl", RunDirectory.metrics)):
        (tmp_path / name).write_bytes(content)
        if name == "results.json" or b"{" not in content:
            with raises("damaged-results", FileError):
                read(RunDirectory(tmp_path))


@pytest.mark.parametrize("text", ["a=" + "[" * 9999, "a=" + "9" * 9999, "a=2024-13-01", "a=1\nx"])
def test_an_odd_override_is_a_word(text):
    """What TOML does not read is left to the check of the setting."""
    assert parse_overrides([text]) == {"a": text[2:]}


def test_a_terminal_obeys_no_error(capsys):
    """Escapes, other control characters and stray bytes in an error are shown as what they are."""
    print_error("\x1b[2J é \r \x9b \udcff [red]")
    assert capsys.readouterr().err == "\\x1b[2J é \\r \\x9b \\udcff [red]\n"
    assert escape_text("日本 a b") == "日本 a b"


def test_a_number_too_long_to_write_is_one_sentence():
    """Python refuses to write out what TOML's hexadecimal numbers can hold."""
    with raises("setting-of-wrong-type", ConfigError):
        check_value("word", int("f" * 9999, 16), str)

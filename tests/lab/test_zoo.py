"""A folder of shared runs is a zoo: its page states what is in the runs, and each of them can be pulled."""

import hashlib
import re
from pathlib import Path

import pytest

import dygmamba as dm
from dygmamba.lab.zoo import main

TREES = {"trees": 4, "rounds": 2, "epochs": 1, "least": 5, "scales": 2, "neighbors": 2, "transitions": 0}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """Two runs of one stream, pushed side by side, one with its data."""
    folder = tmp_path_factory.mktemp("zoo")
    data = dm.generate(nodes=40, events=900, communities=4, name="small")
    runs = {seed: dm.train(data, "trees", seeds=[seed], out=folder / "runs", **TREES)[0] for seed in (0, 1)}
    for seed, run in runs.items():
        dm.push(run, folder / "zoo" / f"small-{seed}", data=seed == 0)
    return folder, runs


def test_the_page_states_what_the_runs_hold(zoo, capsys):
    """For all runs: name, stream, seed, test AP and the digest of the manifest."""
    folder, runs = zoo
    assert main([str(folder / "zoo"), "--address", "hf://somebody"]) == 0
    page = capsys.readouterr().out
    for seed, run in runs.items():
        (row,) = re.findall(rf"^\| `small-{seed}` \| `trees` .*$", page, re.MULTILINE)
        (ap,) = (
            row["ap"]
            for row in run.results.to_pylist()
            if (row["split"], row["setting"], row["negatives"]) == ("test", "transductive", "random")
        )
        assert f" | {seed} | {100 * ap:.2f} | " in row
        manifest = (folder / "zoo" / f"small-{seed}" / "config.json").read_bytes()
        assert hashlib.sha256(manifest).hexdigest() in page
    assert 'dm.pull("hf://somebody/small-0")' in page
    assert str(folder) not in page


def test_a_run_of_a_local_zoo_can_be_pulled(zoo, tmp_path):
    """The pulled run scores as the pushed one did."""
    folder, runs = zoo
    pulled = dm.pull(folder / "zoo" / "small-0", out=tmp_path / "runs", device="cpu")
    assert pulled.score([(3, 5), (4, 9)]) == runs[0].score([(3, 5), (4, 9)])


def test_the_page_of_the_manual_is_that_of_the_runs_in_the_repository(capsys):
    """Every run in zoo/ passes the checks of a pull today, and the page states their figures."""
    root = Path(__file__).parents[2]
    assert main([str(root / "zoo")]) == 0
    assert capsys.readouterr().out == (root / "docs" / "reference" / "zoo.md").read_text()


def test_a_damaged_run_is_not_listed(zoo, tmp_path, capsys):
    """One changed byte, or nothing to list, is one sentence and exit code 2; no page is written."""
    folder, _ = zoo
    weights = folder / "zoo" / "small-1" / "model.safetensors"
    content = weights.read_bytes()
    try:
        weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert main([str(folder / "zoo"), "--page", str(tmp_path / "zoo.md")]) == 2
    finally:
        weights.write_bytes(content)
    assert "model.safetensors" in capsys.readouterr().err
    assert main([str(tmp_path), "--page", str(tmp_path / "zoo.md")]) == 2
    assert "has no shared runs" in capsys.readouterr().err
    assert not (tmp_path / "zoo.md").exists()

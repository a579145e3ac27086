"""A scorer that was exported answers as the run does, with torch alone and for any number of pairs."""

import json
import os
import zipfile
from types import SimpleNamespace

import pytest
import torch

import dygmamba as dm
from commands import invoke
from dygmamba.errors import ConfigError
from dygmamba.models import MODELS
from dygmamba.runs import exporting
from dygmamba.runs.link import start_link_run

TINY = {"length": 2, "width": 2, "states": 2, "blocks": 1, "time_dim": 2, "out": 4}
DATA = dm.generate(nodes=40, events=300, communities=4)
NETWORKS = ("dyg-mamba", "mamba", "tgat", "cawn", "graphmixer", "tcl", "dygformer", "freedyg")
ASKED = NETWORKS if os.environ.get("DYGMAMBA_EXPORT") == "all" else NETWORKS[:1]  # tracing takes seconds each
CLOSE = 1e-5


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of a model that has weights, though no training."""
    folder = tmp_path_factory.mktemp("exported")

    def make(model: str, settings: dict) -> dm.Run:
        fit = start_link_run(DATA, model, 0, settings, torch.device("cpu"), folder)
        fit.keeper.save(fit.progress, better=True)
        fit.run.write_results([])
        dm.save(DATA, data_dir=folder)
        return dm.Run(fit.run.path, "cpu", folder)

    return make


@pytest.mark.parametrize("model", ASKED)
def test_the_program_is_the_scorer(made, model, tmp_path, monkeypatch, capsys):
    """For all batches, of one pair or of many, strangers among them: |program - run| <= 1e-5; torch loads it alone."""
    run = made(model, TINY if model in NETWORKS[:2] else {})
    file = tmp_path / "scorer.pt2"
    about, loaded = {exporting.ABOUT: ""}, []
    load = torch.export.load  # seconds, and done once: what was held against the run is what is asked here

    def loading(content):
        loaded.append(load(content, extra_files=about))
        return loaded[0]

    monkeypatch.setattr(torch.export, "load", loading)
    words = ("export", str(run.path), "--to", str(file), "--data-dir", str(run.data_dir), "--json")
    code, out, err = invoke(monkeypatch, capsys, *words)
    assert code == 0, err
    assert json.loads(out)["bytes"] == file.stat().st_size
    (program,) = loaded
    assert zipfile.is_zipfile(file)
    assert not [node for node in program.graph.nodes if "dygmamba" in str(node.target)]
    assert json.loads(about[exporting.ABOUT])["digest"] == DATA.digest
    module = program.module()
    for pairs in ([(3, 5)], [(k % 40, 39 - k % 40) for k in range(90)], [(999, 3), (1, 2)]):
        with torch.no_grad():
            found = module(run.inputs(pairs))
        asking = run._predictor._asking(pairs, None)
        wanted = run._predictor.links.logits(asking.src, asking.dst, asking.when)
        assert float((found - wanted).abs().max()) <= CLOSE


def test_a_program_that_answers_otherwise_is_not_written(made, tmp_path, monkeypatch):
    """What is loaded again is held against the run; where it differs there is no file."""
    wrong = SimpleNamespace(module=lambda: lambda inputs: torch.full(inputs["src_row"].shape, 7.0))
    monkeypatch.setattr(torch.export, "export", lambda *given, **how: wrong)
    monkeypatch.setattr(torch.export, "save", lambda *given, **how: None)
    monkeypatch.setattr(torch.export, "load", lambda *given, **how: wrong)
    with pytest.raises(ConfigError, match="off for 1 pairs, 1e-05 is allowed; nothing was written"):
        made("graphmixer", {"neighbors": 4, "window": 9}).export(tmp_path / "x.pt2")
    assert not (tmp_path / "x.pt2").exists()


@pytest.mark.parametrize(
    ("model", "settings", "sentence"),
    [
        ("trees", {"rounds": 1, "neighbors": 0, "scales": 2}, "adds up trees"),
        ("tgn", {}, "keeps a memory"),
        ("dyg-mamba", TINY | {"beside": ["fading-pair"]}, "tables of the whole past"),
    ],
)
def test_what_is_no_function_of_sequences_is_refused(made, model, settings, sentence, tmp_path):
    """One sentence, and no file."""
    with pytest.raises(ConfigError, match=sentence):
        made(model, settings).export(tmp_path / "x.pt2")
    assert not (tmp_path / "x.pt2").exists()
    assert set(NETWORKS) <= set(MODELS)

"""An exported scorer gives the logits of the run, without this package and for any number of pairs."""

import hashlib
import json
import os
import re
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import dygmamba as dm
from commands import invoke
from dygmamba.core.errors import ConfigError
from dygmamba.models import MODELS
from dygmamba.runs.calibration import SavedCalibration, save_calibration
from dygmamba.runs.export_metadata import METADATA_KEY
from dygmamba.runs.export_onnx import EXPORTABLE_NETWORKS as CAN
from dygmamba.runs.export_onnx import ONNX_DECOMPOSITIONS, export_onnx_program, load_onnx_program
from dygmamba.runs.link_training import start_link_run
from dygmamba.tasks.calibration import Calibration
from purchases import generate_purchases
from raising import raises
from torture_cases import SECONDS

TINY = {"length": 2, "width": 2, "states": 2, "blocks": 1, "time_dim": 2, "out": 4}
DATA = dm.generate(nodes=40, events=300, communities=4)
NETWORKS = ("dyg-mamba", "mamba", "tgat", "cawn", "graphmixer", "tcl", "dygformer", "freedyg")
ASKED = NETWORKS if os.environ.get("DYGMAMBA_EXPORT") == "all" else NETWORKS[:1]  # tracing takes seconds each
CLOSE = 1e-5
PAIRS = [
    (999, 3),
    (5, 888),
    (777, 666),
    *((k % 40, 39 - k % 40) for k in range(40)),
]  # three with unknown ids
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "interoperate.md"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of a model that has weights, most of them without training."""
    folder = tmp_path_factory.mktemp("exported")

    def make(model: str, settings: dict, train: bool = False) -> dm.Run:
        fit = start_link_run(DATA, model, 0, settings, torch.device("cpu"), folder)
        if train:
            fit()
        fit.checkpoints.save(fit.state, better=True)
        fit.run.write_results([])
        dm.save(DATA, data_dir=folder)
        return dm.Run(fit.run.path, "cpu", folder)

    return make


def calibrated(run: dm.Run) -> dm.Run:
    """The run with a calibration that has all parts, with logits of PAIRS below, on, between and above its knots."""
    queries = run._predictor._read_queries(PAIRS, None)
    logit = run._predictor.ranker.logits(queries.src, queries.dst, queries.time).double().unique()
    low, middle, high = logit[1].item(), (logit[1] + logit[-2]).item() / 2, logit[-2].item()
    assert high - low > 1e-3
    # slopes 0.5, 4 and, beyond, 1.7: no steeper, since a network's logits differ in their last bits
    odds = -0.8 + 0.5 * (middle - low)
    knots = ((low, -0.8), (middle, odds), (high, odds + 4 * (high - middle)))
    curve = Calibration(1.7, -0.2, 0.5, 90, 1.0, knots, new_source=0.3, new_destination=-0.6, both_new=0.25)
    save_calibration(run._folder, SavedCalibration(curve))
    return dm.Run(run.path, "cpu", run.data_dir)


def furthest_probability(run: dm.Run, *answers) -> float:
    """Largest difference from `run.score`, with all four combinations of new ends."""
    inputs, expected = run.inputs(PAIRS), run.score(PAIRS)["score"].to_numpy()
    assert len(inputs["new_ends"].unique(dim=0)) == 4
    return max(float(np.abs(np.asarray(answer(inputs)) - expected).max()) for answer in answers)


def documented_calibration(about: dict, answer):
    """The numpy function of the manual, on the logits of a program: it knows the file's own words only."""
    (block,) = re.findall(r"```python\n(import numpy as np\n.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names: dict = {}
    exec(block, names)
    return lambda inputs: names["calibrate"](
        answer(inputs).numpy(), inputs["new_ends"].numpy(), about["calibration"]
    )


@pytest.mark.parametrize("model", ASKED)
def test_the_program_is_the_scorer(made, model, tmp_path, monkeypatch, capsys):
    """For all batches, of one pair or of many, with unknown ids: |program - run| <= 1e-5; torch alone loads it.

    With the calibration in the file, by this package or by the page's function, it gives the run's scores to 1e-6.
    """
    run = calibrated(made(model, TINY if model in NETWORKS[:2] else {}))
    file = tmp_path / "scorer.pt2"
    about, loaded = {METADATA_KEY: ""}, []
    load = torch.export.load  # seconds, and done once: what was held against the run is what is asked here

    def loading(content, extra_files):
        loaded.extend([] if loaded else [load(content, extra_files=about)])
        extra_files.update(about)
        return loaded[0]

    monkeypatch.setattr(torch.export, "load", loading)
    words = ("export", str(run.path), "--to", str(file), "--data-dir", str(run.data_dir), "--json")
    code, out, err = invoke(monkeypatch, capsys, *words)
    assert code == 0, err
    assert json.loads(out)["bytes"] == file.stat().st_size
    (program,) = loaded
    assert zipfile.is_zipfile(file)
    assert not [node for node in program.graph.nodes if "dygmamba" in str(node.target)]
    assert json.loads(about[METADATA_KEY])["digest"] == DATA.digest
    module, described = program.module(), json.loads(about[METADATA_KEY])
    assert list(described["outputs"]) == ["logit"]
    assert {name: (column["dtype"], column["shape"][1:]) for name, column in described["inputs"].items()} == {
        name: (str(column.dtype).removeprefix("torch."), list(column.shape[1:]))
        for name, column in run.inputs(PAIRS).items()
    }
    with torch.no_grad():
        assert furthest(run, module) <= CLOSE
        answers = dm.load_program(file).probability, documented_calibration(described, module)
        assert furthest_probability(run, *answers) <= 1e-6


def furthest(run, answer) -> float:
    """Largest difference from the run, for one pair, for many, and with an unknown id."""
    far = 0.0
    for pairs in ([(3, 5)], [(k % 40, 39 - k % 40) for k in range(90)], [(999, 3), (1, 2)]):
        queries = run._predictor._read_queries(pairs, None)
        expected = run._predictor.ranker.logits(queries.src, queries.dst, queries.time)
        far = max(far, float((answer(run.inputs(pairs)) - expected).abs().max()))
    return far


def opened(file):
    """The graph as anyone runs it, and what it says of itself."""
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])

    def answer(inputs, output="logit"):
        (found,) = session.run([output], {name: column.numpy() for name, column in inputs.items()})
        return torch.from_numpy(found)

    return answer, json.loads(session.get_modelmeta().custom_metadata_map[METADATA_KEY])


@pytest.mark.parametrize("model", NETWORKS if ASKED == NETWORKS else ["graphmixer"])  # the quickest
def test_the_onnx_graph_is_the_scorer(made, model, tmp_path, monkeypatch, capfd):
    """For all batches |graph - run| <= 1e-5; onnxruntime alone runs it, and nothing is said on the way.

    Its probabilities are the run's scores to 1e-6, by the graph alone and with the calibration in its metadata.
    """
    few = {"neighbors": 4, "window": 9} if model == "graphmixer" else {}
    run = calibrated(made(model, TINY if model in NETWORKS[:2] else few))
    file = tmp_path / "scorer.onnx"
    words = ("export", str(run.path), "--to", str(file), "--data-dir", str(run.data_dir))
    code, out, err = invoke(monkeypatch, capfd, *words)
    assert code == 0, err
    assert len(out.splitlines()) == 2
    assert set(err.splitlines()) <= {"tracing the scorer and checking the file"}
    answer, about = opened(file)
    assert about["digest"] == DATA.digest
    assert set(tmp_path.iterdir()) == {file, file.with_name("scorer.onnx.sha256")}
    assert furthest(run, answer) <= CLOSE
    graph = lambda inputs: answer(inputs, "probability")  # noqa: E731
    assert furthest_probability(run, graph, documented_calibration(about, answer)) <= 1e-6


def step(name: str):
    """The decomposition of an operator, and the operator."""
    (op,) = (op for op in ONNX_DECOMPOSITIONS if name in str(op))
    return ONNX_DECOMPOSITIONS[op], op


def test_decompositions_compute_the_operators_they_replace():
    """For all inputs, with ties, powers of two and empty tables: the same values, or the operator is left as it is."""
    draw = torch.Generator().manual_seed(0)
    table, rows = torch.randint(9, (5, 7), generator=draw), torch.randint(9, (5, 4), generator=draw)
    search, op = step("searchsorted")
    for right in (False, True):
        found = search(table.sort().values, rows, out_int32=True, right=right)
        assert torch.equal(found, op(table.sort().values, rows, out_int32=True, right=right))
    sizes = torch.cat([torch.rand(500, generator=draw) * 9, 2.0 ** torch.arange(-126, 127)])
    frexp, op = step("frexp")
    assert all(map(torch.equal, frexp(sizes), op(sizes)))
    for name, given in {
        "roll": (table, [3], [0]), "split_with": (table, [1, 0, 6], 1), "split.Tensor": (table, 3, 1),
        "index": (table, [rows[:, 0].int() % 5, None]), "view": (table[:, :0], [7, 5, 0]),
    }.items():  # fmt: skip
        mine, op = step(name)
        mine, theirs = mine(*given), op(*given)
        pairs = zip(mine, theirs, strict=True) if isinstance(theirs, list) else [(mine, theirs)]
        assert all(torch.equal(one, other) for one, other in pairs)
    roll, op = step("roll")
    assert torch.equal(roll(rows[0], [1]), op(rows[0], [1]))
    assert (
        roll(table, [1])
        is step("index")[0](table, [rows[0]])
        is step("view")[0](table, [35])
        is NotImplemented
    )


def _check_digest(run, file):
    """The program gives the run's logits; with a flipped bit, or without its digest, it does not load."""
    inputs, content = run.inputs([(1, 2), (3, 4)]), bytearray(file.read_bytes())
    scorer = run._predictor.run.scorer
    assert torch.equal(dm.load_program(file)(inputs), scorer.base + scorer.sums(inputs["numbers"]))
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with raises("file-damaged"):
        dm.load_program(file)
    file.with_name("trees.onnx.sha256").unlink()
    with raises("file-unreadable"):
        dm.load_program(file)


def _check_older_program(run, file):
    """A graph as it was before it had `new_ends`, a probability and a calibration loads and gives the same logits."""
    expected = dm.load_program(file)(run.inputs(PAIRS))
    model = onnx.utils.Extractor(onnx.load(file)).extract_model(["numbers"], ["logit"])
    about = {"model": "trees", "inputs": {"numbers": ["torch.float32", [3, 9]]}}
    onnx.helper.set_model_props(model, {METADATA_KEY: json.dumps(about)})
    content = model.SerializeToString()
    file.write_bytes(content)
    file.with_name(f"{file.name}.sha256").write_text(f"{hashlib.sha256(content).hexdigest()}  {file.name}\n")
    older = dm.load_program(file)
    assert torch.equal(older(run.inputs(PAIRS)), expected)
    with raises("program-not-calibrated"):
        older.probability(run.inputs(PAIRS))


def exported_sums(scorer, inputs):
    """The logits of the graph of trees."""
    about = {"model": "trees", "outputs": {"logit": ""}}
    compute, _ = load_onnx_program(export_onnx_program(scorer, inputs, about), "trees")
    return compute(inputs, "logit")


def test_the_onnx_graph_of_trees_is_their_sum(made, tmp_path):
    """For all pairs the graph's 64-bit sums are the run's, trees of one leaf and numbers on a threshold too."""
    run = calibrated(made("trees", {"epochs": 2, "rounds": 3, "neighbors": 0, "scales": 2}, train=True))
    scorer = run._predictor.run.scorer
    _check_digest(run, run.export(tmp_path / "trees.onnx"))
    file = run.export(tmp_path / "trees.onnx")
    answer, about = opened(file)
    assert about["numbers"] == scorer.names
    assert furthest(run, answer) <= 1e-12
    program = dm.load_program(file)
    graph = lambda inputs: answer(inputs, "probability")  # noqa: E731
    assert furthest_probability(run, graph, program.probability) <= 1e-12
    with raises("missing-input"):
        program({"numbers": run.inputs(PAIRS)["numbers"]})
    _check_older_program(run, file)
    assert int(scorer.grown) > 2
    scorer.feature[1], scorer.value[1, 0] = -1, 0.25
    numbers = scorer.threshold[: int(scorer.grown)].flatten()[:, None].repeat(1, len(scorer.names))
    inputs = {"numbers": numbers, "new_ends": torch.zeros(len(numbers), 2, dtype=torch.bool)}
    score = exported_sums(scorer, inputs)
    assert torch.allclose(score, scorer.base + scorer.sums(numbers), rtol=0, atol=1e-12)
    assert len(score.unique()) > 2
    none = made("trees", {"neighbors": 0, "scales": 2})._predictor.run.scorer
    assert exported_sums(none, inputs).tolist() == [0.0] * len(numbers)


def test_errors_of_an_onnx_export_are_one_line(made, tmp_path, monkeypatch, capsys):
    """An operator that ONNX lacks, a missing package; and no file is written."""
    run = made("graphmixer", {"neighbors": 4, "window": 9})
    words = ("export", str(run.path), "--data-dir", str(run.data_dir), "--to")

    def refuse(*given, **how):
        raise torch.onnx.OnnxExporterError("no function for aten.odd\nmore")

    monkeypatch.setattr(
        "dygmamba.runs.export_onnx.trace_scorer", lambda *given: SimpleNamespace(run_decompositions=refuse)
    )
    code, _, err = invoke(monkeypatch, capsys, *words, str(tmp_path / "x.onnx"))
    assert (code, err.count("\n"), "(no function for aten.odd)" in err) == (2, 1, True), err
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    code, _, err = invoke(monkeypatch, capsys, *words, str(tmp_path / "x.onnx"))
    assert (code, err.count("\n"), "pip install 'dyg-mamba[onnx]'" in err) == (2, 1, True), err
    assert not list(tmp_path.iterdir())


def test_a_program_with_other_logits_is_not_written(made, tmp_path, monkeypatch):
    """The program is loaded again and compared with the run before the file gets its name."""
    wrong = SimpleNamespace(
        module=lambda: lambda inputs: torch.full(inputs["src_row"].shape, 7.0),
        graph=SimpleNamespace(nodes=[]),
    )
    monkeypatch.setattr(torch.export, "export", lambda *given, **how: wrong)
    monkeypatch.setattr(torch.export, "save", lambda *given, **how: None)
    monkeypatch.setattr(torch.export, "load", lambda *given, **how: wrong)
    with raises("export-differs", ConfigError):
        made("graphmixer", {"neighbors": 4, "window": 9}).export(tmp_path / "x.pt2")
    assert not (tmp_path / "x.pt2").exists()


def test_a_program_reads_the_event_types(tmp_path):
    """The codes of categorical columns are an input, on which the logits depend."""
    data = generate_purchases(customers=20, shops=30, events=300, categories=4)
    settings = TINY | {"length": 6, "channels": ["time", "event-types"], "pair_features": []}
    fit = start_link_run(data, "dyg-mamba-counts", 0, settings, torch.device("cpu"), tmp_path)
    fit.checkpoints.save(fit.state, better=True)
    fit.run.write_results([])
    dm.save(data, data_dir=tmp_path)
    run = dm.Run(fit.run.path, "cpu", tmp_path)
    pairs = [(k, 20 + k) for k in range(20)]
    inputs = run.inputs(pairs)
    for suffix in (".onnx", ".pt2") if SECONDS else (".onnx",):  # made of the .pt2 program
        program = dm.load_program(run.export(tmp_path / f"x{suffix}"))
        assert program.about["inputs"]["event_codes"]["dtype"] == "int32"
        logit = program(inputs)
        other = program(inputs | {"event_codes": (inputs["event_codes"] + 1) % 4})
        assert not torch.allclose(other, logit)


@pytest.mark.parametrize(
    ("model", "settings", "reason"),
    [
        ("trees", {"rounds": 1, "neighbors": 0, "scales": 2}, ".onnx"),
        ("tgn", {}, "node memory"),
        ("dyg-mamba-counts", TINY | {"pair_features": ["decayed-pair"]}, "whole history"),
    ],
)
def test_a_model_that_is_not_a_function_of_sequences_is_refused(made, model, settings, reason, tmp_path):
    """The error names the reason, and there is no file."""
    with raises("model-not-exportable", ConfigError) as caught:
        made(model, settings).export(tmp_path / "x.pt2")
    assert reason in str(caught.value)
    assert not (tmp_path / "x.pt2").exists()
    assert set(NETWORKS) == set(CAN) <= set(MODELS)

"""What a sealed file holds is checked as strictly as what a user types: finite numbers, or one sentence."""

import json
import math
import re

import pytest
import torch

import dygmamba as dm
from crafted_runs import VALUES, change_checkpoint, replace_json
from dygmamba.data.storage.tensor_file import read_sealed_tensors
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.report.document import (
    Cell,
    ReportTable,
    escape_table,
    format_csv,
    format_latex,
    format_markdown,
)
from dygmamba.runs.sharing import render_card
from forged_runs import blend_of, forge_run
from raising import raises

HOSTILE = "x\n# Title\n[a](javascript:b) `c` <script> | \\input{d} =1+1"


@pytest.mark.parametrize("value", [value for value in VALUES if value not in (0, True)])
@pytest.mark.parametrize("name", ["slope", "new_source"])
def test_an_absurd_calibration_is_refused(trained, name, value):
    """NaN, huge numbers and other types in calibration.json give an error, never a score of nan."""
    path = forge_run(trained, trained.with_name("crafted")).path
    content = json.loads((path / "calibration.json").read_text())
    if name == "new_source" and value == -1:
        value = -1e10
    replace_json("calibration.json", content, ("calibration", name), value)(path)
    with raises("damaged-calibration"):
        dm.open(path, device="cpu").score([(1, 2)])


@pytest.mark.parametrize("value", ["", [1e308], ["x"]])
def test_an_absurd_seed_is_refused(trained, value):
    """Values of config.toml that are of another type, sealed again."""
    path = forge_run(trained, trained.with_name("crafted"), run={"seed": value}).path
    with raises("damaged-config"):
        dm.open(path, device="cpu").score([(1, 2)])


def test_huge_leaves_keep_their_rows(trained):
    """Leaves of 1e38 sum up beyond 32 bits: ranking still returns k rows with finite scores; infinite ones fail."""
    path = forge_run(trained, trained.with_name("crafted")).path
    value = read_sealed_tensors(RunDirectory(path).best)[0]["model.value"]
    for size, sees in ((1e38, True), (math.inf, False)):
        change_checkpoint("best.safetensors", {"model.value": torch.full_like(value, size)})(path)
        (path / "calibration.json").unlink(missing_ok=True)
        run = dm.open(path, device="cpu")
        if sees:
            assert run.rank([1, 2], k=3)["uncalibrated_score"].to_pylist() == [1.0] * 6
        else:
            with raises("damaged-checkpoint"):
                run.rank([1, 2], k=3)


@pytest.mark.parametrize(
    ("tensor", "value"), [("left", 0), ("right", 10**6), ("feature", 999), ("feature", -7), ("grown", 10**9)]
)
def test_trees_that_lead_nowhere_are_refused(trained, tensor, value):
    """A branch back to itself, out of the table, an unknown feature, more trees than there are."""
    path = forge_run(trained, trained.with_name("crafted")).path
    tensors = read_sealed_tensors(RunDirectory(path).best)[0]
    changed = torch.where(tensors["model.feature"] >= 0, value, tensors[f"model.{tensor}"])
    changed = torch.tensor(value) if tensor == "grown" else changed.to(torch.int32)
    change_checkpoint("best.safetensors", {f"model.{tensor}": changed})(path)
    with raises("damaged-checkpoint"):
        dm.open(path, device="cpu").score([(1, 2)])


@pytest.mark.parametrize(
    ("part", "settings", "code"),
    [
        ("trees", "[" * 10_000, "damaged-config"),
        ("trees", '{"rounds": 1e99}', "setting-of-wrong-type"),
        ("trees", '{"nothing": 1}', "unknown-setting"),
        ("trees", "[]", "unknown-setting"),
        ("blend", "{}", "blend-of-blend"),
        ("edgebank", "{}", "model-without-weights"),
    ],
)
def test_absurd_settings_of_a_blend_are_refused(trained, part, settings, code):
    """The settings of its parts are checked like those of a model that is trained."""
    section = blend_of(part, {}) | {"settings": [settings]}
    run = forge_run(trained, trained.with_name("crafted"), run={"model": "blend"}, model=section)
    with raises(code):
        dm.open(run.path, device="cpu").score([(1, 2)])


def test_markup_of_strangers_stays_text(trained):
    """In a model card, in Markdown, LaTeX and CSV: no heading, link, command or formula comes from a run's own text."""
    made_with, chosen = {"device": HOSTILE}, {"length": HOSTILE}
    run = forge_run(
        trained, trained.with_name("crafted"), run={"data": HOSTILE}, made_with=made_with, chosen=chosen
    )
    results = json.loads((run.path / "results.json").read_text())
    results["verdict"]["sentence"] = HOSTILE
    run.write_results(results.pop("results"), **results)
    _, _, body = render_card(run, "./shared", with_data=False).split("---\n", 2)
    assert [line for line in body.splitlines() if line.startswith("#")][1:] == [
        "## Results",
        "## Use",
        "## Details",
    ]
    assert not re.search(
        r"(?<!\\)\]\(javascript|(?<!\\)<script", re.sub(r"`[^`]*`", "", body.split("## Use")[0])
    )
    assert len(body.split("```")) == 3
    table = ReportTable(
        HOSTILE,
        HOSTILE,
        ("model", "AP"),
        (
            (Cell("=1+1\n"), Cell("-0.5")),
            (Cell(HOSTILE), Cell("")),
        ),
    )
    assert format_csv(table).splitlines()[1] == ["\"'=1+1", '",-0.5'][0]
    assert len(format_markdown(escape_table(table)).splitlines()) == 4
    latex = format_latex(table)
    assert "\\input" not in latex.split("\n", 1)[1]
    assert len(latex.splitlines()) == 9

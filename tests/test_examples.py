"""The example notebooks and scripts run as they are and print what they promise."""

import io
import json
import re
import runpy
from contextlib import redirect_stdout
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import dygmamba.models
from torture_cases import SECONDS

STRICT = """import warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", module="ipykernel")
"""
EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = {path.stem: path for path in sorted(EXAMPLES.glob("*.ipynb"))}
ONE_FILE = "dyg_mamba_in_one_file"  # which needs no package; test_one_file_model.py
ON_ENGINES = {path.stem: path for path in sorted(EXAMPLES.glob("score_on_*.py"))}  # tests/engines runs them
SCRIPTS = {
    path.stem: path
    for path in sorted(EXAMPLES.glob("*.py"))
    if path.stem != ONE_FILE and path.stem not in ON_ENGINES
}


def run_notebook(name: str, folder: Path) -> str:
    """Run the cells of a notebook in order in this folder and return what they print; a warning is an error."""
    book = nbformat.read(NOTEBOOKS[name], as_version=4)
    book.cells.insert(0, nbformat.v4.new_code_cell(STRICT))
    NotebookClient(book, timeout=280, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", ())]
    return "\n".join(output.get("text") or output["data"]["text/plain"] for output in outputs)


@pytest.fixture(scope="module")
def script_outputs(tmp_path_factory) -> dict[str, str]:
    """What each script prints; all run in this process, which has imported torch. A warning is an error."""
    folder, outputs = tmp_path_factory.mktemp("scripts"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(dygmamba.models, "REGISTERED", {})
        for name, path in SCRIPTS.items():
            with redirect_stdout(io.StringIO()) as printed:
                runpy.run_path(str(path), run_name="__main__")
            outputs[name] = printed.getvalue()
    assert (folder / "runs").is_dir()
    return outputs


def test_every_example_is_tested():
    """A new example needs a test below."""
    assert list(ON_ENGINES) == ["score_on_ray", "score_on_spark"]
    assert list(NOTEBOOKS) == ["analyst", "researcher", "shop_and_helpdesk"]
    assert list(SCRIPTS) == [
        "audit_a_stream",
        "node_classification",
        "own_model",
        "own_training_loop",
        "predict_new_events",
        "tgb_node_properties",
        "train",
    ]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_without_output(name):
    """No cell has outputs, counts or paths of a machine; otherwise every run would change the file."""
    text = NOTEBOOKS[name].read_text()
    for cell in json.loads(text)["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        assert not cell["metadata"]
    assert not re.search(r"[\"'( ]/(home|root|tmp|usr|work|Users)/", text)


@pytest.mark.parametrize("name", [*SCRIPTS, *ON_ENGINES])
def test_a_script_says_what_it_does_and_uses_public_names_only(name):
    """It has a docstring with its command, imports only the package itself, and uses no private name."""
    text = (SCRIPTS | ON_ENGINES)[name].read_text()
    assert re.search(rf"(python|spark-submit) examples/{name}\.py", text.split('"""')[1])
    assert "import dygmamba as dm\n" in text
    assert not re.search(r"from dygmamba|import dygmamba\.|dm\.\w+\._|\b_[a-z]\w*\(", text)


def test_the_one_file_model_imports_nothing_of_the_package():
    text = (EXAMPLES / f"{ONE_FILE}.py").read_text()
    assert f"python examples/{ONE_FILE}.py" in text.split('"""')[1]
    assert not re.search(r"^\s*(import|from) dygmamba", text, re.MULTILINE)


@pytest.mark.e2e
def test_train_prints_losses_and_results(script_outputs):
    """The loss falls, and the model and the baselines have a test AP."""
    output = script_outputs["train"]
    losses = [float(loss) for loss in re.findall(r"epoch \d+: loss (\S+)", output)]
    assert losses[-1] < losses[0]
    assert {"dyg-mamba", "recency", "edgebank"} <= set(
        re.findall(r"^(\S+) +test AP 0\.\d+", output, re.MULTILINE)
    )
    assert "report.html" in output


@pytest.mark.e2e
def test_a_new_event_raises_the_score_of_its_answer(script_outputs):
    """A message from fred makes a message to fred likelier, and is among the first reasons for it."""
    output = script_outputs["predict_new_events"]
    assert len(re.findall(r"^alice -> \w+ +probability", output, re.MULTILINE)) == 3
    before, after = re.findall(
        r"alice -> fred: score (\S+), after a message from fred to alice (\S+)", output
    )[0]
    assert float(after) > float(before) + 0.1
    assert re.search(r"fred -> alice at 2024-02-26T01:00:00Z: \+", output)


@pytest.mark.e2e
def test_the_own_model_passes_all_checks_and_learns(script_outputs):
    """No check fails, and its AP is well above random guessing."""
    output = script_outputs["own_model"]
    assert output.count("passed") >= 6
    assert "failed" not in output
    assert float(re.findall(r"test transductive AP (\S+)", output)[0]) > 0.65


@pytest.mark.e2e
def test_the_own_training_loop_learns(script_outputs):
    """The training loss falls, and the validation loss is below that of random guessing."""
    output = script_outputs["own_training_loop"]
    losses = [float(loss) for loss in re.findall(r"training loss (\S+)", output)]
    assert losses[-1] < losses[0]
    assert float(re.findall(r"validation loss (\S+);", output)[0]) < 0.65


@pytest.mark.e2e
def test_node_classification_finds_the_suspicious_users(script_outputs):
    """The AUC is above random guessing, and the users with the highest scores have odd numbers."""
    output = script_outputs["node_classification"]
    assert float(re.findall(r"test AUC (\S+),", output)[0]) > 0.7
    assert all(int(user) % 2 for user in re.findall(r"^user (\d+): score", output, re.MULTILINE))


@pytest.mark.e2e
def test_the_audit_prints_baselines_rules_and_checks(script_outputs):
    """Three kinds of negatives, the rules, and checks that all pass."""
    output = script_outputs["audit_a_stream"]
    assert len(re.findall(r"^edgebank, \w+ +negatives: AP", output, re.MULTILINE)) == 3
    assert output.count("baseline '") >= 3
    assert output.count(": passed") >= 4
    assert "failed" not in output


@pytest.mark.e2e
def test_node_properties_are_forecast_better_by_more_than_the_last_label(script_outputs):
    found = re.findall(r"^(\S+) .*test NDCG@10 (\S+)", script_outputs["tgb_node_properties"], re.MULTILINE)
    scores = {name: float(value) for name, value in found}
    assert scores["state-space"] >= scores["moving-average"] - 0.005
    assert scores["moving-average"] > scores["persistent"] + 0.03


@pytest.mark.e2e
@pytest.mark.slow
def test_the_analyst_notebook_ranks_and_updates_a_score(tmp_path):
    """The trees are compared with baselines, favorites lead the ranking, one more message changes its score."""
    text = run_notebook("analyst", tmp_path)
    assert {"recency", "trees"} <= set(text.split())
    assert re.search(r"alice\s+bob .* 1$", text, flags=re.MULTILINE)
    before, after = re.findall(r"alice to hal: (\S+), after one message (\S+)", text)[0]
    assert float(before) != float(after)
    assert list(tmp_path.glob("runs/mail/trees/*/report.html"))


@pytest.mark.e2e
@pytest.mark.slow
def test_the_shop_notebook_answers_both_questions(tmp_path):
    """The ink follows its printer; a ticket goes to an agent of its topic, and an agent gets customers of theirs."""
    text = run_notebook("shop_and_helpdesk", tmp_path)
    assert {"trees", "association", "popularity"} <= set(text.split())
    assert re.search(r"^ *ink-2 .* 1$", text, re.MULTILINE)
    topic, first, last = map(int, re.findall(r"topic (\d), which agents (\d+) to (\d+) know", text)[0])
    assert {int(agent) for agent in re.findall(r"^ *agent (\d+) ", text, re.MULTILINE)} == {
        *range(first, last + 1)
    }
    assert topic * 3 == first
    assert re.search(r"of agent 0: \[0(, 0){9}\]", text)


@pytest.mark.e2e
@pytest.mark.skipif(not SECONDS, reason="a notebook with many trainings; `make torture` runs it")
def test_the_researcher_notebook_checks_compares_and_trains(tmp_path):
    """The model passes the checks; its seeds, two ablations and the trees are in one table; the own loop learns."""
    text = run_notebook("researcher", tmp_path)
    assert "False" not in text
    assert all(word in text for word in ("transductive", "trees", "past=2)", "hours=1000000.0"))
    first, last = re.findall(r"loss (\S+) -> (\S+)", text)[0]
    assert float(last) < float(first) - 0.02

"""The page of results is built from the stored results, and stored results are read as written."""

from dataclasses import replace
from pathlib import Path

import pytest

from dygmamba.core.errors import FileError
from dygmamba.report.result_records import ResultRecord, StudyResults
from raising import raises
from research.ablation_tables import build_ablation_table
from research.result_tables import build_headline_table, build_paper_table, get_shipped_settings
from research.results_page import BLOCK, PLACEHOLDER, build_results_page, fill_result_blocks

DOCS = Path(__file__).parents[2] / "docs" / "research"


def test_every_table_of_the_results_page_has_records():
    """Building the page that the site shows raises no error for a placeholder without records, and leaves none."""
    page = build_results_page(DOCS / "results")
    assert page.startswith("# Results\n")
    assert not PLACEHOLDER.search(page)


ROOT = DOCS.parents[1]
PAGES = [
    path
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
    if BLOCK.search(path.read_text("utf-8"))
]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_result_tables_of_other_pages_are_rebuilt_byte_for_byte(path):
    """For all pages with generated tables: the tables are those of the stored records."""
    text = path.read_text("utf-8")
    assert fill_result_blocks(text, DOCS / "results") == text


def test_stored_results_have_seed_visibility_batch_and_command():
    for path in sorted((DOCS / "results").glob("*.json")):
        results = StudyResults.read(path)
        assert results.command.startswith(("dygmamba ", "python -m "))
        for record in results.records:
            assert record.rows
            if record.work in ("similarity", "cost", "simulation", "ceiling"):  # not evaluated on a split
                continue
            if (
                record.device == "stored logits"
            ):  # the calibration study, of runs whose settings were not stored
                continue
            needed = (
                {"visible", "batch"}
                if record.work == "node"
                else {"visible", "batch", "negatives", "setting"}
            )
            assert all(needed <= set(row) for row in record.rows)
            assert record.work == "heuristic" or (
                record.seed is not None and record.settings and record.device
            )


def test_a_table_has_a_row_per_length_or_size(tmp_path):
    """Records that differ only in `about` are separate rows, and costs by length are a table too."""
    row = {"split": "test", "setting": "transductive", "negatives": "random", "ap": 0.9, "auc": 0.8}
    rows = [row | {"ap_pooled": 0.9}]
    for study, about in (("length", {"length": 64}), ("sensitivity", {"setting": "blocks", "value": 3})):
        results = StudyResults(study, "dygmamba", (ResultRecord("link", "uci", "dyg-mamba", 0, about, rows),))
        results.write(tmp_path / f"{study}.json")
    cost = [{"epoch_seconds": 1.5, "peak_mb": 2048.0}]
    record = ResultRecord("cost", "uci", "dyg-mamba", 0, {"length": 64, "patch": "none"}, cost)
    StudyResults("efficiency", "dygmamba", (record,)).write(tmp_path / "efficiency.json")
    placeholders = ("table length uci transductive random", "table sensitivity uci transductive random")
    text = "\n\n".join(f"<!-- {placeholder} -->" for placeholder in (*placeholders, "study efficiency uci"))
    (tmp_path / "results.in.md").write_text(text, "utf-8")
    page = build_results_page(tmp_path)
    assert "| L = 64 | **90.00** |" in page
    assert "| blocks = 3 | **90.00** |" in page
    assert "| 64 | 1.50 | 2,048 |" in page


def test_an_overview_is_sorted_by_mean_rank(tmp_path):
    """Models with a value on every dataset are ranked among themselves; the others come last, without a rank."""
    values = {
        "a": {"x": 0.9, "y": 0.6},
        "b": {"x": 0.8, "y": 0.9},
        "c": {"x": 0.7, "y": 0.5},
        "d": {"x": 0.95},
    }
    row = {"split": "test", "setting": "transductive", "negatives": "random"}
    records = [
        ResultRecord("link", data, model, 0, {}, [row | {"ap": ap}])
        for model, by_dataset in values.items()
        for data, ap in by_dataset.items()
    ]
    for name, data in (("first", "x"), ("second", "y")):
        StudyResults("link", "dygmamba", tuple(one for one in records if one.data == data)).write(
            tmp_path / f"{name}.json"
        )
    (tmp_path / "results.in.md").write_text("<!-- overview first,second transductive random -->", "utf-8")
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in build_results_page(tmp_path).splitlines()
    ]
    assert rows[0] == ["model", "mean rank", "x", "y"]
    assert rows[2:] == [
        ["a", "**1.5**", "90.00", "60.00"],
        ["b", "**1.5**", "80.00", "**90.00**"],
        ["c", "3.0", "70.00", "50.00"],
        ["d", "-", "**95.00**", "-"],
    ]
    StudyResults("link", "dygmamba", (replace(records[0], model="e"),)).write(tmp_path / "third.json")
    (tmp_path / "results.in.md").write_text("<!-- overview third,second transductive random -->", "utf-8")
    assert "| e | - | **90.00** | - |" in build_results_page(tmp_path)  # no model is on both
    (tmp_path / "results.in.md").write_text("<!-- overview first transductive random -->", "utf-8")
    with raises("no-stored-results", kind=FileError) as caught:
        build_results_page(tmp_path)
    assert "<!-- overview first transductive random -->" in str(caught.value)


def test_stored_results_are_read_as_written(tmp_path):
    rows = [{"split": "test", "setting": "transductive", "negatives": "random", "ap": 0.9, "auc": 0.8}]
    records = (
        ResultRecord(
            "link", "uci", "tgn", 0, {"model": "tgn"}, rows, {"batch": 200}, {"epochs": 3}, [0.5], "cpu", "ab"
        ),
        ResultRecord("heuristic", "uci", "recency", None, {"model": "recency"}, rows),
    )
    results = StudyResults("link", "dygmamba reproduce link", records, {"uci transductive random": 0.999})
    results.write(tmp_path / "results.json")
    assert StudyResults.read(tmp_path / "results.json") == results


def write_defaults(folder, model="dyg-mamba", seeds=(0, 1), **changed):
    """A file of records of the shipped settings, except for those given, and of a heuristic."""
    row = {"split": "test", "setting": "transductive", "negatives": "random", "visible": "strict"}
    settings = get_shipped_settings(model, "uci") | changed
    records = [
        ResultRecord("link", "uci", model, seed, {}, [row | {"ap": 0.9 + 0.02 * seed}], settings)
        for seed in seeds
    ]
    rule = ResultRecord("heuristic", "uci", "recency", None, {}, [row | {"ap": 0.95}])
    StudyResults("link", "dygmamba", (*records, rule)).write(folder / "defaults.json")


def test_the_headline_table_prefers_records_of_the_shipped_settings(tmp_path):
    """`defaults.json` comes first, with length, seeds, the best rule and the best published value."""
    other = ResultRecord(
        "link",
        "uci",
        "dyg-mamba",
        0,
        {},
        [{"split": "test", "setting": "transductive", "negatives": "random", "visible": "strict", "ap": 0.5}],
        {"length": 7},
    )
    StudyResults("link", "dygmamba", (other,)).write(tmp_path / "all-uci.json")
    assert "**50.00**, L = 7 †" in build_headline_table(tmp_path, only_shipped=False)
    assert "50.00" not in build_headline_table(tmp_path)
    write_defaults(tmp_path)
    table = build_headline_table(tmp_path)
    assert "91.00 ± 1.41, L = 32 |" in table
    assert "**95.00 `recency`**" in table  # the rule is above the model
    assert "97.35 TPNet (free of the known leaks)" in table
    assert table.splitlines()[2].endswith("| 2 |")
    assert "†" not in table
    assert "Enron" not in table


def test_other_settings_than_the_shipped_ones_are_marked(tmp_path):
    """For all settings but those without influence: a record that differs has a dagger and a line that says how."""
    write_defaults(tmp_path, length=64, save_every=7)
    table = build_headline_table(tmp_path, only_shipped=False)
    assert "L = 64 †" in table
    assert table.endswith("† not the shipped settings: `dyg-mamba` on UCI with length = 64.")


def write_link_records(path, *values, study="link", data="mooc", **about):
    """A file of one record per (model, seed, AP) on a dataset, with random negatives and all nodes."""
    row = {"split": "test", "setting": "transductive", "negatives": "random", "visible": "strict"}
    records = [
        ResultRecord(
            "link",
            data,
            model,
            seed,
            {"model": model} | about,
            [row | {"ap": ap, "auc": ap, "ap_pooled": ap}],
        )
        for model, seed, ap in values
    ]
    StudyResults(study, f"dygmamba {path.stem}", tuple(records)).write(path)


def test_a_row_comes_from_the_first_file_that_has_it(tmp_path):
    """For all rows of several files: no mean over records of two files, and every file used names its command."""
    write_link_records(tmp_path / "first.json", ("dyg-mamba", 0, 0.9))
    write_link_records(tmp_path / "second.json", ("dyg-mamba", 1, 0.1), ("trees", 0, 0.8))
    write_link_records(tmp_path / "third.json", ("trees", 1, 0.2))
    text = (
        "<!-- stamp first,second,third mooc -->\n\n<!-- table first,second,third mooc transductive random -->"
    )
    (tmp_path / "results.in.md").write_text(text, "utf-8")
    stamp, _, *table = build_results_page(tmp_path).splitlines()
    assert "`dygmamba first`, `dygmamba second`*" in stamp
    assert table[2].startswith("| dyg-mamba | **90.00** | 1 |")
    assert "| 90.17 ± 0.19 | -0.17 |" in table[2]  # the paper's value beside ours
    assert table[3].startswith("| trees | 80.00 | 2 |")
    assert len(table) == 4


def test_the_ablation_table_has_a_column_per_stored_dataset(tmp_path):
    """A dataset appears with its first records, a variant without any has a dash, a single seed is never bold."""
    row = {"split": "test", "setting": "transductive", "negatives": "random", "visible": "strict"}
    records = [
        ResultRecord("link", data, "dyg-mamba", seed, {"variant": variant}, [row | {"ap": ap + 0.001 * seed}])
        for data, variant, seeds, ap in (
            ("enron", "full", (0, 1), 0.9),
            ("enron", "no-time", (0, 1), 0.8),
            ("mooc", "full", (0,), 0.9),
            ("mooc", "no-time", (0,), 0.8),
        )
        for seed in seeds
    ]
    StudyResults("ablation", "dygmamba", tuple(records[:4])).write(tmp_path / "ablation.json")
    assert build_ablation_table(tmp_path).splitlines()[0] == "| | Enron |"
    StudyResults("ablation", "dygmamba", tuple(records)).write(tmp_path / "ablation.json")
    table = build_ablation_table(tmp_path).splitlines()
    assert table[0] == "| | Enron | MOOC |"
    assert "| `no-time` | **-10.00** / -1.14 | -10.00 |" in table
    assert "| `no-skip` | - | - |" in table


def test_the_table_of_a_dataset_has_our_values_beside_the_published_ones(tmp_path):
    """For all models with a published AP: ours if it is stored, else a dash."""
    write_link_records(tmp_path / "link.json", ("dyg-mamba", 0, 0.9), ("dyg-mamba", 1, 0.9))
    table = build_paper_table(tmp_path, "mooc").splitlines()
    assert table[2] == "| `dyg-mamba` | 90.00 ± 0.00 / 90.17 | - / 87.33 | - / 81.15 | - / 89.98 | 2 |"
    assert "| `tgn` | - / 89.15 | - / 87.06 | - / 77.50 | - / 89.04 | - |" in table
    assert not any("`trees`" in line for line in table)

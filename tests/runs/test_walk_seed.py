"""Random rows of walks: a function of the run's seed, stored with the run, the same whenever the run is opened."""

import pytest
import torch

import dygmamba as dm
from contract_cases import TINY
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.history.walks import WalkRequest, sample_node_rows
from dygmamba.models import configs
from dygmamba.models.configs import resolve_walk_seed
from dygmamba.report.comparison import label_records, read_run_record
from dygmamba.runs.link_training import start_link_run
from dygmamba.runs.opening import open_run
from dygmamba.runs.recipes import build_scorer
from dygmamba.runs.run_config import RunConfig
from dygmamba.tasks.link import build_link_set

CPU = torch.device("cpu")
WALKERS = {  # `train` has an argument `out`
    name: {key: value for key, value in TINY[name].items() if key != "out"}
    for name in ("tpnet", "dyg-mamba-counts", "walk-trees")
}
LOOP = {"epochs": 1, "batch": 100}


@pytest.fixture(scope="module")
def data():
    return dm.generate(nodes=40, events=600, communities=4)


@pytest.fixture(scope="module")
def trees(data, tmp_path_factory):
    """Runs of walk-trees with seeds 3 and 4."""
    settings = WALKERS["walk-trees"] | LOOP
    return dm.train(data, "walk-trees", seeds=(3, 4), out=tmp_path_factory.mktemp("runs"), **settings)


def walk_requests(scorer):
    return [request for request in scorer.requests if isinstance(request, WalkRequest)]


def scores(path, data):
    """Logits of a stored run for each pair of its test set."""
    run = open_run(path, CPU, dataset=data)
    evaluation_set = build_link_set(run.stream.store, run.stream.split, "test")
    return score_evaluation_set(run.scorer, run.stream, evaluation_set, run.rule, run.seed).double()


@pytest.mark.parametrize("model", WALKERS)
def test_runs_of_different_seeds_share_no_random_rows(data, tmp_path, model):
    """The seed of the rows is stored, and the model that a stored run builds has it."""
    rows = []
    for seed in (0, 3, 4):
        fit = start_link_run(data, model, seed, WALKERS[model] | LOOP, CPU, tmp_path)
        assert fit.run.config()["model"]["walk_seed"] == seed
        (request,) = walk_requests(fit.scorer)
        assert request.seed == seed
        rows.append(sample_node_rows(torch.arange(40), request.dim, request.seed))
    every = torch.cat(rows)
    assert len(torch.unique(every, dim=0)) == len(every)


@pytest.mark.parametrize("model", WALKERS)
def test_a_run_of_an_earlier_version_has_the_rows_of_seed_0(data, tmp_path, model):
    """Its config has no seed of the rows; old run directories are compared to the bit in test_goldens.py."""
    fit = start_link_run(data, model, 3, WALKERS[model] | LOOP, CPU, tmp_path)
    sections = {name: dict(section) for name, section in fit.run.config().items() if name != "folder"}
    assert sections["model"].pop("walk_seed") == 3
    fit.run.write_config(sections)
    (request,) = walk_requests(build_scorer(RunConfig.read(RunDirectory(fit.run.path)), fit.stream))
    assert request.seed == 0


def test_a_blend_has_the_rows_of_its_parts(data, trees, tmp_path):
    blend = dm.blend([run.path for run in trees], out=tmp_path)
    requests = walk_requests(open_run(blend.path, CPU, dataset=data).scorer)
    assert [request.seed for request in requests] == [3, 4]
    weights, (first, second) = blend.config["model"]["weights"], (scores(run.path, data) for run in trees)
    assert torch.allclose(scores(blend.path, data), weights[0] * first + weights[1] * second)


def test_seeds_of_rows_are_no_difference_between_settings(trees):
    """Runs that differ in their seed only have one label in a comparison."""
    records = label_records([read_run_record(open_run(run.path, CPU).folder) for run in trees])
    assert {record.about["label"] for record in records} == {"walk-trees"}


def test_only_models_with_walks_take_the_seed_and_a_given_one_stays():
    with_walks = configs.DyGMambaCountsConfig(channels=("time", "walks"), pair_features=())
    assert resolve_walk_seed(with_walks, 5).walk_seed == 5
    assert (
        resolve_walk_seed(
            configs.DyGMambaCountsConfig(channels=("time",), pair_features=("walks",)), 5
        ).walk_seed
        == 5
    )
    assert resolve_walk_seed(configs.TreesConfig(walks=1), 5).walk_seed == 5
    assert resolve_walk_seed(configs.TPNetConfig(walk_seed=7), 5).walk_seed == 7
    for plain in (configs.DyGMambaConfig(), configs.TreesConfig(), configs.CAWNConfig()):
        assert resolve_walk_seed(plain, 5) == plain
    assert resolve_walk_seed(configs.TPNetConfig(), 2**63 - 1).walk_seed == 2**63 - 1
    assert resolve_walk_seed(configs.TPNetConfig(), -1).walk_seed == 2**63 - 1


def test_walks_of_cawn_are_drawn_from_the_seed_of_the_run(data, tmp_path):
    """CAWN samples its walks anew for each query: seed and epoch decide, in evaluation the seed alone."""
    settings = TINY["cawn"] | LOOP
    first, other, again = (
        start_link_run(data, "cawn", seed, settings, CPU, tmp_path / str(place))
        for place, seed in enumerate((3, 4, 3))
    )
    other.scorer.load_state_dict(first.scorer.state_dict())
    again.scorer.load_state_dict(first.scorer.state_dict())
    keys = [int(fit.epoch(0).draws.key) for fit in (first, other, again)]
    assert keys[0] == keys[2] != keys[1]
    valid = [fit.score(fit.task.validation) for fit in (first, other, again)]
    assert torch.equal(valid[0], valid[2])
    assert not torch.equal(valid[0], valid[1])

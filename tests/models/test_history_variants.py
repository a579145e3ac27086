"""DyG-Mamba with decayed counts and walks: banks of decays, the shared relation, and tables added to the stack."""

import copy

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from contract_cases import TINY, sample_store
from dygmamba.config import build_config
from dygmamba.history.index import Index, gather_view
from dygmamba.history.view import PairBatch
from dygmamba.history.walks import WalkRequest
from dygmamba.models import MODELS, configs
from dygmamba.models.base import DatasetFacts
from dygmamba.models.stored_settings import update_stored_settings
from dygmamba.ops.dispatch import use_reference

SPEC = MODELS["dyg-mamba-counts"]
SMALL = TINY["dyg-mamba-counts"]
FORMER = {
    "channels": ("node", "edge", "time", "decayed-cooccurrence", "decayed-counts", "walks"),
    "pair_features": ("decayed-pair", "walks"),
    "associations": 0,
    "walk_decays": 1,
    "relation": "separate",
    "relation_dropout": 0.0,
    "tables": "concat",
}
# The settings of the model before it had a bank, and each of the new ones.
VARIANTS = {
    "default": {},
    "former": FORMER,
    "bank": FORMER | {"walk_decays": 3},
    "shared": FORMER | {"relation": "shared"},
    "add": FORMER | {"tables": "add"},
}
STORE = sample_store()


def build(**more):
    torch.manual_seed(0)
    return SPEC.build(build_config(SPEC.config, SMALL | more), DatasetFacts.of(STORE))


def view_of(model, count=20):
    pairs = PairBatch.from_pairs(STORE.src[-count:], STORE.dst[-count:], STORE.time[-count:])
    return gather_view(Index(STORE), STORE.features, pairs, model.requests)


@pytest.mark.parametrize("name", VARIANTS)
def test_no_pass_waits_for_its_own_numbers(name):
    """Forward and backward on tensors without values: nothing is read on the way, so a GPU's graph can hold them."""
    model = build(**VARIANTS[name]).train()
    view = view_of(model)
    with use_reference(), FakeTensorMode(allow_non_fake_inputs=True):  # kernels of the CPU need values
        logits = model(view)
        logits.sum().backward()
    assert logits.shape == (20,)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_weight_learns(name):
    """For all variants: no weight is left without a gradient, so none is built in vain."""
    model = build(**VARIANTS[name]).train()
    model(view_of(model)).sum().backward()
    still = {name for name, value in model.named_parameters() if value.requires_grad and value.grad is None}
    assert not still


def test_added_tables_leave_the_width_of_the_stack():
    """Four channels of the paper, however many tables; concatenated tables widen it."""
    width = SMALL["width"]
    assert build().encoder.out.in_features == 4 * width
    assert build(tables="concat").encoder.out.in_features == 9 * width
    assert build(channels=("node", "time"), tables="add").encoder.out.in_features == 2 * width
    assert build(channels=("node", "walks"), tables="add").encoder.out.in_features == width


def test_a_shared_relation_is_stored_once_and_read_by_tokens_and_head():
    shared, separate = build(), build(relation="separate")
    names = {name for name in shared.state_dict() if "relation" in name}
    assert names == {name for name in separate.state_dict() if "relation" in name and ".tables." in name}
    assert len([name for name in separate.state_dict() if "relation" in name]) == 2 * len(names)
    twin = copy.deepcopy(shared)
    for model, others in ((twin, shared), (shared, twin)):  # a copy shares its own relation
        model.zero_grad()
        sum(part.sum() for part in model.encoder.pair_features(view_of(model))).backward()
        grads = {
            name for name, value in model.named_parameters() if "relation" in name and value.grad is not None
        }
        assert names == grads
        others.zero_grad()


def test_without_walk_tokens_the_head_has_its_own_relation():
    model = build(channels=("node", "time"), relation="shared")
    assert any("head_tables" in name and "relation" in name for name in model.state_dict())


def test_dropout_inside_the_relation_acts_in_training_only():
    """The other dropouts are 0: only the perceptron on walks makes two passes differ."""
    model = build(relation_dropout=0.5)
    view = view_of(model)
    with torch.no_grad():
        assert torch.equal(model.eval()(view), model(view))
        assert not torch.equal(model.train()(view), model(view))
        sure = build(relation_dropout=0.0).train()
        assert torch.equal(sure(view), sure(view))
    assert list(model.state_dict()) == list(sure.state_dict())


def test_a_relation_reads_the_overlaps_of_every_decay():
    """64 numbers per decay with three layers, 256 hidden units and 64 columns out."""
    for decays in (1, 5):
        first, last = (
            value for name, value in build(walk_layers=3, walk_decays=decays).named_parameters()
            if "relation" in name and name.endswith("weight")
        )  # fmt: skip
        assert first.shape == (256, 64 * decays)
        assert last.shape == (64, 256)


def test_stored_runs_without_the_settings_have_their_former_values():
    """A golden run of version 0.1.0 checks the bits of such a run."""
    stored = {"channels": list(FORMER["channels"]), "length": 7}
    config = build_config(SPEC.config, update_stored_settings("dyg-mamba-counts", stored))
    assert config == configs.DyGMambaCountsConfig(length=7, walk_dim=120, edge_units="raw", **FORMER)
    kept = {"walk_decays": 3, "tables": "add"}
    config = build_config(SPEC.config, update_stored_settings("dyg-mamba-counts", kept))
    assert (config.walk_decays, config.tables, config.relation) == (3, "add", "separate")


def test_stored_runs_of_other_models_keep_their_settings():
    stored = {"length": 7, "edge_units": "scaled"}
    assert update_stored_settings("dyg-mamba", stored) == stored
    assert update_stored_settings("edgebank", {}) == {}


@pytest.mark.parametrize("name", [name for name, spec in MODELS.items() if "edge_units" in spec.settings])
def test_stored_networks_without_the_setting_read_edge_features_as_they_are(name):
    assert update_stored_settings(name, {})["edge_units"] == "raw"


def test_a_single_decay_and_walks_without_tokens_are_possible():
    assert configs.DyGMambaCountsConfig(walk_decay=0.1, walk_decays=1).walk_decay == 0.1
    assert configs.DyGMambaCountsConfig(channels=("walks",), tables="concat").channels == ("walks",)


def test_trees_have_the_overlaps_of_every_decay():
    """33 features per decay with three layers; the names of a single decay stay as they were."""
    trees = {decays: build_trees(decays) for decays in (1, 3)}
    counts = build_trees(1, walks=0).names
    walks = {decays: model.names[len(counts) :] for decays, model in trees.items()}
    assert [len(names) for names in walks.values()] == [33, 99]
    assert all(model.names[: len(counts)] == counts for model in trees.values())
    assert not any("decay" in name for name in walks[1])
    assert len(set(walks[3])) == 99
    view = view_of(trees[3])
    assert trees[3].features(view).shape == (20, len(counts) + 99)


def test_a_bank_of_trees_holds_the_features_of_each_decay():
    """For all pairs: the columns of one decay are those of trees with this decay alone."""
    bank = build_trees(3)
    (request,) = (request for request in bank.requests if isinstance(request, WalkRequest))
    found = bank.features(view_of(bank))
    for number, decay in enumerate(request.decays):
        single = build_trees(1)
        single.requests = (single.requests[0], WalkRequest(3, 9, (decay,), request.seed))
        expected = single.features(view_of(single))[:, -33:]
        start = found.shape[1] - 33 * (3 - number)
        assert torch.equal(found[:, start : start + 33], expected)


def build_trees(decays, walks=3):
    settings = TINY["walk-trees"] | {"walks": walks, "walk_decays": decays, "walk_dim": 9}
    settings |= {"transitions": 0, "numeric_columns": 0, "event_types": 0, "node_columns": 0}
    spec = MODELS["walk-trees"]
    return spec.build(build_config(spec.config, settings), DatasetFacts.of(STORE))

"""Initial weights: each parameter is drawn at the scale it was published with (decision 021)."""

import pytest
import torch

from dygmamba.config import build_config
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts

SETTINGS = {"dygformer": {"patch": 8}}


def fan_ins(n, e):
    """What 1 / bound^2 is, of all parameters whose name begins so, for features published n and e columns wide."""
    cell, keys = {"memory.cell": 172}, 272 + e
    attention = {"attend.query": 272, "attend.key": keys, "attend.value": keys, "merge.hidden": 444}
    return {
        "dygformer": {
            "channels.node": 8 * n,
            "channels.edge": 8 * e,
            "channels.age": 800,
            "channels.common": 400,
        },
        "tcl": {"tokens.channels.0": n, "tokens.channels.1": e, "tokens.channels.2.align": 100, "out": 172},
        "freedyg": {
            "channels.channels.0": n,
            "channels.channels.1": e,
            "channels.channels.2.align": 100,
            "channels.count.1": 50,
            "channels.mix": 688,
        },
        "tgat": {
            "layers.0.attend.query": n + 100,
            "layers.1.attend.query": 272,
            "layers.0.attend.key": n + e + 100,
            "layers.0.attend.value": n + e + 100,
            "layers.1.attend.key": 272 + e,
            "layers.1.attend.value": 272 + e,
            "layers.0.merge.hidden": n + 100 + n,
            "layers.1.merge.hidden": 272 + n,
        },
        "tpnet": {"token.0": n + e + 228, "relation.layers.0": 64, "blocks.0.over_width.1.0": 172},
        "graphmixer": {"token": e + 100, "blocks.0.over_width.1.0": 172, "out": 172 + n},
        "cawn": {"walk.ahead.weight": 308, "walk.back.weight": 308, "path.ahead.weight": 86, "join": 788},
        "jodie": cell | {"embed.drift": 1},
        "dyrep": cell | {f"partner.attention.{name}": fan_in for name, fan_in in attention.items()},
        "tgn": cell | {f"embed.attention.{name}": fan_in for name, fan_in in attention.items()},
    }


def encoder(name, node_dim, edge_dim):
    torch.manual_seed(0)
    spec = MODELS[name]
    config = build_config(spec.config, SETTINGS.get(name, {}))
    return spec.build(config, DatasetFacts(num_nodes=9, node_dim=node_dim, edge_dim=edge_dim)).encoder


def assert_bounds(model, expected):
    """Every expected parameter lies within 1 / sqrt(fan-in), and comes near it."""
    for prefix, fan_in in expected.items():
        found = [p for name, p in model.named_parameters() if name.startswith(prefix) and p.numel()]
        assert found
        for parameter in found:
            assert 0.8 < float(parameter.detach().abs().max()) * fan_in**0.5 <= 1 + 1e-6, prefix


@pytest.mark.parametrize(("node_dim", "edge_dim"), [(0, 0), (3, 4), (0, 172), (200, 300)])
@pytest.mark.parametrize("name", list(fan_ins(0, 0)))
def test_features_count_as_many_columns_as_they_were_published_with(name, node_dim, edge_dim):
    """For all widths of features: a map's bound is 1 / sqrt(columns), where features have 172 or more."""
    expected = fan_ins(max(node_dim, 172), max(edge_dim, 172))[name]
    assert_bounds(encoder(name, node_dim, edge_dim), expected)


@pytest.mark.parametrize(("node_dim", "edge_dim"), [(0, 0), (3, 4), (200, 300)])
@pytest.mark.parametrize("name", ["dyg-mamba", "mamba"])
def test_our_own_model_counts_the_columns_there_are(name, node_dim, edge_dim):
    """For all widths of features: 1 / sqrt(columns), a bias without columns within 1."""
    expected = {"channels.alone.0": max(node_dim, 1), "channels.alone.1": max(edge_dim, 1)}
    assert_bounds(encoder(name, node_dim, edge_dim), expected)


@pytest.mark.parametrize(
    ("name", "prefix", "width"),
    [("dygformer", "layers.0", 200), ("tcl", "layers.1", 172), ("cawn", "layer", 312)],
)
def test_attention_starts_as_torchs_does(name, prefix, width):
    """Query, key and value within sqrt(6 / (d + 3 d)), one map to 3 d; the output within 1 / sqrt(d); biases 0."""
    attend = encoder(name, 0, 0).get_submodule(f"{prefix}.attend")
    for part, bound in (("query", 1.5), ("key", 1.5), ("value", 1.5), ("out", 1.0)):
        linear = attend.get_submodule(part)
        assert 0.99 < float(linear.weight.detach().abs().max()) * (width / bound) ** 0.5 <= 1 + 1e-6
        assert not linear.bias.any()


@pytest.mark.parametrize(("part", "hidden"), [("walk", 308), ("path", 86)])
def test_an_lstms_bias_starts_as_the_sum_of_two(part, hidden):
    """Two draws within 1 / sqrt(h) add up: within twice that, with a variance of 2 / (3 h)."""
    lstm = encoder("cawn", 0, 0).get_submodule(part)
    bias = torch.cat([lstm.ahead.bias, lstm.back.bias]).detach() * hidden**0.5
    assert 1.3 < float(bias.abs().max()) <= 2
    assert float(bias.square().mean()) == pytest.approx(2 / 3, rel=0.15)

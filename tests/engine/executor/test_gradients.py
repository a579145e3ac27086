"""Accumulated gradients: their sum equals the batch's, and they keep their addresses."""

import pytest
import torch
from torch import nn

from dygmamba.config import build_config
from dygmamba.data.events.splits import chronological_split
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.engine.executor.eager import BucketedExecutor, GradientAccumulator, TrainingContext
from dygmamba.engine.fit_config import FitConfig
from dygmamba.engine.length_buckets import SINGLE_BUCKET
from dygmamba.engine.stream import Stream
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts
from dygmamba.tasks.link import LinkTask

SIZES = {"length": 40, "width": 4, "out": 8, "time_dim": 6, "dropout": 0.0}
MAMBA = SIZES | {"states": 4}
VARIANTS = {
    "dyg-mamba": ("dyg-mamba", MAMBA),
    "both directions": ("dyg-mamba", MAMBA | {"direction": "both", "encoders": "independent"}),
    "linear step": ("dyg-mamba", MAMBA | {"step": "linear", "selection": "fixed", "pool": "gate64"}),
    "without a query token": ("dyg-mamba", MAMBA | {"query": "absent", "mixer": "none", "skip": "none"}),
    "mamba": ("mamba", MAMBA),
    "dygformer": ("dygformer", SIZES),
}


@pytest.fixture(scope="module")
def stream():
    """A small stream with busy and idle nodes."""
    store = generate_stream(GeneratorConfig(nodes=40, events=900, seed=3))
    return Stream(store, chronological_split(store), torch.device("cpu"))


def parts_of(variant, stream):
    """A bucketed executor, and the queries of the last twenty training events."""
    model, settings = VARIANTS[variant]
    torch.manual_seed(0)
    spec, task = MODELS[model], LinkTask.create(stream.store, stream.split, stream.device)
    facts = DatasetFacts.of(stream.store, stream.split.train)
    scorer = spec.build(build_config(spec.config, settings), facts)
    work = TrainingContext(task, scorer, stream, FitConfig(batch=20))
    return BucketedExecutor(work, SINGLE_BUCKET), work.look_up(
        stream.train[-20:], task.draw_negatives(0, 0)[-20:]
    )


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_gradients_of_parts_sum_to_the_batch(variant, stream):
    """However a batch is cut: loss and gradients equal the batch's; unused parameters have none."""
    executor, view = parts_of(variant, stream)
    whole = executor.context.loss(view) / len(view.pairs)
    whole.backward()
    expected = [weight.grad for weight in executor.gradients.trained]
    assert any(grad is not None for grad in expected)
    for sizes in ([40], [3, 37], [10, 10, 10, 10]):
        executor.optimizer.zero_grad(set_to_none=True)
        executor.gradients.zero()
        losses = [executor.accumulate_part(view, chosen) for chosen in torch.randperm(40).split(sizes)]
        torch.testing.assert_close(torch.stack(losses).sum(), whole.detach())
        for weight, grad in zip(executor.gradients.trained, expected, strict=True):
            assert (weight.grad is None) == (grad is None)
            if grad is not None:
                torch.testing.assert_close(weight.grad, grad, rtol=1e-4, atol=1e-6)


def test_gradients_do_not_depend_on_the_previous_step(stream):
    """The gradients of a step do not depend on earlier ones and keep their addresses."""
    (executor, view), rng = parts_of("dyg-mamba", stream), torch.Generator().manual_seed(0)

    def gradients():
        executor.gradients.zero()
        for chosen in torch.arange(40).split(10):
            executor.accumulate_part(view, chosen)
        return [weight.grad for weight in executor.gradients.trained if weight.grad is not None]

    first = [(grad.data_ptr(), grad.clone()) for grad in gradients()]
    executor.accumulate_part(view, torch.randperm(40, generator=rng)[:7])
    for (place, before), after in zip(first, gradients(), strict=True):
        assert after.data_ptr() == place
        assert torch.equal(after, before)


def test_unused_parameters_have_no_gradient():
    """Unused and frozen parameters have no gradient; a shared one has the sum of both uses."""
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    model["used"].bias.requires_grad_(False)
    gradients = GradientAccumulator(model)
    gradients.zero()
    for scale in (1.0, 2.0):
        gradients.add(scale * model["used"](model["used"](torch.ones(2))).sum())
    (true,) = torch.autograd.grad(
        3 * model["used"](model["used"](torch.ones(2))).sum(), [model["used"].weight]
    )
    torch.testing.assert_close(model["used"].weight.grad, true)
    assert model["used"].bias.grad is None
    assert model["unused"].weight.grad is None

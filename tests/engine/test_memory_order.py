"""When a training step commits events to a node memory, and what the recurrent cell gets in the first step."""

import pytest
import torch

import dygmamba as dm
from contract_cases import TINY
from dygmamba.runs.link_training import start_link_run

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data():
    return dm.generate(nodes=40, events=600, communities=4)


def cell_weights(fit):
    return {name: p for name, p in fit.scorer.named_parameters() if ".cell." in name}


@pytest.mark.parametrize("model", ["jodie", "dyrep", "tgn"])
def test_the_first_step_gives_the_cell_a_gradient_of_zero(data, tmp_path, model):
    """No message is pending: the gradient is zero, not absent; Adam counts the step, and the weights stay."""
    settings = TINY[model] | {"batch": 100, "visible": "batch"}
    fit = start_link_run(data, model, 0, settings, CPU, tmp_path)
    before = {name: p.detach().clone() for name, p in cell_weights(fit).items()}
    fit.scorer.train()
    fit.executor.step(fit.batch(fit.epoch(0), 0))
    for name, weight in cell_weights(fit).items():
        assert weight.grad is not None
        assert not weight.grad.any()
        assert torch.equal(weight.detach(), before[name])
        assert int(fit.executor.optimizer.state[weight]["step"]) == 1
    fit.executor.step(fit.batch(fit.epoch(0), 1))
    assert any(bool(weight.grad.any()) for weight in cell_weights(fit).values())


@pytest.mark.parametrize("model", ["jodie", "dyrep", "tgn"])
def test_a_batch_is_committed_after_its_own_update_and_before_the_next_pass(
    data, tmp_path, monkeypatch, model
):
    """The order of decision 023: update of step k, commit of batch k, pass of step k + 1."""
    settings = TINY[model] | {"batch": 100, "visible": "batch"}
    fit = start_link_run(data, model, 0, settings, CPU, tmp_path)
    encoder, order = fit.scorer.encoder, []
    apply, forward, update = encoder.memory.apply_messages, encoder.forward, fit.executor.optimizer.step
    monkeypatch.setattr(
        encoder.memory, "apply_messages", lambda *given: (order.append("commit"), apply(*given))
    )
    monkeypatch.setattr(encoder, "forward", lambda view: (order.append("pass"), forward(view))[1])
    monkeypatch.setattr(fit.executor.optimizer, "step", lambda: (order.append("update"), update())[1])
    fit.scorer.train()
    for number in range(3):
        fit.executor.step(fit.batch(fit.epoch(0), number))
    assert order == ["pass", "update", "commit", "pass", "update", "commit", "pass", "update"]

"""A dead code stays dead by itself; split off from a busy one it comes back, and nothing else is disturbed."""

import math

import pytest
import torch
from torch import nn

from argrad import Direct, Exact
from argrad.models import DiscreteVAEModule, Schedules, VAETask, default_networks, revive, used
from argrad.training import LoopSettings, train

PIXELS, VALUES = 16, 6


def clusters(generator):
    """300 examples around six random black-and-white patterns."""
    patterns = torch.rand(VALUES, PIXELS, generator=generator).round()
    x = patterns[torch.arange(300) % VALUES]
    flipped = torch.rand(x.shape, generator=generator) < 0.05
    return torch.where(flipped, 1 - x, x)


def build(estimator=None, *, variables=1, prior="uniform", dead=()):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        networks = default_networks((PIXELS,), variables * VALUES, hidden=32)
    module = DiscreteVAEModule(*networks, estimator or Exact(), variables=variables, values=VALUES, prior=prior)
    with torch.no_grad():
        for code in dead:
            module.encoder[-1].bias[code] = -200.0
            if module.prior_scores is not None:
                module.prior_scores.view(-1)[code] = -200.0
    return module


def fit(module, x, *, epochs, revive_until=0):
    task = VAETask(module, x, x[:0], lambda stored, generator: stored, Schedules(), revive_until=revive_until)
    return train(task, LoopSettings(epochs=epochs, batch_size=50, learning_rate=1e-2))


def adam(module):
    """An optimiser with memories of three steps."""
    optimiser = torch.optim.Adam(module.parameters())
    for _ in range(3):
        optimiser.zero_grad()
        module.losses(torch.rand(8, PIXELS), generator=torch.Generator().manual_seed(0)).mean().backward()
        optimiser.step()
    return optimiser


@pytest.mark.parametrize("prior", ["uniform", "learnt"])
def test_dead_codes_come_back_and_serve(prior, generator):
    x, dead = clusters(generator), (3, 4, 5)
    left, cured = (build(prior=prior, dead=dead) for _ in range(2))
    assert left.usage(x)[0, dead].max() < 1e-6
    without = fit(left, x, epochs=60)
    assert left.usage(x)[0, dead].max() < 1e-6  # training alone does not bring them back
    assert used(left.usage(x)) == pytest.approx(0.5)
    trained = fit(cured, x, epochs=60, revive_until=15)
    assert trained.history[0]["revived"] == len(dead)
    assert "revived" not in trained.history[15]
    assert used(cured.usage(x)) == 1.0
    assert cured.usage(x)[0, dead].min() > 0.02
    assert trained.best_loss < without.best_loss - 1.0  # more than the log 2 that a mere copy would save


def test_dead_codes_come_back_under_a_sampling_estimator(generator):
    x = clusters(generator)
    module = build(Direct("auto"), dead=(0, 5))
    fit(module, x, epochs=20, revive_until=10)
    assert used(module.usage(x)) == 1.0


@pytest.mark.parametrize(("variables", "prior"), [(1, "uniform"), (1, "learnt"), (2, "uniform"), (2, "learnt")])
def test_a_split_without_shaking_changes_no_reconstruction(variables, prior, generator):
    module = build(variables=variables, prior=prior, dead=(4,)).double()
    x = torch.rand(20, PIXELS, generator=generator, dtype=torch.float64)
    before, losses = module.posterior(x).mean().reshape(20, variables, VALUES), module.losses(x, kl_weight=0.0)
    kl = module.posterior(x).kl(module.prior())
    decoder = module.decoder[1].weight.clone()
    usage = module.usage(x)
    donor = int(usage[0].argmax())
    assert revive(module, usage, adam_without_steps(module), generator, shake=0.0) == 1
    after = module.posterior(x).mean().reshape(20, variables, VALUES)
    others = [code for code in range(VALUES) if code not in (4, donor)]
    atol = 1e-8  # what the dead code had is given up
    torch.testing.assert_close(after[:, 0, others], before[:, 0, others], atol=atol, rtol=0)
    torch.testing.assert_close(after[:, 0, 4], before[:, 0, donor] / 2, atol=atol, rtol=0)
    torch.testing.assert_close(after[:, 0, donor], before[:, 0, donor] / 2, atol=atol, rtol=0)
    torch.testing.assert_close(after[:, 1:], before[:, 1:])
    torch.testing.assert_close(module.losses(x, kl_weight=0.0), losses, atol=1e-6, rtol=0)
    # Spread over two codes it is closer to a uniform prior; a learnt prior is split the same way.
    gained = before[:, 0, donor] * math.log(2) if prior == "uniform" else 0.0
    torch.testing.assert_close(module.posterior(x).kl(module.prior()), kl - gained, atol=1e-6, rtol=0)
    live = [column for column in range(variables * VALUES) if column != 4]
    torch.testing.assert_close(module.decoder[1].weight[:, live], decoder[:, live], atol=0, rtol=0)


def adam_without_steps(module):
    return torch.optim.Adam(module.parameters())


def test_live_codes_decode_as_before_when_shaken(generator):
    module = build(dead=(0, 2))
    codes = torch.eye(VALUES)
    before = module.decode(codes)
    usage = module.usage(torch.rand(20, PIXELS, generator=generator))
    assert revive(module, usage, adam_without_steps(module), generator) == 2
    after = module.decode(codes)
    assert torch.equal(after[[1, 3, 4, 5]], before[[1, 3, 4, 5]])
    assert not torch.equal(after[[0, 2]], before[[0, 2]])
    # Each new code is near its donor, and not equal to it or to the other new one.
    distance = torch.cdist(after[[0, 2]], before[[1, 3, 4, 5]]).amin(-1)
    assert (distance > 0).all()
    assert (distance < 0.3).all()
    assert (after[0] - after[2]).abs().max() > 0


def test_many_dead_codes_share_the_busy_ones(generator):
    module = build()
    usage = torch.tensor([[0.6, 0.4, 0.0, 0.0, 0.0, 0.0]])
    first = module.encoder[-1].weight.clone()
    assert revive(module, usage, adam_without_steps(module), generator, shake=0.0) == 4
    donors = [int((first[:2] - row).abs().sum(-1).argmin()) for row in module.encoder[-1].weight[2:]]
    assert donors == [0, 1, 0, 1]  # 0.6 → 0.3, 0.4 → 0.2, 0.3, 0.2


@pytest.mark.parametrize(("variables", "prior"), [(1, "learnt"), (2, "learnt"), (1, "uniform")])
def test_adam_forgets_the_new_code_and_nothing_else(variables, prior, generator):
    module = build(variables=variables, prior=prior)
    optimiser = adam(module)
    usage = torch.full((variables, VALUES), 0.2)
    usage[-1] = torch.tensor([0.0, 0.2, 0.2, 0.2, 0.2, 0.2])
    code = (variables - 1) * VALUES
    tables = {"encoder weight": module.encoder[-1].weight, "encoder bias": module.encoder[-1].bias}
    tables["decoder weight"] = module.decoder[1].weight.T
    owners = {"decoder weight": module.decoder[1].weight}
    if prior == "learnt":
        tables["prior"] = module.prior_scores.reshape(-1)
        owners["prior"] = module.prior_scores

    def memories(name):
        state = optimiser.state[owners.get(name, tables[name])]
        for moment in (state["exp_avg"], state["exp_avg_sq"]):
            yield moment.T if name == "decoder weight" else moment.reshape(tables[name].shape)

    before = {name: [memory.clone() for memory in memories(name)] for name in tables}
    assert revive(module, usage, optimiser, generator) == 1
    for name in tables:
        for memory, old in zip(memories(name), before[name], strict=True):
            assert old[code].abs().max() > 0
            assert memory[code].abs().max() == 0
            others = [row for row in range(variables * VALUES) if row != code]
            assert torch.equal(memory[others], old[others])


def test_nothing_is_done_where_every_code_is_used(generator):
    module = build()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert revive(module, torch.full((1, VALUES), 1 / VALUES), adam_without_steps(module), generator) == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_bits_are_refused(generator):
    module = DiscreteVAEModule(nn.Linear(4, 3), nn.Linear(3, 4), Exact(), latent="bits", variables=3)
    with pytest.raises(ValueError, match="for categorical latents; a bit that never changes has no busy twin"):
        revive(module, torch.full((3, 2), 0.5), adam_without_steps(module), generator)


class Rows(nn.Module):
    """A decoder without a linear layer."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(VALUES, 4))

    def forward(self, z):
        return z @ self.table


@pytest.mark.parametrize(
    ("encoder", "decoder", "message"),
    [
        (nn.Linear(4, VALUES), Rows(), "the decoder must begin in a linear layer with bias over all 6 codes"),
        (nn.Linear(4, VALUES), nn.Sequential(nn.Identity(), nn.Linear(5, 4)), "the decoder must begin"),
        (nn.Linear(4, VALUES, bias=False), nn.Linear(VALUES, 4), "the encoder must end in a linear layer with bias"),
        (nn.Conv1d(1, 1, 3), nn.Linear(VALUES, 4), "the encoder must end"),
    ],
)
def test_odd_networks_are_refused(encoder, decoder, message, generator):
    module = DiscreteVAEModule(encoder, decoder, Exact(), values=VALUES)
    with pytest.raises(ValueError, match=message):
        revive(module, torch.full((1, VALUES), 1 / VALUES), adam_without_steps(module), generator)

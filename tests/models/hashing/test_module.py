"""The hashing module and its pairs: distances, spread scores, partners, and what the loop is told."""

import pytest
import torch
from torch import nn

from argrad import Direct, DisArm, Exact, LocalExpectation, Permutation, Relax
from argrad.estimators import GumbelSinkhorn
from argrad.estimators.by_name import estimator_by_name
from argrad.models.hashing import module as hashing_module
from argrad.models.hashing.costs import Pairs, logistic_loss, triplet_loss
from argrad.models.hashing.module import (
    SPREAD,
    HashingModule,
    HashingTask,
    PairSampler,
    Spread,
    convolutional_encoder,
    dense_encoder,
    has_partner,
    prepare,
)
from argrad.models.semi_supervised.augmentation import Augmentation
from argrad.training import LoopSettings, World, train

GROUPS = torch.tensor([0, 1, 2, 0, 1, 2])


class Given(nn.Module):
    """An encoder whose scores are what it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def seeded(make, *arguments, **settings):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make(*arguments, **settings)


@pytest.mark.parametrize(("loss", "plain"), [("triplet", triplet_loss), ("logistic", logistic_loss)])
def test_losses_of_codes_and_of_embeddings(loss, plain, generator):
    """Codes by Hamming distance; embeddings of ±1, which lie on a sphere, by the same number from their angles."""
    signs = 2.0 * torch.randint(2, (6, 8), generator=generator) - 1
    away = (signs.unsqueeze(1) != signs).sum(-1).float()
    setting = {"margin": 3.0} if loss == "triplet" else {"scale": 1.5}
    expected = plain(away, Pairs(GROUPS), *setting.values()).reshape(2, 3).mean(0)
    for estimator in (LocalExpectation(), None):  # in evaluation, and never settled: scores are what the encoder says
        module = HashingModule(Given(), estimator, 8, loss=loss, **setting).eval()
        torch.testing.assert_close(module.losses_of_codes(5 * signs, GROUPS), expected)
    embeddings = HashingModule(Given(), None, 8, loss=loss, **setting).eval()
    torch.testing.assert_close(embeddings.losses(signs, GROUPS), expected)
    # Bits that are all but certain are their own sample.
    certain = HashingModule(Given(), LocalExpectation(), 8, loss=loss, **setting).eval()
    torch.testing.assert_close(certain.losses(60 * signs, GROUPS), expected)


def test_settings_follow_the_bits():
    module = HashingModule(Given(), None, 32)
    assert (module.margin, module.scale) == (4.0, 2.0)
    assert HashingModule(Given(), None, 4).scale == 0.5


@pytest.mark.parametrize("estimator", [LocalExpectation(), Direct("auto"), DisArm(), None], ids=str)
def test_gradients_reach_the_encoder(estimator, generator):
    module = HashingModule(seeded(dense_encoder, (5,), 8, 12), estimator, 8)
    module.losses(torch.rand(6, 5, generator=generator), GROUPS, generator=generator).mean().backward()
    for parameter in module.encoder.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()


def test_scores_are_spread_by_the_batch_and_once_settled_by_what_was_given(generator):
    spread = Spread(16)
    x = 3 + 5 * torch.randn(500, 16, generator=generator)
    seen = spread(x)
    torch.testing.assert_close(seen.mean(0), torch.zeros(16), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen.std(0, correction=0), torch.full((16,), SPREAD))
    assert spread.mean.tolist() == [0] * 16  # nothing is kept of batches
    spread.settle(x.clone().requires_grad_())
    assert not spread.mean.requires_grad
    torch.testing.assert_close(spread.eval()(x), seen)
    torch.testing.assert_close(spread(x[:1]), seen[:1])  # by itself, the same
    torch.testing.assert_close(spread(x.double()), seen)  # of the module's own type


def test_small_scores_are_spread_too(generator):
    x = 1e-3 * torch.randn(500, 16, generator=generator)
    torch.testing.assert_close(Spread(16)(x).std(0, correction=0), torch.full((16,), SPREAD), rtol=0.01, atol=0)
    assert Spread(2)(torch.ones(4, 2)).abs().max() < 1e-3  # a constant stays one


@pytest.mark.parametrize("few", [False, True])
def test_a_task_settles_its_module_by_training_examples_as_they_are(few, generator, monkeypatch):
    """In pieces; by all of them, or where there are many by some, taken at random."""
    monkeypatch.setattr(hashing_module, "AT_ONCE", 20)
    monkeypatch.setattr(hashing_module, "SETTLED_BY", 60 if few else 90)
    x = torch.rand(90, 4, generator=generator)
    module = HashingModule(seeded(dense_encoder, (4,), 8), LocalExpectation(), 8)
    task = HashingTask(module, x, None, x[:3], None, Augmentation(drop=0.9))
    task.losses(torch.arange(90), generator, World())
    task.validate(generator)
    assert not module.training
    rows = torch.randperm(90, generator=torch.Generator().manual_seed(0))[: 60 if few else 90]
    scores = module.encoder(x[rows])
    torch.testing.assert_close(module.spread.mean, scores.mean(0))
    torch.testing.assert_close(module.spread.variance, scores.var(0, correction=0))
    with pytest.raises(ValueError, match="no examples to settle by"):
        module.settle(x[:0])


def test_a_partner_is_any_other_of_the_group(generator):
    """Never itself, never of another group, and each of the others equally often (χ² with 3 degrees of freedom)."""
    groups = torch.tensor([3, 0, 3, 1, 3, 0, 1, 3, 3])
    sampler = PairSampler(groups)
    which = torch.arange(9).repeat(4000)
    partner = sampler(which, generator)
    assert not (partner == which).any()
    assert torch.equal(groups[partner], groups[which])
    counts = partner[which == 4].bincount(minlength=9)[[0, 2, 7, 8]].double()
    assert ((counts - 1000).square() / 1000).sum() < 16.3  # one in a thousand
    with pytest.raises(ValueError, match="a group has one member"):
        PairSampler(torch.tensor([0, 0, 1]))
    assert has_partner(groups[:3]).tolist() == [True, False, True]


def test_pairs_of_a_task(generator):
    x = torch.rand(6, 4, 4, generator=generator)
    module = HashingModule(seeded(dense_encoder, (4, 4), 8), LocalExpectation(), 8)
    labelled = HashingTask(module, x, GROUPS, x[:0], None)
    batch, groups = labelled.pairs(0, torch.tensor([0, 1]), generator)
    assert torch.equal(batch, x[[0, 1, 3, 4]])
    assert groups.tolist() == [0, 1, 0, 1]
    alone = HashingTask(module, x, None, x[:0], None, Augmentation(drop=0.5))
    batch, groups = alone.pairs(0, torch.tensor([0, 1]), generator)
    assert groups.tolist() == [0, 1, 0, 1]
    assert not torch.equal(batch[0], batch[2])  # two views of one example
    seen = batch[0] > 0
    assert torch.equal(batch[0][seen], x[0][seen])


def test_validation_is_always_the_same(generator):
    x = torch.rand(60, 4, generator=generator)
    groups = torch.arange(60) % 3
    module = HashingModule(seeded(dense_encoder, (4,), 8), LocalExpectation(), 8)
    task = HashingTask(module, x[:30], groups[:30], x[30:], groups[30:])
    assert task.validate(generator) == task.validate(generator)
    everything = HashingTask(module, x[:30], groups[:30], x[:0], groups[:0])
    other = HashingTask(module, x[:30], groups[:30], x[:30], groups[:30])
    assert everything.validate(generator) == other.validate(generator)
    assert task.losses(torch.tensor([0, 4, 5]), generator, World()).shape == (3,)
    assert HashingTask(HashingModule(Given(), Direct(0.3), 4), x, groups, x, groups).after_epoch(
        1, None, generator
    ) == {"epsilon": pytest.approx(0.3)}


@pytest.mark.parametrize("loss", ["triplet", "logistic"])
@pytest.mark.parametrize("estimator", ["local-expectation", "direct", "straight-through", "embeddings"])
def test_what_belongs_together_comes_together(loss, estimator, generator):
    """Four patterns with noise: after 48 steps the loss of codes is less than half of what it was."""
    patterns = torch.rand(4, 10, generator=generator)
    groups = torch.arange(200) % 4
    x = patterns[groups] + 0.2 * torch.randn(200, 10, generator=generator)
    made = None if estimator == "embeddings" else estimator_by_name(estimator)
    module = HashingModule(seeded(dense_encoder, (10,), 16, 32), made, 16, loss=loss)
    task = HashingTask(module, x, groups, x[:0], None)
    before = task.validate(generator)["loss"]
    trained = train(task, LoopSettings(epochs=12, batch_size=50, learning_rate=1e-2))
    assert trained.best_loss < 0.5 * before


class SpreadOnce(nn.Module):
    """Shifts and scales as the first scores need it."""

    def __init__(self, scores: torch.Tensor) -> None:
        super().__init__()
        self.mean, self.gain = scores.mean(0), SPREAD / scores.std(0)

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return (scores - self.mean) * self.gain

    def settle(self, scores: torch.Tensor) -> None:
        pass


def test_codes_stay_apart_where_scores_spread_once_fall_together(generator):
    """Many groups, hard to tell apart at first: all codes alike cost less than random ones."""
    patterns = torch.rand(200, 10, generator=generator)
    groups = torch.arange(2000) % 200
    x = patterns[groups] + 0.5 * torch.randn(2000, 10, generator=generator)
    differ = {}
    for once in (False, True):
        module = HashingModule(seeded(dense_encoder, (10,), 16, 32), LocalExpectation(), 16)
        if once:
            module.spread = SpreadOnce(module.encoder(x).detach())
        task = HashingTask(module, x, groups, x[:0], None)
        train(task, LoopSettings(epochs=6, batch_size=64, learning_rate=1e-2))
        share = module.eval().codes(x).mean(0)
        differ[once] = (2 * share * (1 - share)).mean()  # the chance that a bit of two examples differs
    assert differ[False] > 0.45
    assert differ[True] < 0.1


def test_one_pair_alone_costs_nothing():
    """The last batch of an epoch may be that small: no negatives, no loss, no NaN."""
    for loss in ("triplet", "logistic"):
        module = HashingModule(seeded(dense_encoder, (5,), 8), LocalExpectation(), 8, loss=loss)
        value = module.losses(torch.rand(2, 5), torch.zeros(2))
        value.sum().backward()
        assert value.tolist() == pytest.approx([0.0], abs=1e-6)
        assert all(parameter.grad.isfinite().all() for parameter in module.encoder.parameters())


@pytest.mark.parametrize("shape", [(28, 28), (3, 9, 12)])
def test_convolutional_encoder(shape, generator):
    """Also in train mode a row does not depend on the others."""
    encoder, x = seeded(convolutional_encoder, shape, 24, 3), torch.rand(5, *shape, generator=generator)
    assert encoder(x).shape == (5, 24)
    torch.testing.assert_close(encoder(x)[:1], encoder(x[:1]))


def test_prepare_sizes_and_refuses():
    lazy = HashingModule(nn.LazyLinear(8), seeded(Relax), 8)
    prepare(lazy, (5,))
    assert lazy.codes(torch.zeros(2, 5)).shape == (2, 8)
    assert not any(nn.parameter.is_lazy(parameter) for parameter in lazy.parameters())
    with pytest.raises(ValueError, match="GumbelSinkhorn does not support Bits"):
        prepare(HashingModule(nn.Linear(5, 8), GumbelSinkhorn(), 8), (5,))
    with pytest.raises(ValueError, match=r"Exact does not support .*LocalExpectation"):
        prepare(HashingModule(nn.Linear(5, 64), Exact(), 64), (5,))
    assert GumbelSinkhorn().supports(Permutation(torch.zeros(2, 2), law="perturb"))  # refused for bits, not for good


def test_bad_input():
    with pytest.raises(
        ValueError, match="the encoder turned x of shape \\(2, 5\\) into \\(2, 7\\); for 8 bits it must"
    ):
        HashingModule(nn.Linear(5, 7), None, 8).codes(torch.zeros(2, 5))
    with pytest.raises(ValueError, match="into tuple"):
        HashingModule(nn.LSTM(5, 8), None, 8).codes(torch.zeros(2, 5))
    with pytest.raises(ValueError, match='loss must be "triplet" or "logistic", got \'cosine\''):
        HashingModule(Given(), None, 8, loss="cosine")
    with pytest.raises(ValueError, match="bits must be at least 1, got 0"):
        HashingModule(Given(), None, 0)
    with pytest.raises(ValueError, match="margin must be a positive number"):
        HashingModule(Given(), None, 8, loss="triplet", margin=-1.0)
    with pytest.raises(ValueError, match="scale must be a number of bits"):
        HashingModule(Given(), None, 8, scale=0.0)
    with pytest.raises(ValueError, match="sides of at least 8, got examples of shape \\(64,\\)"):
        convolutional_encoder((64,), 8)
    with pytest.raises(ValueError, match="channels must be at least 1, got 0"):
        convolutional_encoder((8, 8), 8, 0)
    with pytest.raises(ValueError, match="hidden must be at least 1, got 0"):
        dense_encoder((8, 8), 8, 0)

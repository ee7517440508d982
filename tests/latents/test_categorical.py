"""Categorical against torch.distributions, and what is special to it. The common contract is in test_base.py."""

import math

import pytest
import torch
from torch import Tensor, distributions

from argrad import Categorical
from argrad.latents.base import cheaply_known_finite
from argrad.latents.categorical import one_hot_argmax, sum_of_all_choices

BATCHES = [(), (1,), (4,), (2, 3)]  # torch.distributions does not take an empty batch everywhere


def scores(*shape: int, seed: int = 0) -> Tensor:
    return 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def one_hots(*shape: int, k: int, seed: int = 1) -> Tensor:
    index = torch.randint(k, shape, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.one_hot(index, k).double()


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("k", [1, 2, 7])
def test_one_variable_equals_torch(batch, k):
    h, other = scores(*batch, k), scores(*batch, k, seed=2)
    q, reference = Categorical(h), distributions.OneHotCategorical(logits=h)
    z = one_hots(5, *batch, k=k)
    close = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(q.log_prob(z), reference.log_prob(z), **close)
    torch.testing.assert_close(q.entropy(), reference.entropy(), **close)
    torch.testing.assert_close(q.mean(), reference.mean, **close)
    to_other = distributions.kl_divergence(reference, distributions.OneHotCategorical(logits=other))
    torch.testing.assert_close(q.kl(Categorical(other)), to_other, **close)
    uniform = distributions.OneHotCategorical(logits=torch.zeros_like(h))
    torch.testing.assert_close(q.kl(), distributions.kl_divergence(reference, uniform), **close)
    assert torch.equal(q.mode(), reference.mode)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (1, 4), (3, 1), (3, 4)])
def test_several_variables_equal_torch(batch, n, k):
    h, other = scores(*batch, n, k), scores(*batch, n, k, seed=2)

    def as_torch(h: Tensor) -> distributions.Distribution:
        return distributions.Independent(distributions.OneHotCategorical(logits=h), 1)

    q, reference = Categorical(h, event_dims=2), as_torch(h)
    z = one_hots(5, *batch, n, k=k)
    close = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(q.log_prob(z), reference.log_prob(z), **close)
    torch.testing.assert_close(q.entropy(), reference.entropy(), **close)
    torch.testing.assert_close(q.kl(Categorical(other, event_dims=2)), _kl(reference, as_torch(other)), **close)
    torch.testing.assert_close(q.kl(), _kl(reference, as_torch(torch.zeros_like(h))), **close)
    assert torch.equal(q.mode(), reference.base_dist.mode)


def _kl(q: distributions.Independent, p: distributions.Independent) -> Tensor:
    return distributions.kl_divergence(q.base_dist, p.base_dist).sum(-1)


def test_impossible_values_equal_torch_on_the_possible_ones():
    h = torch.tensor([0.3, -torch.inf, 1.2], dtype=torch.float64)
    q, short = Categorical(h), Categorical(h[[0, 2]])
    torch.testing.assert_close(q.entropy(), short.entropy())
    torch.testing.assert_close(q.kl(), short.kl() + math.log(3 / 2))
    assert q.log_prob(torch.tensor([0.0, 1.0, 0.0])) == -torch.inf
    torch.testing.assert_close(q.mean(), torch.tensor([short.mean()[0], 0.0, short.mean()[1]], dtype=torch.float64))


def test_kl_broadcasts_one_prior_over_the_batch():
    h, prior = scores(4, 3), scores(3, seed=3)
    repeated = Categorical(prior.expand(4, 3))
    torch.testing.assert_close(Categorical(h).kl(Categorical(prior)), Categorical(h).kl(repeated))


@pytest.mark.parametrize("event_dims", [1, 2])
@pytest.mark.parametrize("impossible", [False, True])
def test_conversion_there_and_back(event_dims, impossible):
    h = scores(4, 3, 5)
    if impossible:
        h[..., 2] = -torch.inf
    q = Categorical(h, event_dims=event_dims)
    there = q.to_distribution()
    z = q.sample((2,))
    torch.testing.assert_close(there.log_prob(z), q.log_prob(z))
    back = Categorical.from_distribution(there)
    assert back.event_dims == event_dims
    assert back.batch_shape == q.batch_shape
    torch.testing.assert_close(back.log_prob(z), q.log_prob(z))
    torch.testing.assert_close(back.mean(), q.mean())


def test_conversion_from_every_accepted_kind():
    h = scores(4, 3, 5)
    plain, one_hot = distributions.Categorical(logits=h), distributions.OneHotCategorical(logits=h)
    for distribution, event_dims in (
        (plain, 1),
        (one_hot, 1),
        (distributions.Independent(plain, 0), 1),
        (distributions.Independent(plain, 1), 2),
        (distributions.Independent(one_hot, 1), 2),
    ):
        q = Categorical.from_distribution(distribution)
        assert q.event_dims == event_dims
        torch.testing.assert_close(q.mean(), h.softmax(-1))
    from_probabilities = Categorical.from_distribution(distributions.Categorical(probs=h.softmax(-1)))
    torch.testing.assert_close(from_probabilities.mean(), h.softmax(-1))


def test_conversion_keeps_the_gradient():
    h = scores(3).requires_grad_()
    entropy = Categorical.from_distribution(Categorical(h).to_distribution()).entropy()
    torch.testing.assert_close(torch.autograd.grad(entropy, h)[0], torch.autograd.grad(Categorical(h).entropy(), h)[0])


def test_shifted_scores_are_the_same_distribution():
    h = scores(3, 4)
    for shift in (-1e4, 1e4):
        torch.testing.assert_close(Categorical(h + shift).mean(), Categorical(h).mean())
        torch.testing.assert_close(Categorical(h + shift).entropy(), Categorical(h).entropy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_scores_stay_finite(dtype):
    h = torch.tensor([[1e4, -1e4, 0.0], [1e30, -1e30, 0.0]], dtype=dtype, requires_grad=True)
    q = Categorical(h)
    for value in (q.entropy(), q.kl(), q.mean().sum(), q.relax(q.perturb(q.draw_noise()), 1e-3).sum()):
        assert bool(value.isfinite().all())
        assert bool(torch.autograd.grad(value.sum(), h)[0].isfinite().all())
    torch.testing.assert_close(q.kl().detach(), torch.full((2,), math.log(3), dtype=dtype))


@pytest.mark.parametrize("k", [2, 10, 1000])
def test_entropy_of_the_uniform_is_log_k_and_its_kl_zero(k):
    q = Categorical(torch.full((k,), 3.7, dtype=torch.float64))
    assert q.entropy().item() == pytest.approx(math.log(k), abs=1e-12)
    assert q.kl().item() == pytest.approx(0, abs=1e-12)


def test_first_of_equals_wins():
    assert torch.equal(one_hot_argmax(torch.tensor([1.0, 2.0, 2.0])), torch.tensor([0.0, 1.0, 0.0]))
    assert torch.equal(Categorical(torch.zeros(3)).mode(), torch.tensor([1.0, 0.0, 0.0]))


def test_relax_does_not_depend_on_the_size_of_the_scores():
    """Without a shift before the division, 1e37 / 1e-3 overflows and the soft maximum is NaN."""
    perturbed = torch.tensor([1e37, 0.0, -1e37])
    assert torch.equal(Categorical(torch.zeros(3)).relax(perturbed, 1e-3), torch.tensor([1.0, 0.0, 0.0]))


def test_relax_with_all_but_one_impossible():
    perturbed = torch.tensor([-torch.inf, 2.0, -torch.inf], requires_grad=True)
    soft = Categorical(torch.zeros(3)).relax(perturbed, torch.tensor(0.5))
    assert torch.equal(soft.detach(), torch.tensor([0.0, 1.0, 0.0]))
    assert not torch.autograd.grad(soft[1], perturbed)[0].any()


def test_sums_of_all_choices():
    values = scores(2, 3, 2)
    found = sum_of_all_choices(values)
    assert found.shape == (2, 8)
    for number in range(8):
        digits = (number >> 2 & 1, number >> 1 & 1, number & 1)
        expected = sum(values[:, i, digit] for i, digit in enumerate(digits))
        torch.testing.assert_close(found[:, number], expected)


@pytest.mark.parametrize("scores", [scores(4, 5), torch.tensor([[0.0, -torch.inf, 2.0]]), scores(2, 3, 4)])
def test_sharing_work_changes_no_number(scores):
    """Where one backward pass takes all, log p is computed once; values and gradients are the same."""
    results = []
    for shared in (False, True):
        leaf = scores.clone().requires_grad_()
        q = Categorical(leaf, event_dims=scores.dim() - 1)
        q.differentiated_once = shared
        with torch.no_grad():
            assert not q.mean().requires_grad  # what is computed without gradients is not kept
        total = q.kl().sum() + (q.mean() * torch.arange(scores.shape[-1])).sum()
        total.backward()
        results.append((total.detach(), leaf.grad))
        assert (q.mean() is q.mean()) == shared
    torch.testing.assert_close(*results)


def test_a_look_at_scores_is_taken_where_it_is_free():
    assert cheaply_known_finite(torch.zeros(3))
    assert not cheaply_known_finite(torch.tensor([0.0, -torch.inf]))
    assert not cheaply_known_finite(torch.tensor([0.0, torch.nan]))
    assert not cheaply_known_finite(torch.zeros(3, device="meta"))

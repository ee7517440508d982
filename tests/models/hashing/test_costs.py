"""Contrastive costs of codes: against loops written out by hand, and against enumeration of all codes."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from argrad import Arm, Bits, Direct, DisArm, Exact, GumbelSoftmax, LocalExpectation
from argrad.costs import evaluate_single_changes, single_changes
from argrad.models.hashing.costs import InBatchCost, LogisticCost, Pairs, TripletCost, logistic_loss, triplet_loss

GROUPS = torch.tensor([0, 1, 2, 1, 0, 1, 2, 1])  # pairs 0-4, 1-5, 2-6, 3-7; 1, 3, 5 and 7 are one group
LOSSES = ("triplet", "logistic")


def loss_by_hand(codes: list[list[float]], groups: list[int], anchor: int, loss: str, setting: float) -> float:
    """One anchor's loss, from the definition."""

    def distance(i: int, j: int) -> float:
        return sum(abs(a - b) for a, b in zip(codes[i], codes[j], strict=True))

    half = len(codes) // 2
    near = distance(anchor, (anchor + half) % len(codes))
    behind = [near - distance(anchor, j) for j in range(len(codes)) if groups[j] != groups[anchor]]
    if loss == "triplet":
        return sum(max(0.0, setting + each) for each in behind) / max(1, len(behind))
    return math.log1p(sum(math.exp(each / setting) for each in behind))


def all_by_hand(codes: Tensor, groups: Tensor, loss: str, setting: float) -> Tensor:
    rows, kinds = codes.tolist(), groups.tolist()
    return torch.tensor([loss_by_hand(rows, kinds, a, loss, setting) for a in range(len(rows))], dtype=torch.float64)


def make(loss: str, codes: Tensor, groups: Tensor, setting: float = 2.0) -> InBatchCost:
    kind = TripletCost if loss == "triplet" else LogisticCost
    return kind(codes, Pairs(groups), setting)


def random_codes(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(2, shape, generator=generator).double()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("setting", [0.5, 1.3, 4.0])
def test_losses_are_the_definition(loss, setting, generator):
    codes = random_codes(generator, 8, 6)
    away = (codes.unsqueeze(1) - codes).abs().sum(-1)
    function = triplet_loss if loss == "triplet" else logistic_loss
    torch.testing.assert_close(function(away, Pairs(GROUPS), setting), all_by_hand(codes, GROUPS, loss, setting))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_code_costs_all_that_it_has_a_part_in(loss, generator):
    """C_i(z_i) = F(c with z_i in place of c_i) − Σ_{a ≠ i} L_a(c), for rows other than the draw's."""
    drawn, z = random_codes(generator, 8, 6), random_codes(generator, 3, 8, 6)
    costs = make(loss, drawn, GROUPS)(z)
    before = all_by_hand(drawn, GROUPS, loss, 2.0)
    for extra, row in product(range(3), range(8)):
        changed = drawn.clone()
        changed[row] = z[extra, row]
        expected = all_by_hand(changed, GROUPS, loss, 2.0).sum() - (before.sum() - before[row])
        torch.testing.assert_close(costs[extra, row], expected)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("groups", [GROUPS, torch.zeros(8), torch.arange(4).repeat(2)], ids=["some", "one", "own"])
def test_single_changes_are_evaluations(loss, groups, generator):
    for setting in (0.5, 1.0, 3.7, 20.0):
        cost = make(loss, random_codes(generator, 8, 9), groups, setting)
        z = random_codes(generator, 8, 9)
        latent = Bits(torch.zeros(8, 9, dtype=torch.float64))
        expected = evaluate_single_changes(cost, latent, z, None, 1, 2**20)
        torch.testing.assert_close(single_changes(cost, latent, z), expected)
        torch.testing.assert_close(single_changes(cost, latent, z, cost(z)), expected)


@pytest.mark.parametrize("loss", LOSSES)
def test_single_changes_keep_their_digits_in_float32(loss, generator):
    """64 bits, near and far codes, the least scale: where sums of exponentials could lose the small ones."""
    drawn = random_codes(generator, 32, 64)
    drawn[16:24] = drawn[:8]
    z = torch.where(torch.rand(32, 64, generator=generator) < 0.03, 1 - drawn, drawn)
    groups, latent = torch.arange(16).repeat(2), Bits(torch.zeros(32, 64))
    exact = evaluate_single_changes(make(loss, drawn, groups, 0.5), latent, z, None, 1, 2**24)
    found = single_changes(make(loss, drawn.float(), groups, 0.5), latent, z.float())
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_given_the_others_are_those_of_the_whole(loss):
    """By enumeration of all 256 sets of four codes of two bits: value and gradient of E[F], to the last digit."""
    groups = torch.tensor([0, 1, 0, 1])
    scores = torch.linspace(-1.5, 2.0, 8, dtype=torch.float64).reshape(4, 2).requires_grad_()
    everything = Bits(scores.flatten())
    sets = everything.enumerate().reshape(256, 4, 2)
    probabilities = everything.log_prob_all().exp()
    by_row = torch.stack([all_by_hand(codes, groups, loss, 1.0) for codes in sets])
    mean = probabilities @ by_row
    (expected,) = torch.autograd.grad(mean.sum(), scores)

    found, values = torch.zeros_like(scores), torch.zeros(4, dtype=torch.float64)
    for codes, probability in zip(sets, probabilities.detach(), strict=True):
        each = Exact()(Bits(scores), make(loss, codes, groups, 1.0))
        (gradient,) = torch.autograd.grad(each.sum(), scores)
        found += probability * gradient
        values += probability * each.detach()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(values, mean.detach())


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("estimator", [LocalExpectation(), Arm(), DisArm()], ids=lambda each: type(each).__name__)
def test_unbiased_estimators_agree_with_enumeration(loss, estimator, generator):
    """Given a draw of the codes: z-tests of 32 scores over 5,000 draws of the estimator's own noise."""
    cost = make(loss, random_codes(generator, 8, 4), GROUPS, 1.0)
    scores = torch.randn(8, 4, generator=generator, dtype=torch.float64)
    many = scores.expand(5000, 8, 4).clone().requires_grad_()
    (found,) = torch.autograd.grad(estimator(Bits(many), cost, generator=generator).sum(), many)
    one = scores.clone().requires_grad_()
    (exact,) = torch.autograd.grad(Exact()(Bits(one), cost).sum(), one)
    assert ((found.mean(0) - exact).abs() / (found.std(0) / 5000**0.5)).max() < 4.2  # 32 comparisons, 6 tests


@pytest.mark.parametrize("estimator", [Direct("auto"), GumbelSoftmax(0.5, straight_through=True)])
@pytest.mark.parametrize("loss", LOSSES)
def test_biased_estimators_point_the_same_way(loss, estimator, generator):
    """Over 2,000 draws for the same codes the cosine with the exact gradient is high."""
    cost = make(loss, random_codes(generator, 8, 4).float(), GROUPS, 1.0)
    scores = torch.randn(8, 4, generator=generator)
    many = scores.expand(2000, 8, 4).clone().requires_grad_()
    (found,) = torch.autograd.grad(estimator(Bits(many), cost, generator=generator).sum(), many)
    one = scores.clone().requires_grad_()
    (exact,) = torch.autograd.grad(Exact()(Bits(one), cost).sum(), one)
    assert torch.cosine_similarity(found.mean(0).flatten(), exact.flatten(), dim=0) > 0.9


def test_inner_products_of_the_lecture(generator):
    """Document 003, corrected: with codes of ±1, max(0, margin − qᵀd₊ + qᵀd₋) and −log σ(qᵀd₊ − qᵀd₋)."""
    q, near, far = random_codes(generator, 3, 10)
    codes, pairs = torch.stack([q, far, near, far]), Pairs(torch.tensor([0, 1, 0, 1]))
    signs = 2 * codes - 1
    gain = signs[0] @ signs[2] - signs[0] @ signs[1]
    away = (codes.unsqueeze(1) - codes).abs().sum(-1)
    for margin in (1.0, 3.0, 8.0):
        torch.testing.assert_close(triplet_loss(away, pairs, margin)[0], 0.5 * (2 * margin - gain).relu())
    twice = math.log(2)  # the negative is there twice
    torch.testing.assert_close(logistic_loss(away, pairs, 0.5)[0], -torch.nn.functional.logsigmoid(gain - twice))


def test_the_published_score_is_no_loss():
    """qᵀd₊ − qᵀd₋, minimised, pulls the wrong way: it falls as the partner moves away."""
    near, far = torch.tensor(4.0), torch.tensor(2.0)  # distances of q to d₊ and d₋: d₋ is nearer, which is bad
    published = (10 - 2 * near) - (10 - 2 * far)
    away = torch.tensor([[0.0, 2, 4, 2], [2, 0, 5, 0], [4, 5, 0, 5], [2, 0, 5, 0]])
    right = triplet_loss(away, Pairs(torch.tensor([0, 1, 0, 1])), 1.0)[0]
    assert published < 0 < right


def test_bad_input(generator):
    codes, pairs = random_codes(generator, 4, 3), Pairs(torch.tensor([0, 1, 0, 1]))
    for margin in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="margin must be a positive number of bits"):
            TripletCost(codes, pairs, margin)
    with pytest.raises(ValueError, match=r"scale must be a number of bits, at least 0.5, got 0.1"):
        LogisticCost(codes, pairs, 0.1)
    with pytest.raises(ValueError, match="even number of rows"):
        Pairs(torch.tensor([0, 1, 0]))
    with pytest.raises(ValueError, match="both rows of a pair, i and i \\+ B, must be of the same group"):
        Pairs(torch.tensor([0, 0, 1, 1]))
    with pytest.raises(ValueError, match="4 rows in pairs need codes of as many rows"):
        TripletCost(codes[:3], pairs, 1.0)
    with pytest.raises(ValueError, match="the draw has codes \\(4, 3\\), but z has shape \\(4, 2\\)"):
        TripletCost(codes, pairs, 1.0)(codes[:, :2])

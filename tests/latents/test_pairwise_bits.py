"""Pairwise bits: what is their own, and what they are without pairwise scores."""

import math

import pytest
import torch

from argrad import Bits, Direct, PairwiseBits
from argrad.latents.pairwise_bits import KnownKL
from argrad.solvers.pairwise_fused import rows_of
from structured_latents import normal
from structures import assert_law

UNARY, PAIRWISE = normal(2, 5), normal(2, 5, 5, seed=1)


def test_without_pairwise_scores_they_are_independent_bits():
    for law in ("gibbs", "perturb"):
        ours, bits = PairwiseBits(UNARY, torch.zeros(5, 5).double(), law=law), Bits(UNARY)
        z = bits.sample((7,), generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(ours.score(z), bits.score(z))
        torch.testing.assert_close(ours.mode(), bits.mode())
        torch.testing.assert_close(ours.enumerate(), bits.enumerate())
        if law == "perturb":
            noise = ours.draw_noise((50,), generator=torch.Generator().manual_seed(1))
            torch.testing.assert_close(noise, bits.draw_noise((50,), generator=torch.Generator().manual_seed(1)))
            torch.testing.assert_close(ours.sample(noise=noise), bits.sample(noise=noise))
            continue
        torch.testing.assert_close(ours.log_prob(z), bits.log_prob(z))
        torch.testing.assert_close(ours.entropy(), bits.entropy())
        torch.testing.assert_close(ours.kl(), bits.kl())
        torch.testing.assert_close(ours.mean(), bits.mean())
        torch.testing.assert_close(ours.log_prob_all(), bits.log_prob_all())


def test_score_by_hand_reads_the_upper_triangle():
    q = PairwiseBits(
        torch.tensor([1.0, 2.0, 4.0]), torch.tensor([[9.0, 10.0, 20.0], [9.0, 9.0, 40.0], [9.0, 9.0, 9.0]])
    )
    assert q.score(torch.tensor([1.0, 0.0, 1.0])) == 25
    assert q.score(torch.ones(3)) == 77
    assert q.scores_all().tolist() == [0, 4, 2, 46, 1, 25, 13, 77]


def test_exact_samples_are_drawn_one_half_after_the_other():
    q = PairwiseBits(UNARY, PAIRWISE)
    noise = q.draw_noise((20,), generator=torch.Generator().manual_seed(2))
    assert noise.shape == (20, 2, 4 + 8)
    states = q.enumerate()
    for draw, z in zip(noise, q.sample(noise=noise), strict=True):
        for example in range(2):
            p = q.log_prob_all()[example].exp()
            first = [p[(states[:, :2] == half).all(-1)].sum() for half in states[::8, :2]]
            row = (torch.stack(first).log() + draw[example, :4]).argmax()
            given = p[8 * row : 8 * row + 8] / first[row]
            number = 8 * row + (given.log() + draw[example, 4:]).argmax()
            torch.testing.assert_close(z[example], states[number])
    torch.testing.assert_close(q.select_from_all(q.scores_all(), noise), q.sample(noise=noise))
    torch.testing.assert_close(q.select_from_all(q.scores_all(), None), q.mode())


@pytest.mark.parametrize("solver", ["auto", "enumeration", "branch-and-bound", "local-search"])
def test_named_solvers(solver):
    q = PairwiseBits(UNARY, PAIRWISE, solver, "perturb")
    noise = q.draw_noise((20,), generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(q.sample(noise=noise), PairwiseBits(UNARY, PAIRWISE, law="perturb").sample(noise=noise))


def test_local_search_by_name_is_a_function_of_the_noise():
    """At 120 bits the heuristic misses optima, and other starts would end elsewhere."""
    unary, pairwise = normal(4, 120).requires_grad_(), normal(120, 120, seed=1)
    q = PairwiseBits(unary, pairwise, "local-search", "perturb")
    noise = q.draw_noise(generator=torch.Generator().manual_seed(3))
    state = torch.get_rng_state()
    z = q.sample(noise=noise)
    for _ in range(3):
        assert torch.equal(q.sample(noise=noise), z)
    together = q.sample(noise=noise.expand(2, 4, 120))
    assert torch.equal(together, z.expand(2, 4, 120))
    for two_sided in (False, True):
        loss = Direct(0.1, two_sided=two_sided, changes=torch.zeros_like)(q, lambda z: 0 * z.sum(-1), noise=noise)
        (gradient,) = torch.autograd.grad(loss.sum(), unary)
        assert torch.equal(gradient, torch.zeros_like(unary))
    assert torch.equal(torch.get_rng_state(), state)


def test_work_is_shared_where_one_backward_pass_takes_all():
    results = []
    for once in (False, True):
        unary, pairwise = UNARY.clone().requires_grad_(), PAIRWISE.clone().requires_grad_()
        q = PairwiseBits(unary, pairwise)
        q.differentiated_once = once
        z = q.sample(generator=torch.Generator().manual_seed(4))
        assert (q.scores_all() is q.scores_all()) == once
        assert q.scores_all().requires_grad
        (q.kl() + q.log_prob(z) + q.mean().sum(-1)).sum().backward()
        results.append((unary.grad, pairwise.grad))
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(first, second)


def test_most_bits():
    q = PairwiseBits(normal(20, dtype=torch.float32), 0.1 * normal(20, 20, seed=1, dtype=torch.float32))
    assert q.sample(generator=torch.Generator().manual_seed(0)).shape == (20,)
    assert 0 < q.entropy() < 20 * math.log(2)


def test_the_laws_differ():
    q = PairwiseBits(UNARY[0], 2 * PAIRWISE[0])
    perturbed = q.with_law("perturb").sample((100_000,), generator=torch.Generator().manual_seed(5))
    with pytest.raises(AssertionError):
        assert_law(perturbed, q.log_prob_all(), q.enumerate())
    place = 2 ** torch.arange(4, -1, -1)
    share = torch.bincount((perturbed.long() * place).sum(-1), minlength=32) / len(perturbed)
    assert (share - q.log_prob_all().exp()).abs().sum() / 2 > 0.03


@pytest.mark.parametrize("shared", [False, True])
def test_a_kl_whose_gradients_are_known(shared):
    """What a GPU's kernel finds together with the sample goes to the right scores, with the right sign."""
    leaves = [normal(4, 5).requires_grad_(), (normal(5, 5) if shared else normal(4, 5, 5)).requires_grad_()]
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=leaves[0].dtype)
    kl = PairwiseBits(*leaves).kl()
    unary, wide = leaves[0].detach(), leaves[1].detach().expand(4, 5, 5)
    (to_unary,) = torch.autograd.grad(kl.sum(), leaves[:1], retain_graph=True)
    to_pairs = (
        torch.autograd.functional.jacobian(lambda pairs: PairwiseBits(unary, pairs).kl(), wide)
        .diagonal(dim1=0, dim2=1)
        .movedim(-1, 0)
    )
    expected = torch.autograd.grad((kl * weights).sum(), leaves)
    known = KnownKL.apply(*leaves, kl.detach() - 1e-9, to_unary, to_pairs)
    assert bool((known >= 0).all())
    for ours, theirs in zip(torch.autograd.grad((known * weights).sum(), leaves), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_rows_of_a_wider_matrix_are_not_copied():
    wide = torch.arange(12.0).reshape(2, 6)
    rows = rows_of(wide[:, 1:4])
    assert (rows.data_ptr(), rows.stride()) == (wide[:, 1:].data_ptr(), (6, 1))
    assert rows_of(wide.T[:, :1].expand(6, 3)).is_contiguous()

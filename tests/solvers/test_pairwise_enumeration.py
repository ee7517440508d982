"""Enumeration against brute force, in every precision that PyTorch may be set to."""

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from argrad.solvers import pairwise_by_enumeration, pairwise_scores_all
from argrad.solvers.pairwise_enumeration import exact_product
from pairwise_problems import KINDS, all_bits, assert_optimal, make, problems, score


@pytest.fixture(params=["highest", "high", "medium"])
def precision(request):
    """What the user allows PyTorch to round float32 products to."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_equals_brute_force(kind, n):
    assert_optimal(pairwise_by_enumeration, *make(kind, 50, n))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", range(1, 11))
def test_equals_brute_force_on_many(kind, n):
    assert_optimal(pairwise_by_enumeration, *make(kind, 150, n, seed=1))


@given(problems())
@settings(max_examples=100)
def test_equals_brute_force_on_drawn_problems(problem):
    assert_optimal(pairwise_by_enumeration, *problem)


@pytest.mark.parametrize("kind", ["normal", "integers", "huge", "tiny", "exclusions", "impossible"])
def test_float32(kind, precision):
    unary, pairwise = make(kind, 50, 7)
    assert_optimal(pairwise_by_enumeration, unary.float(), pairwise.float(), rounding=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    unary, pairwise = make("normal", 50, 7)
    assert_optimal(pairwise_by_enumeration, unary.to(dtype), pairwise.to(dtype), rounding=1e-6)


@pytest.mark.parametrize("limit", [1, 100, 1000, 10_000, 2**30])
def test_chunks_do_not_change_the_result(limit):
    unary, pairwise = make("normal", 20, 7)
    expected = pairwise_by_enumeration(unary, pairwise)
    assert torch.equal(pairwise_by_enumeration(unary, pairwise, memory_limit=limit), expected)


def test_too_many_bits():
    with pytest.raises(ValueError, match=r"2\^27 states.*pairwise_by_branch_and_bound"):
        pairwise_by_enumeration(torch.zeros(27), torch.zeros(27, 27))


def test_the_product_is_exact_whatever_is_allowed(precision):
    g = torch.Generator().manual_seed(0)
    bits = torch.randint(2, (64, 33), generator=g).float()
    numbers = torch.randn(5, 33, 40, generator=g)
    expected = (bits.double() @ numbers.double()).float()
    torch.testing.assert_close(exact_product(bits, numbers), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(exact_product(numbers.mT, bits.mT), expected.mT, rtol=1e-5, atol=1e-5)


def test_autocast_does_not_round():
    unary, pairwise = make("normal", 50, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_optimal(pairwise_by_enumeration, unary.float(), pairwise.float(), rounding=1e-6)
        assert pairwise_scores_all(unary.float(), pairwise.float()).dtype == torch.float32


def test_compiles_and_maps():
    unary, pairwise = make("normal", 6, 5)
    expected = pairwise_by_enumeration(unary, pairwise)
    compiled = torch.compile(pairwise_by_enumeration, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(unary, pairwise), expected)
    assert torch.equal(torch.vmap(pairwise_by_enumeration)(unary, pairwise), expected)
    with torch.inference_mode():
        assert torch.equal(pairwise_by_enumeration(unary, pairwise), expected)


class TestScoresAll:
    @pytest.mark.parametrize("n", [1, 2, 3, 6])
    @pytest.mark.parametrize("kind", ["normal", "integers", "impossible", "tiny"])
    def test_is_the_score_of_every_code_in_order(self, kind, n):
        unary, pairwise = make(kind, 4, n)
        scores = pairwise_scores_all(unary, pairwise)
        expected = torch.stack([score(unary, pairwise, z.expand(4, n)) for z in all_bits(n)], -1)
        torch.testing.assert_close(scores, expected, rtol=1e-12, atol=1e-12)

    def test_float32_in_every_precision(self, precision):
        unary, pairwise = make("impossible", 4, 9)
        expected = pairwise_scores_all(unary, pairwise)
        torch.testing.assert_close(pairwise_scores_all(unary.float(), pairwise.float()), expected.float())

    @pytest.mark.parametrize("impossible", [False, True])
    def test_gradient(self, impossible, precision):
        unary, pairwise = make("impossible" if impossible else "normal", 3, 5)
        pairwise = pairwise.triu(1)
        unary[:, 0] = 0.3
        inputs = [tensor.clone().requires_grad_() for tensor in (unary, pairwise)]
        weights = torch.randn(3, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        loss = (pairwise_scores_all(*inputs).log_softmax(-1).clamp_min(-1e3) * weights).sum()
        ours = torch.autograd.grad(loss, inputs)
        codes = all_bits(5)

        def by_definition(u: Tensor, w: Tensor) -> Tensor:
            ones = torch.where(codes > 0, u[:, None, :], 0.0).sum(-1)
            return ones + torch.einsum("si,bij,sj->bs", codes, w.triu(1), codes)

        expected = torch.autograd.grad((by_definition(*inputs).log_softmax(-1).clamp_min(-1e3) * weights).sum(), inputs)
        for gradient, wanted in zip(ours, expected, strict=True):
            assert bool(gradient.isfinite().all())
            torch.testing.assert_close(gradient, wanted)

    def test_compiles(self):
        unary, pairwise = (tensor.requires_grad_() for tensor in make("normal", 3, 5))
        compiled = torch.compile(pairwise_scores_all, backend="aot_eager", fullgraph=True)
        scores, expected = compiled(unary, pairwise), pairwise_scores_all(unary, pairwise)
        torch.testing.assert_close(scores, expected)
        ours, wanted = (torch.autograd.grad(s.logsumexp(-1).sum(), unary) for s in (scores, expected))
        torch.testing.assert_close(ours, wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestOnGpu:
    def test_equals_the_cpu(self, precision):
        unary, pairwise = make("normal", 30, 11)
        assert_optimal(lambda u, w: pairwise_by_enumeration(u.cuda(), w.cuda()).cpu(), unary, pairwise)
        assert_optimal(
            lambda u, w: pairwise_by_enumeration(u.cuda(), w.cuda()).cpu(), unary.float(), pairwise.float(), 1e-6
        )
        scores = pairwise_scores_all(unary.float().cuda(), pairwise.float().cuda())
        torch.testing.assert_close(scores.cpu().double(), pairwise_scores_all(unary, pairwise), rtol=1e-5, atol=1e-4)

    def test_is_captured_in_a_graph(self):
        unary, pairwise = (tensor.float().cuda() for tensor in make("normal", 30, 11))
        pairwise_by_enumeration(unary, pairwise)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            z = pairwise_by_enumeration(unary, pairwise)
        others = [tensor.float().cuda() for tensor in make("balanced", 30, 11)]
        unary.copy_(others[0])
        pairwise.copy_(others[1])
        graph.replay()
        assert torch.equal(z, pairwise_by_enumeration(*others))

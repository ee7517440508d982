"""The fused kernel against PyTorch: on a GPU, or by Triton's interpreter where Triton is installed without one."""

import importlib
import os

import pytest
import torch

from argrad import Direct, PairwiseBits

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)

fused = importlib.import_module("argrad.solvers.pairwise_fused")
latent = importlib.import_module("argrad.latents.pairwise_bits")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def problem(n: int, *, shared: bool = False, impossible: bool = False, batch: tuple[int, ...] = (3,)):
    generator = torch.Generator().manual_seed(n)
    unary = torch.randn(*batch, n, generator=generator)
    pairwise = torch.randn(*(() if shared else batch), n, n, generator=generator)
    if impossible:
        unary[..., 2] = unary[..., n - 1] = -torch.inf
    noise = PairwiseBits(unary, pairwise).draw_noise(generator=generator)
    return tuple(tensor.to(DEVICE) for tensor in (unary, pairwise, noise))


@pytest.mark.parametrize("n", [8, 9, 12, 15, 17])
@pytest.mark.parametrize("kind", ["own", "shared", "impossible", "two batch dimensions", "empty", "slices"])
def test_sample_kl_and_gradient(n, kind):
    batch = {"two batch dimensions": (2, 2), "empty": (0,)}.get(kind, (3,))
    unary, pairwise, noise = problem(n, shared=kind == "shared", impossible=kind == "impossible", batch=batch)
    if kind == "slices":  # of the wider rows that one layer gives
        rows = torch.cat([unary, pairwise.flatten(1)], 1)
        unary, pairwise = rows[:, :n], rows[:, n:].unflatten(1, (n, n))
    z, kl, to_unary, to_pairwise = fused.sample_and_kl(unary, pairwise, noise)
    leaves = unary.double().requires_grad_(), pairwise.double().requires_grad_()
    q = PairwiseBits(*leaves)
    q.kl().sum().backward()
    assert torch.equal(z.double(), PairwiseBits(unary.double(), pairwise.double()).sample(noise=noise.double()))
    torch.testing.assert_close(kl.double(), q.kl().detach(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(to_unary.double(), leaves[0].grad, atol=1e-4, rtol=1e-4)
    theirs = leaves[1].grad
    if kind == "shared":
        to_pairwise = to_pairwise.sum(0)
    torch.testing.assert_close(to_pairwise.double(), theirs, atol=1e-4, rtol=1e-4)
    alone = fused.sample_and_kl(unary, pairwise, noise, gradient=False)[0]
    assert torch.equal(alone, z)


@pytest.mark.parametrize("shared", [False, True])
def test_a_training_step_is_the_same(monkeypatch, shared):
    unary, pairwise, noise = problem(10, shared=shared, batch=(4,))
    wanted = torch.randn(10, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    results = []
    for use in (False, True):
        calls = []

        def can_fuse(*scores, use=use, calls=calls):
            calls.append(use)
            return use

        monkeypatch.setattr(latent, "can_fuse", can_fuse)
        leaves = unary.clone().requires_grad_(), pairwise.clone().requires_grad_()
        q = PairwiseBits(*leaves)
        q.differentiated_once = True
        losses = Direct(0.5)(q, lambda z: ((z - wanted).square()).sum(-1), noise=noise) + 3 * q.kl()
        losses.sum().backward()
        assert calls
        results.append((losses.detach(), *(leaf.grad for leaf in leaves)))
    for plain, quick in zip(*results, strict=True):
        torch.testing.assert_close(quick, plain, atol=1e-4, rtol=1e-4)


def test_what_it_takes():
    unary, pairwise, _ = problem(8)
    assert fused.can_fuse(unary, pairwise) == (DEVICE == "cuda")
    assert not fused.can_fuse(unary.double(), pairwise.double())
    assert not fused.can_fuse(unary[:, :7], pairwise[:, :7, :7])

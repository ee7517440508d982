"""Exact: closed forms, limits, and what it refuses."""

import pytest
import torch

from argrad import Bits, Categorical, Exact, Reconstruction, TableCost


def test_one_categorical(generator):
    logits = torch.randn(3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    costs = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    value = Exact()(Categorical(logits), TableCost(costs))
    p = logits.detach().softmax(-1)
    torch.testing.assert_close(value.detach(), (p * costs).sum(-1))
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    torch.testing.assert_close(gradient, p * (costs - (p * costs).sum(-1, keepdim=True)))


def test_bits_with_a_separable_cost(generator):
    logits = torch.randn(2, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(6, generator=generator, dtype=torch.float64)
    value = Exact()(Bits(logits), lambda z: (z * weights).sum(-1))
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    p = logits.detach().sigmoid()
    torch.testing.assert_close(gradient, p * (1 - p) * weights)


def test_shared_enumeration_equals_a_plain_function(generator):
    decoder = torch.nn.Linear(5, 7).double()
    x = torch.rand(3, 7, generator=generator, dtype=torch.float64)
    logits = torch.randn(3, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    shared = Reconstruction(x, decoder)
    results = []
    for cost in (shared, lambda z: shared(z)):
        value = Exact()(Bits(logits), cost)
        results.append((value, *torch.autograd.grad(value.sum(), (logits, *decoder.parameters()))))
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(first, second)


def test_too_many_states():
    with pytest.raises(ValueError, match=r"2\^30 structures.*LocalExpectation, Direct or Reinforce") as error:
        Exact()(Bits(torch.zeros(2, 30)), lambda z: z.sum(-1))
    assert "\n" not in str(error.value)
    assert not Exact().supports(Bits(torch.zeros(2, 30)))

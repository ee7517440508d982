"""What a remainder tells about attributes: nothing, something in its mean, something in its spread alone."""

import torch
from torch import Tensor

from argrad.models.attributes.dependence import dependence


def excess(remainder: Tensor, y: Tensor, generator: torch.Generator, orders: int = 50) -> Tensor:
    """The criterion beside what it is when attributes are dealt out at random: the share of those that are larger."""
    found = dependence(remainder, y)
    others = [dependence(remainder, y[torch.randperm(len(y), generator=generator)]) for _ in range(orders)]
    return (torch.stack(others) >= found).double().mean()


def test_notices_means_and_spreads_and_nothing_else(generator):
    y = torch.randint(2, (200, 3), generator=generator)
    noise = torch.randn(200, 4, generator=generator)
    assert excess(noise, y, generator) > 0.02
    assert excess(noise + 0.8 * y[:, :1], y, generator) == 0
    assert excess(noise * (1 + 2 * y[:, 1:2]), y, generator) == 0


def test_is_the_difference_of_kernel_means_for_a_balanced_attribute(generator):
    r = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    y = torch.tensor([[1], [1], [1], [0], [0], [0]])

    def mean_kernel(one: Tensor, other: Tensor) -> Tensor:
        apart = torch.stack([(a - b).square().sum() / 2 for a in one for b in other])
        return ((-apart).exp() + (-apart / 4).exp()).mean()

    on, off = r[:3], r[3:]
    distance = mean_kernel(on, on) + mean_kernel(off, off) - 2 * mean_kernel(on, off)
    torch.testing.assert_close(dependence(r, y), distance / 4)


def test_what_is_not_known_takes_no_part(generator):
    r = torch.randn(10, 3, generator=generator)
    y = torch.randint(2, (10, 2), generator=generator)
    y[0] = torch.tensor([1, 0])
    y[1] = torch.tensor([0, 1])
    some = y.clone()
    some[6:] = -1
    torch.testing.assert_close(dependence(r, some), dependence(r[:6], y[:6]) * (36 / 100))
    assert dependence(r, torch.full((10, 2), -1)) == 0


def test_gradient_is_finite_where_remainders_are_equal():
    r = torch.zeros(4, 2, requires_grad=True)
    dependence(r, torch.tensor([[1], [0], [1], [0]])).backward()
    assert r.grad is not None
    assert r.grad.isfinite().all()

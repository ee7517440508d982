"""The attribute model against enumeration: what is known is held, gradients are right, the bound is one."""

import math

import pytest
import torch
from torch import Tensor, nn

from argrad import Bits, Direct, Exact, Gaussian, PairwiseBits, Unavailable
from argrad.estimators import Estimator
from argrad.estimators.by_name import estimator_by_name
from argrad.models import AttributeModule
from argrad.models.attributes.dependence import dependence
from argrad.models.attributes.module import convolutional_networks, hold, log_prob_of_known, mixed

SCORES = torch.tensor([0.4, -0.7, 0.2])
PAIRS = torch.tensor([1.1, -0.8, 0.5])  # of attributes 01, 02, 12


class Given(nn.Module):
    """An encoder that answers the same numbers to all."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.outputs = nn.Parameter(outputs)

    def forward(self, x: Tensor) -> Tensor:
        answer = self.outputs.expand(len(x), -1).clone()
        if answer.requires_grad:
            answer.retain_grad()
        self.answer = answer
        return answer


def tiny(estimator: Estimator, *, latent: str = "bits", logvar: float = -12.0, **options) -> AttributeModule:
    """Three attributes and a remainder of one number, linear decoder, pictures of four pixels."""
    torch.manual_seed(0)
    pairs = PAIRS if latent == "pairwise" else torch.zeros(0)
    encoder = Given(torch.cat([SCORES, pairs, torch.tensor([0.3, logvar])]))
    decoder = nn.Linear(4, 4)
    settings = {"likelihood": "gaussian", "attributes": 3, "remainder": 1, **options}
    return AttributeModule(encoder, decoder, estimator, latent=latent, **settings).double()


def pictures(number: int) -> Tensor:
    x = torch.randn(1, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x.expand(number, 4)


def unknown(number: int, *values: int) -> Tensor:
    return torch.tensor([values or (-1, -1, -1)]).expand(number, 3)


def gradients(module: AttributeModule, y: tuple[int, ...], number: int, seed: int = 0) -> Tensor:
    """The gradient at the encoder's answer of each of many equal examples, ``[number, outputs]``."""
    module.zero_grad()
    generator = torch.Generator().manual_seed(seed)
    module.losses(pictures(number), unknown(number, *y), generator=generator).sum().backward()
    grad = module.encoder.answer.grad
    assert grad is not None
    return grad


def posterior(latent: str, rows: int = 1) -> Bits | PairwiseBits:
    return tiny(Exact(), latent=latent).posterior(pictures(rows))[0]


@pytest.mark.parametrize("latent", ["bits", "pairwise"])
@pytest.mark.parametrize("y", [(-1, -1, -1), (1, -1, -1), (-1, 0, 1), (0, 1, 1)])
def test_what_is_known_is_held_and_the_rest_follows(latent, y):
    q, y = posterior(latent), torch.tensor([y])
    agrees = ((q.enumerate() == y[0]) | (y[0] < 0)).all(-1)
    joint = q.log_prob_all()[0].exp() * agrees
    torch.testing.assert_close(hold(q, y).log_prob_all()[0].exp(), joint / joint.sum(), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(log_prob_of_known(q, y)[0], joint.sum().log())


@pytest.mark.parametrize("latent", ["bits", "pairwise"])
def test_direct_teaches_what_cross_entropy_teaches(latent):
    y, number = (1, -1, 0), 40_000
    module = tiny(Exact(), latent=latent, label_weight=2.0)
    q, _ = module.posterior(pictures(number))
    module.label_losses(q, unknown(number, *y), generator=torch.Generator().manual_seed(2)).sum().backward()
    found = module.encoder.answer.grad
    module = tiny(Exact(), latent=latent, label_weight=2.0, label_loss="cross-entropy")
    q, _ = module.posterior(pictures(1))
    module.label_losses(q, unknown(1, *y)).sum().backward()
    exact = module.encoder.answer.grad[0]
    assert exact.abs().max() > 0.3
    error = found.std(0) / math.sqrt(number)
    assert ((found.mean(0) - exact).abs() <= 4.5 * error + 1e-9).all()


def test_label_losses_report_the_cross_entropy():
    q, y = posterior("pairwise", 2), torch.tensor([[1, -1, 0], [-1, -1, -1]])
    values = [
        tiny(Exact(), latent="pairwise", label_loss=kind).label_losses(q, y, generator=torch.Generator().manual_seed(0))
        for kind in ("direct", "cross-entropy")
    ]
    torch.testing.assert_close(values[0], values[1])
    assert values[0][1] == 0


@pytest.mark.parametrize("latent", ["bits", "pairwise"])
@pytest.mark.parametrize("y", [(-1, -1, -1), (-1, 1, -1)])
def test_exact_gradient_is_that_of_the_sum_over_attributes(latent, y):
    module = tiny(Exact(), latent=latent, label_weight=1.0, label_loss="cross-entropy")
    found = gradients(module, y, 1)[0]
    outputs = module.encoder.outputs.detach().clone().requires_grad_()
    q, r = module.split(outputs.unsqueeze(0))
    known = torch.tensor([y])
    generator = torch.Generator().manual_seed(0)
    remainder = r.rsample(generator=generator)
    states = q.enumerate()
    agrees = ((states == known) | (known < 0)).all(-1)
    log_joint = q.log_prob_all()[0].masked_fill(~agrees, -torch.inf)
    log_posterior = log_joint - log_joint.logsumexp(0)
    means = module.decoder(torch.cat([2 * states - 1, remainder.expand(len(states), 1)], 1))
    cost = 0.5 * (pictures(1) - means).square().sum(1) + 2 * math.log(2 * math.pi)
    parts = log_posterior.exp() * (cost + torch.where(agrees, log_posterior, 0.0) + 3 * math.log(2))
    (parts.sum() + r.kl().sum() - log_joint.logsumexp(0)).backward()
    torch.testing.assert_close(found, outputs.grad, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["local-expectation", "reinforce", "rebar", "relax", "arm", "disarm"])
def test_unbiased_estimators_agree_with_enumeration(name):
    number = 20_000
    exact = gradients(tiny(Exact(), label_loss="cross-entropy"), (-1, 1, -1), 1)[0]
    module = tiny(estimator_by_name(name), label_loss="cross-entropy")
    if name == "relax":  # its network is sized by its first call
        gradients(module, (-1, 1, -1), 2)
        module.double()
    found = gradients(module, (-1, 1, -1), number, seed=3)[:, :3]
    error = found.std(0) / math.sqrt(number)
    # The remainder is known to 1 in 400, which moves the cost by less than 0.01.
    assert ((found.mean(0) - exact[:3]).abs() <= 4.5 * error + 0.01).all()
    assert exact[:3].abs().min() > 0.05


@pytest.mark.parametrize("latent", ["bits", "pairwise"])
def test_direct_is_close_to_enumeration(latent):
    number = 20_000
    changes = "all" if latent == "pairwise" else "single"
    exact = gradients(tiny(Exact(), latent=latent, label_loss="cross-entropy"), (-1, 1, -1), 1)[0]
    module = tiny(Direct(0.2, two_sided=True, changes=changes), latent=latent, label_loss="cross-entropy")
    found = gradients(module, (-1, 1, -1), number, seed=4)
    error = found.std(0) / math.sqrt(number)
    assert ((found.mean(0) - exact).abs()[:3] <= 4.5 * error[:3] + 0.05).all()


def test_decoder_gets_the_gradient_of_enumeration():
    found = []
    for estimator, number in ((Exact(), 1), (estimator_by_name("reinforce"), 20_000)):
        module = tiny(estimator)
        gradients(module, (-1, 1, -1), number)
        found.append(module.decoder.weight.grad / number)
    torch.testing.assert_close(found[1], found[0], rtol=0.05, atol=0.05)


def test_an_example_that_is_known_needs_no_estimator():
    class Refuses(Estimator):
        unbiased = needs_cost_gradient = False

        def forward(self, *args, **kwargs):
            raise AssertionError("was called")

        draw_noise = cost_evaluations = supports = forward

    module = tiny(Refuses(), label_loss="cross-entropy", label_weight=1.0)
    y = unknown(2, 1, 0, 1)
    found = module.losses(pictures(2), y, generator=torch.Generator().manual_seed(0))
    q, r = module.posterior(pictures(2))
    remainder = r.rsample(generator=torch.Generator().manual_seed(0))
    means = module.decoder(torch.cat([2 * y.double() - 1, remainder], 1))
    cost = 0.5 * (pictures(2) - means).square().sum(1) + 2 * math.log(2 * math.pi)
    expected = cost + r.kl() + 3 * math.log(2) - log_prob_of_known(q, y)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_known_and_unknown_examples_go_together():
    module = tiny(Exact(), label_loss="cross-entropy")
    y = torch.tensor([[1, 0, 1], [-1, 0, 1], [0, 0, 0], [-1, -1, -1]])
    together = module.losses(pictures(4), y, generator=torch.Generator().manual_seed(5))
    noise = torch.Generator().manual_seed(5)
    drawn = torch.randn(4, 1, generator=noise, dtype=torch.float64)
    for row in range(4):
        q, r = module.posterior(pictures(1))
        held = hold(q, y[row : row + 1])
        cost = module.cost(pictures(1), r.rsample(noise=drawn[row : row + 1]))
        alone = Exact()(held, cost) + held.kl(module.prior()) + r.kl() - 20 * log_prob_of_known(q, y[row : row + 1])
        torch.testing.assert_close(together[row], alone[0], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("latent", ["bits", "pairwise"])
def test_bound_is_above_the_integral(latent):
    module = tiny(Exact(), latent=latent, logvar=-0.5)
    points = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    density = (-0.5 * points.square() - 0.5 * math.log(2 * math.pi)).exp() * (points[1] - points[0])
    states = posterior(latent).enumerate().double()
    cost = torch.stack(
        [module.cost(pictures(1).expand(4001, 4), points[:, None])(state.expand(4001, 3)) for state in states]
    )
    exact = -((-cost).exp() * density).sum(1).mean().log()  # the prior starts uniform
    bounds = module.negative_elbo(pictures(20_000), generator=torch.Generator().manual_seed(6))
    assert bounds.mean() - 4 * bounds.std() / math.sqrt(20_000) > exact
    known = module.negative_elbo(pictures(2000), unknown(2000, 1, 0, 1), generator=torch.Generator().manual_seed(6))
    log_joint = -((-cost[5]).exp() * density).sum().log() + 3 * math.log(2)
    assert known.mean() > log_joint


def test_perturb_has_gradients_and_no_bound():
    module = tiny(Direct(0.5), latent="pairwise", law="perturb")
    found = gradients(module, (1, -1, -1), 500)
    assert found[:, :6].abs().sum(0).min() > 0  # scores and pairs
    with pytest.raises(Unavailable):
        module.negative_elbo(pictures(2))
    assert module.validation_losses(pictures(2), unknown(2, 1, -1, -1)).isfinite().all()
    probabilities = module.probabilities(pictures(1), generator=torch.Generator().manual_seed(0))
    assert ((probabilities > 0) & (probabilities < 1)).all()
    attributes = module.draw_attributes(200, generator=torch.Generator().manual_seed(0))
    assert (attributes.mean(0) - 0.5).abs().max() < 0.2


@pytest.mark.parametrize("latent", ["bits", "pairwise"])
def test_labels_only_leaves_the_rest_alone(latent):
    module = tiny(Exact(), latent=latent)
    module.losses(pictures(2), unknown(2), labels_only=True).sum().backward()
    found = module.encoder.answer.grad[:, :-2]
    assert (found == 0).all()
    assert module.decoder.weight.grad.abs().min() > 0
    assert gradients(module, (), 2)[:, :-2].abs().min() > 0


def test_switching_does_not_teach_the_encoder_to_read():
    torch.manual_seed(3)
    module = AttributeModule(*convolutional_networks((8, 8), 2, 3), Exact(), attributes=2, remainder=3)
    x, y = torch.rand(6, 8, 8), torch.tensor([[0, 1], [1, 0], [-1, 1], [1, 1], [0, 0], [-1, -1]])
    q, r = module.posterior(x)
    loss = module.switch_losses(hold(q, y), r, r.mean.detach(), y, generator=torch.Generator().manual_seed(0))
    loss.sum().backward()
    assert loss.shape == (6,)
    assert all(parameter.grad is None for parameter in module.encoder.parameters())
    assert all(parameter.grad.abs().sum() > 0 for parameter in module.decoder.parameters())


def test_switching_mixes_attributes_and_keeps_the_remainder():
    module = tiny(Exact(), likelihood="gaussian")
    seen = []
    module.decoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    y = torch.tensor([[0, 0, 0], [1, 1, 1]]).repeat(50, 1)
    q, r = module.posterior(pictures(100))
    own = torch.full((100, 1), 7.0, dtype=torch.float64)
    module.switch_losses(hold(q, y), r, own, y, generator=torch.Generator().manual_seed(0))
    attributes, remainder = seen[0].split([3, 1], 1)
    assert (remainder == 7).all()
    assert (attributes == attributes[:, :1]).all()  # they come together, from one image
    assert 20 < (attributes[:, 0] != 2 * y[:, 0] - 1).sum() < 80
    assert (attributes == 1).sum() == 150


def test_mixed_remainders_lie_between_two_images_and_are_as_spread(generator):
    logvar = torch.tensor([-1.0, 1.0]).repeat(1000)[:, None].expand(2000, 2)
    mean, own = torch.randn(2, 2000, 2, generator=generator)
    q, remainder = mixed(Gaussian(mean, logvar), own, generator=torch.Generator().manual_seed(0))
    again, same = mixed(Gaussian(own, logvar), mean, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(again.mean, remainder)  # means and samples are mixed alike
    torch.testing.assert_close(same, q.mean)
    assert (q.logvar >= logvar).all()
    wide = (q.logvar == 1).all(1).double().mean().item()
    assert abs(wide - 0.75) < 4 * (0.75 * 0.25 / 2000) ** 0.5  # both are narrow one time out of four
    assert ((remainder.var(0) - 1).abs() < 4 * (2 / 2000) ** 0.5).all()
    _, corners = mixed(Gaussian(torch.eye(4), torch.zeros(4, 4)), torch.eye(4), generator=generator)
    two = corners[(corners > 1e-6).sum(1) == 2]
    assert len(two) > 0
    torch.testing.assert_close(two.square().sum(1), torch.ones(len(two)))


def test_switching_takes_mixed_remainders_where_asked():
    module = tiny(Exact(), logvar=0.0)
    seen = []
    module.decoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][:, 3]))
    y = unknown(100, 0, 1, 1)
    for asked in (False, True):
        generator = torch.Generator().manual_seed(0)
        module.losses(pictures(100), y, switch_weight=1.0, switch_mixed=asked, generator=generator)
    reconstructed, switched, same, between = seen
    assert torch.equal(reconstructed, switched)
    assert torch.equal(reconstructed, same)
    assert (between - same).abs().max() > 0.5


def test_the_encoder_reads_a_view_of_images_and_of_switched_ones():
    torch.manual_seed(3)
    module = AttributeModule(*convolutional_networks((8, 8), 2, 3), Exact(), attributes=2, remainder=3).eval()
    x, y = torch.rand(6, 8, 8), torch.tensor([[0, 1], [1, 0], [0, 1], [1, 1], [0, 0], [1, 1]])
    seen = []

    def half(images: Tensor) -> Tensor:
        seen.append(images.detach())
        return images / 2

    def losses(**view) -> Tensor:
        return module.losses(x, y, switch_weight=1.0, **view, generator=torch.Generator().manual_seed(0))

    found = losses(view=half)
    assert torch.equal(seen[0], x)
    assert seen[1].shape == x.shape
    assert (found - losses()).abs().min() > 1e-4


def test_independence_is_added_once_and_teaches_the_remainder_alone():
    module = tiny(Exact(), logvar=0.0, label_loss="cross-entropy")
    y = torch.tensor([[0, 0, 0], [1, 1, 1]]).repeat(8, 1)
    found = []
    for weight in (0.0, 5.0):
        module.zero_grad()
        losses = module.losses(pictures(16), y, independence_weight=weight, generator=torch.Generator().manual_seed(0))
        losses.mean().backward()
        found.append((losses.detach(), module.encoder.answer.grad, module.decoder.weight.grad))
    remainder = module.posterior(pictures(16))[1].rsample(generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found[1][0] - found[0][0], (5 * dependence(remainder, y)).detach().expand(16))
    assert torch.equal(found[1][1][:, :3], found[0][1][:, :3])  # scores of the attributes
    assert (found[1][1][:, 3] - found[0][1][:, 3]).abs().max() > 1e-3  # the mean of the remainder
    assert torch.equal(found[1][2], found[0][2])


def test_networks_of_odd_sizes_and_colours():
    for shape in ((8, 8), (9, 15), (3, 20, 13)):
        encoder, decoder = convolutional_networks(shape, 3, 2, "pairwise")
        assert encoder(torch.zeros(2, *shape)).shape == (2, AttributeModule.encoder_outputs(3, 2, "pairwise"))
        assert decoder(torch.zeros(2, 5)).shape == (2, *shape)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"latent": "bit"}, "latent must be 'bits' or 'pairwise', got 'bit'"),
        ({"attributes": 0}, "at least 1"),
        ({"label_weight": 0.0}, "positive"),
        ({"law": "perturb"}, 'goes with latent="pairwise"'),
    ],
)
def test_wrong_settings_are_refused(options, words):
    settings = {"attributes": 2, "remainder": 1, **options}
    with pytest.raises(ValueError, match=words):
        AttributeModule(nn.Identity(), nn.Identity(), Exact(), **settings)


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r"must give \[B, 5\] numbers, got \(2, 4\)"):
        tiny(Exact()).split(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="at least 8 by 8"):
        convolutional_networks((7, 8), 1, 1)
    with pytest.raises(ValueError, match="multiple of 8"):
        convolutional_networks((8, 8), 1, 1, channels=12)

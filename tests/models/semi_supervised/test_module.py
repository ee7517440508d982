"""The mixed model: every shortcut against the formula written out, one class at a time."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.functional import binary_cross_entropy_with_logits, leaky_relu

from argrad.models import SemiSupervisedModule
from argrad.models.semi_supervised.module import member, stack

SIZES = (12, 3, 4)
WIDTHS = (9, 8, 7, 6)


def make(seed: int = 0, **options) -> SemiSupervisedModule:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SemiSupervisedModule(*SIZES, hidden=WIDTHS, **options).double()


def inputs(*lead: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(*lead, 5, 12, generator=generator, dtype=torch.float64)
    return x, torch.randn(*lead, 5, 3, 4, generator=generator, dtype=torch.float64)


def written_out(module: SemiSupervisedModule, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The negative ELBO with a loop over classes, masked blocks of full length, and nothing shared."""

    def linear(layer, values):
        return values @ layer.weight.T + layer.bias

    trunk = leaky_relu(linear(module.trunk_enter, x), 0.2)
    trunk = leaky_relu(linear(module.trunk_leave, trunk), 0.2)
    scores = linear(module.class_leave, leaky_relu(linear(module.class_enter, trunk), 0.2))
    log_q = scores.log_softmax(-1)
    total = (log_q.exp() * (log_q + torch.tensor(3.0).double().log())).sum(-1)
    wide = leaky_relu(linear(module.gaussian_enter, trunk), 0.2)
    for c in range(3):
        own = wide[:, 7 * c : 7 * (c + 1)]
        mean, logvar = linear(module.gaussian_leave, leaky_relu(linear(module.gaussian_hidden, own), 0.2)).chunk(2, -1)
        logvar = 10 * (logvar / 10).tanh()
        kl = -0.5 * (1 + logvar - mean**2 - logvar.exp()).sum(-1)
        block = torch.zeros(5, 12, dtype=torch.float64)
        block[:, 4 * c : 4 * (c + 1)] = mean + noise[:, c] * (logvar / 2).exp()
        output = linear(module.decoder_leave, leaky_relu(linear(module.decoder_enter, block), 0.2))
        if module.likelihood == "bernoulli":
            cost = binary_cross_entropy_with_logits(output, x, reduction="none").sum(-1)
        else:
            cost = -torch.distributions.Normal(output, module.scale).log_prob(x).sum(-1)
        total = total + log_q.exp()[:, c] * (cost + kl)
    return total


@pytest.mark.parametrize("options", [{}, {"likelihood": "gaussian", "scale": 0.3}])
def test_the_bound_is_what_a_loop_over_classes_gives(options):
    module, (x, noise) = make(**options), inputs()
    torch.testing.assert_close(module.negative_elbo(x, noise=noise), written_out(module, x, noise))


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_one_class_is_a_column_of_all(likelihood):
    module, (x, noise) = make(likelihood=likelihood), inputs()
    vectors = module.encode(x)[1].rsample(noise=noise)
    table = module.costs_of_all(x, vectors)
    for c in range(3):
        z = nn.functional.one_hot(torch.full((5,), c), 3).double()
        torch.testing.assert_close(module.costs(x, module.decode_hidden(z, vectors)), table[:, c])
        one = module.gaussian_of(module.trunk(x), z)
        torch.testing.assert_close(one.mean, module.encode(x)[1].mean[:, c])


def test_stacked_models_are_the_models():
    modules, (x, noise) = [make(seed) for seed in range(4)], inputs(4)
    stacked = stack(modules)
    together = stacked.negative_elbo(x, noise=noise)
    alone = torch.stack([m.negative_elbo(a, noise=b) for m, a, b in zip(modules, x, noise, strict=True)])
    torch.testing.assert_close(together, alone)
    again = member(stacked, 2)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), modules[2].parameters(), strict=True))


def test_vmap_over_parameters():
    modules, (x, noise) = [make(seed) for seed in range(4)], inputs(4)
    stacked = stack(modules)
    parameters = {name: tensor.detach() for name, tensor in stacked.named_parameters()}

    class Bound(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = modules[0]

        def forward(self, x, noise):
            return self.inner.negative_elbo(x, noise=noise)

    def bound(own, x, noise):
        return functional_call(Bound(), {f"inner.{name}": tensor for name, tensor in own.items()}, (x, noise))

    torch.testing.assert_close(vmap(bound)(parameters, x, noise), stacked.negative_elbo(x, noise=noise))


def test_samples_are_those_of_their_class():
    module = make()
    noise = torch.randn(3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    drawn = module.sample(torch.tensor([2, 0, 2]), noise=noise)
    block = torch.zeros(12, dtype=torch.float64)
    block[8:] = noise[0]
    hidden = leaky_relu(module.decoder_enter.weight @ block + module.decoder_enter.bias, 0.2)
    expected = (module.decoder_leave.weight @ hidden + module.decoder_leave.bias).sigmoid()
    torch.testing.assert_close(drawn[0], expected)
    assert drawn.shape == (3, 12)
    assert not drawn.requires_grad
    assert module.sample(torch.tensor([1]), generator=torch.Generator().manual_seed(0)).shape == (1, 12)


def test_dropout_is_random_in_train_mode_only():
    module, (x, noise) = make(dropout=0.5), inputs()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        assert (module.negative_elbo(x, noise=noise) != module.negative_elbo(x, noise=noise)).any()
    module.eval()
    assert torch.equal(module.negative_elbo(x, noise=noise), module.negative_elbo(x, noise=noise))


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0, 3, 4), {}, "features >= 1"),
        ((5, 1, 4), {}, "classes >= 2"),
        ((5, 3, 4), {"hidden": (3, 2, 0, 4)}, "hidden widths >= 1"),
        ((5, 3, 4), {"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ((5, 3, 4), {"likelihood": "poisson"}, 'likelihood must be "bernoulli" or "gaussian"'),
        ((5, 3, 4), {"scale": 0.0}, "scale must be a positive number"),
    ],
)
def test_wrong_sizes_are_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        SemiSupervisedModule(*arguments, **options)

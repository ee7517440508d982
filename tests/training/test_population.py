"""A population trains as its members would one by one."""

import itertools

import pytest
import torch

from argrad import Direct, Exact, GumbelSoftmax
from argrad.experiments.bernoulli_mixture import fit_mixture, mixture_nll
from argrad.models.discrete_vae.module import DiscreteVAEModule, default_networks
from argrad.training import Decay
from argrad.training.population import Member, Population, spread, stack_networks
from argrad.training.population_loop import train_population

PIXELS, SEEDS = 20, (0, 1)
MIXED = {"direct and exact": ("direct", "exact"), "both relaxations": ("straight-through", "gumbel-softmax")}


def networks(values: int, seed: int):
    torch.manual_seed(100 * seed + values)
    return default_networks((PIXELS,), values, hidden=16)


def make_members(method: str, rate: float) -> list[Member]:
    one, other = MIXED.get(method, (method, method))
    return [
        Member(4, one),
        Member(7, other, epsilon=0.3),
        Member(5, one, epsilon=0.1, learning_rate=rate, kl_weight=0.5),
    ]


def estimator_of(member: Member):
    if member.method == "exact":
        return Exact()
    if member.method == "direct":
        return Direct(member.epsilon)
    return GumbelSoftmax(member.temperature, straight_through=member.method == "straight-through")


@pytest.mark.parametrize("rate", [1e-3, 3e-3], ids=["one rate", "two rates"])
@pytest.mark.parametrize("method", ["exact", "direct", "gumbel-softmax", "straight-through", *MIXED])
def test_equals_one_by_one(method, rate, generator):
    members = make_members(method, rate)
    population = Population(stack_networks(networks, members, SEEDS), members)
    single = {}
    for s, seed in enumerate(SEEDS):
        for g, member in enumerate(members):
            module = DiscreteVAEModule(*networks(member.values, seed), estimator_of(member), values=member.values)
            single[s, g] = (module, torch.optim.Adam(module.parameters(), member.learning_rate))
    x = (torch.rand(len(SEEDS), 30, PIXELS, generator=generator) > 0.5).float()
    for step in range(50):
        noise = -torch.empty(len(SEEDS), 3, 30, 7).exponential_(generator=generator).log()
        before = population.epsilon.clone(), population.adaptations.clone()
        gradients, losses = population.gradients(x, noise, measure=True)
        together = losses.mean(-1)
        population.epsilon.copy_(before[0])  # the look is undone
        population.adaptations.copy_(before[1])
        population.step(x, noise)
        for (s, g), (module, optimiser) in single.items():
            member = members[g]
            loss = module.losses(x[s], kl_weight=member.kl_weight, noise=noise[s, g, :, : member.values]).mean()
            optimiser.zero_grad()
            loss.backward()
            if step == 0:
                torch.testing.assert_close(
                    gradients["enter"][s, :, g], module.encoder[1].weight.grad.T, rtol=1e-5, atol=1e-5
                )
                torch.testing.assert_close(
                    gradients["codes"][s, g, :, : member.values], module.decoder[1].weight.grad, rtol=1e-5, atol=1e-5
                )
            optimiser.step()
            assert float(together[s, g]) == pytest.approx(loss.item(), abs=1e-4)
    elbo, nll = population.evaluate(x[0])
    for g in range(3):
        module = single[0, g][0]
        assert float(elbo[0, g]) == pytest.approx(float(module.negative_elbo(x[0]).mean()), abs=1e-4)
        assert float(nll[0, g]) == pytest.approx(float(module.negative_log_likelihood(x[0]).mean()), abs=1e-4)


@pytest.mark.parametrize("method", ["exact", "direct", "gumbel-softmax", "straight-through"])
def test_padding_changes_nothing(method, generator):
    """A member alone has no impossible codes; beside a larger one it has."""
    x = (torch.rand(len(SEEDS), 30, PIXELS, generator=generator) > 0.5).float()
    noise = -torch.empty(len(SEEDS), 2, 30, 7).exponential_(generator=generator).log()
    pair = [Member(4, method, epsilon=0.3, kl_weight=0.5), Member(7, method)]
    padded = Population(stack_networks(networks, pair, SEEDS), pair)
    alone = Population(stack_networks(networks, pair[:1], SEEDS), pair[:1])
    assert padded.padded
    assert not alone.padded
    gradients, losses = alone.gradients(x, noise[:, :1, :, :4], measure=True)
    all_gradients, with_others = padded.gradients(x, noise, measure=True)
    torch.testing.assert_close(losses, with_others[:, :1])
    torch.testing.assert_close(gradients["scores"], all_gradients["scores"][:, :1, :, :4])
    torch.testing.assert_close(gradients["leave"], all_gradients["leave"][:, :1], atol=1e-6, rtol=1e-5)
    assert (all_gradients["codes"][:, 0, :, 4:] == 0).all()


def test_both_kinds_do_not_mix():
    members = [Member(4, "exact"), Member(4, "gumbel-softmax")]
    with pytest.raises(ValueError, match="not both"):
        Population(stack_networks(networks, members, SEEDS), members)


def clusters(generator: torch.Generator, number: int) -> torch.Tensor:
    """Bits from four well separated prototypes."""
    prototypes = torch.tensor([[0.9] * 10 + [0.1] * 10, [0.1] * 10 + [0.9] * 10, [0.9, 0.1] * 10, [0.1, 0.9] * 10])
    chosen = torch.randint(0, 4, (number,), generator=generator)
    return (torch.rand(number, PIXELS, generator=generator) < prototypes[chosen]).to(torch.uint8)


def test_trains_revives_and_keeps_the_best(generator):
    members = [
        Member(4, "exact", learning_rate=0.01),
        Member(8, "direct", epsilon=Decay(1.0, 0.1, 0.01, 5), revive_until=6, learning_rate=0.01),
    ]
    population = Population(stack_networks(networks, members, SEEDS), members)
    with torch.no_grad():
        population.weights["scores_bias"][:, 1, 3:] -= 20  # five dead codes
    train, validation, test = (clusters(generator, number) for number in (1000, 200, 200))
    before = population.evaluate(validation)[0]
    history = train_population(population, train, validation, test, epochs=12, batch_size=50)
    assert history.steps == 240
    assert (history.revived[:, 0] == 0).all()
    assert (history.revived[:, 1] >= 5).all()
    assert (population.usage(train)[:, 1] > 0.01).sum(-1).min() > 3
    assert float(population.epsilon[0, 1]) == pytest.approx(Decay(1.0, 0.1, 0.01, 5)(239))
    best = population.evaluate(validation, history.best)[0]
    torch.testing.assert_close(best, history.validation.min(0).values)
    assert (best < before - 2).all()
    # The EM fit of the same mixture is what the likelihood can reach.
    logits = fit_mixture(train, 4, restarts=4, iterations=50)
    floor = mixture_nll(test, logits).min()
    nll = population.evaluate(test, history.best)[1]
    assert (nll[:, 0] > floor - 0.2).all()
    assert nll[:, 0].min() < floor + 1.0


def test_mixture_likelihood_rises_with_em(generator):
    train = clusters(generator, 500)
    scores = [
        mixture_nll(train, fit_mixture(train, 3, restarts=3, iterations=n, smoothing=1e-4)) for n in (1, 3, 10, 40)
    ]
    for earlier, later in itertools.pairwise(scores):
        assert (later <= earlier + 1e-3).all()


def test_reviving_splits_the_busy_however_many_are_dead():
    members = [Member(10, "exact", revive_until=5), Member(10, "exact")]
    population = Population(stack_networks(networks, members, SEEDS), members)
    with torch.no_grad():
        population.weights["scores_bias"][:, :, 1:] -= 30
    x = (torch.rand(200, PIXELS, generator=torch.Generator().manual_seed(0)) > 0.5).to(torch.uint8)
    assert population.revive(population.usage(x), 1, shake=0.0).tolist() == [[9, 0], [9, 0]]
    usage = population.usage(x)
    assert (usage[:, 0] > 0.06).all()  # one code in ten parts, each a half, a quarter … of it
    assert (usage[:, 1, 1:] < 1e-6).all()


def test_averaged_weights_are_the_moving_average(generator):
    members = [Member(4, "exact"), Member(5, "exact")]
    population = Population(stack_networks(networks, members, SEEDS), members, average=0.9)
    for name, tensor in population.averaged().items():
        assert torch.equal(tensor, population.weights[name])  # before the first step
    x = (torch.rand(len(SEEDS), 30, PIXELS, generator=generator) > 0.5).float()
    seen = []
    for _ in range(4):
        population.step(x)
        seen.append({name: tensor.detach().clone() for name, tensor in population.weights.items()})
    shares = torch.tensor([0.9**age for age in (3, 2, 1, 0)])
    for name, tensor in population.averaged().items():
        expected = sum(share * weights[name] for share, weights in zip(shares / shares.sum(), seen, strict=True))
        torch.testing.assert_close(tensor, expected)


def test_a_population_that_averages_is_judged_by_its_average():
    members = [Member(4, "exact")]
    population = Population(stack_networks(networks, members, SEEDS), members, average=0.99)
    x = (torch.rand(60, PIXELS, generator=torch.Generator().manual_seed(0)) > 0.5).to(torch.uint8)
    history = train_population(population, x, x, None, epochs=1, batch_size=10)
    expected = population.evaluate(x, population.averaged())[0]
    torch.testing.assert_close(history.validation[-1], expected)
    assert not torch.allclose(expected, population.evaluate(x)[0], atol=1e-6)


def test_the_spread_of_weights_is_each_models_own():
    members = [Member(4, "exact"), Member(7, "exact")]
    weights = stack_networks(networks, members, SEEDS)
    population = Population(weights, members)
    possible = ~population.impossible[:, :, 0, :].unsqueeze(-2)
    found = spread(weights["scores"], possible)
    for member, k in ((0, 4), (1, 7)):
        own = weights["scores"][:, member, :, :k]
        expected = own.flatten(1).std(1, correction=0)
        torch.testing.assert_close(found[:, member, 0, 0], expected)


def test_dead_codes_are_counted_among_a_members_own():
    members = [Member(4, "exact"), Member(5, "exact")]
    population = Population(stack_networks(networks, members, (0,)), members)
    usage = torch.tensor([[[0.5, 0.48, 0.02, 0.0, 0.0], [0.2, 0.2, 0.2, 0.2, 0.2]]])
    assert population.dead(usage).tolist() == [[[False, False, True, True, False], [False] * 5]]

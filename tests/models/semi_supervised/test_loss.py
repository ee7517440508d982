"""Eq. (9): every estimator against the exact gradient, labels by direct loss minimisation, and each term by itself."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from argrad import Categorical, Direct, Exact, GumbelSoftmax, Reinforce
from argrad.models import Augmentation, Objective, SemiSupervisedModule, Terms
from argrad.models.semi_supervised.loss import (
    Draws,
    MixedCost,
    balance_loss,
    consistency_losses,
    entropy_losses,
    labelled_bound,
)
from argrad.models.semi_supervised.module import stack

COPIES = 2000
CLASS_HEAD = ("class_enter", "class_leave")


def make(seed: int = 0) -> SemiSupervisedModule:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SemiSupervisedModule(6, 3, 2, hidden=(5, 5, 4, 4)).double()


def examples(number: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(number, 6, generator=generator, dtype=torch.float64).round()
    return x, torch.arange(number) % 3


def gradients(module: SemiSupervisedModule, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    names = [name for name, _ in module.named_parameters()]
    found = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
    zeros = [torch.zeros_like(parameter) for parameter in module.parameters()]
    return {name: z if g is None else g for name, g, z in zip(names, found, zeros, strict=True)}


def many(objective: Objective) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Gradients of many copies of one model, each with class noise of its own, and the exact ones."""
    module, (x, _) = make(), examples()
    exact = Objective(Exact(), objective.terms)
    draws = exact.draw(module, x, None, generator=torch.Generator().manual_seed(4))
    truth = gradients(module, exact(module, x, None, None, draws).total())
    copies = stack([module] * COPIES)
    wide = x.expand(COPIES, *x.shape)
    own = objective.draw(copies, wide, None, generator=torch.Generator().manual_seed(5))
    own = own._replace(vectors=draws.vectors.expand(COPIES, *draws.vectors.shape))
    return gradients(copies, objective(copies, wide, None, None, own).total().sum()), truth


def largest_z(samples: torch.Tensor, truth: torch.Tensor) -> float:
    """How many standard errors the mean is off, at worst; a coordinate that never varies must be right."""
    error = (samples.mean(0) - truth).abs()
    standard_error = samples.std(0) / math.sqrt(len(samples))
    return float((error / (standard_error + 1e-9)).max())


@pytest.mark.parametrize(
    ("estimator", "unbiased_for_classes"),
    [
        (Reinforce(samples=2), True),
        (Direct(0.05), False),
        (GumbelSoftmax(0.5, straight_through=True), False),
    ],
    ids=["reinforce", "direct", "straight-through"],
)
def test_gradients_against_the_exact_ones(estimator, unbiased_for_classes):
    """About 200 numbers are compared: 5 standard errors leave one chance in ten thousand."""
    found, truth = many(Objective(estimator))
    for name, expected in truth.items():
        if name.startswith("decoder") or unbiased_for_classes:
            assert largest_z(found[name], expected) < 5, name
        assert found[name].abs().sum() > 0


def test_direct_has_the_mean_that_theory_gives_it():
    """At the class scores: the gradient of −log E[exp(−ε c)] / ε, at any ε."""
    epsilon = 0.2
    found, _ = many(Objective(Direct(epsilon)))
    module, (x, _) = make(), examples()
    draws = Objective().draw(module, x, None, generator=torch.Generator().manual_seed(4))
    scores, gaussian = module.encode(x)
    q = Categorical(scores)
    costs = MixedCost(module, x, gaussian, draws.vectors).all(q).detach()
    tilted = -(scores.log_softmax(-1) - epsilon * costs).logsumexp(-1) / epsilon + q.kl()
    expected = gradients(module, tilted.mean())
    for name in expected:
        if name.startswith(CLASS_HEAD):
            assert largest_z(found[name], expected[name]) < 5, name


def test_the_relaxed_cost_mixes_the_blocks():
    """Same noise: Gumbel-softmax is the cost at softmax((h + γ) / τ), by hand."""
    module, (x, _) = make(), examples()
    objective = Objective(GumbelSoftmax(0.7))
    draws = objective.draw(module, x, None, generator=torch.Generator().manual_seed(6))
    scores, gaussian = module.encode(x)
    z = ((scores + draws.classes) / 0.7).softmax(-1)
    vectors = gaussian.rsample(noise=draws.vectors)
    output = module.decode((z.unsqueeze(-1) * 0 + 1).squeeze(-1), z.unsqueeze(-1) * vectors)
    cost = -(x * output.log() + (1 - x) * (1 - output).log()).sum(-1) + (z * gaussian.kl()).sum(-1)
    expected = cost + Categorical(scores).kl()
    torch.testing.assert_close(objective(module, x, None, None, draws).unlabelled, expected)


def test_direct_differentiates_only_the_sampled_class():
    module, (x, _) = make(), examples()
    scores, gaussian = module.encode(x)
    cost = MixedCost(module, x, gaussian, torch.zeros(4, 3, 2, dtype=torch.float64))
    q = Categorical(scores)
    changes = cost.single_changes(q, q.mode())
    assert not changes.requires_grad
    torch.testing.assert_close(changes, cost.all(q).detach())


def labelled_only(objective: Objective, copies: int) -> dict[str, torch.Tensor]:
    module, (x, labels) = make(), examples()
    stacked = stack([module] * copies)
    wide = x.expand(copies, *x.shape)
    draws = objective.draw(stacked, None, wide, generator=torch.Generator().manual_seed(7))
    losses = objective(stacked, None, wide, labels.expand(copies, 4), draws)
    assert losses.unlabelled.shape == (copies, 0)
    return gradients(stacked, losses.total().sum())


def test_labels_by_direct_loss_minimisation_are_cross_entropy_over_epsilon():
    terms = Terms(labelled=0.0)
    direct = labelled_only(Objective(terms=terms, label_epsilon=0.25), COPIES)
    exact = labelled_only(Objective(terms=terms, label_loss="cross-entropy"), 1)
    for name in direct:
        if name.startswith((*CLASS_HEAD, "trunk")):
            assert largest_z(direct[name], 4 * exact[name][0]) < 5, name
    assert Objective(terms=terms, label_epsilon=0.25).label_weight() == pytest.approx(4)


def test_a_loss_of_your_own():
    """Confusing 0 and 1 costs little: the gradient is that of the expected loss, up to Direct's bias."""
    table = torch.tensor([[0.0, 0.1, 1.0], [0.1, 0.0, 1.0], [1.0, 1.0, 0.0]], dtype=torch.float64)

    def loss(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((y @ table) * z).sum(-1)

    epsilon = 0.3
    found = labelled_only(Objective(terms=Terms(labelled=0.0), label_loss=loss, label_epsilon=epsilon), COPIES)
    module, (x, labels) = make(), examples()
    scores = module.class_scores(module.trunk(x))
    costs = table[labels]
    tilted = -(scores.log_softmax(-1) - epsilon * costs).logsumexp(-1) / epsilon
    expected = gradients(module, tilted.mean())
    for name in expected:
        if name.startswith(CLASS_HEAD):
            assert largest_z(found[name], expected[name]) < 5, name


def test_the_labelled_bound_is_the_cost_of_the_label():
    module, (x, labels) = make(), examples()
    noise = torch.randn(4, 2, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    target = nn.functional.one_hot(labels, 3).double()
    terms = Terms(reconstruction=2.0, gaussian_kl=3.0, class_kl=0.5)
    bound = labelled_bound(module, x, module.trunk(x), target, noise, terms)
    _, gaussian = module.encode(x)
    wide = noise.unsqueeze(-2).expand(4, 3, 2)
    vectors = gaussian.rsample(noise=wide)
    costs, kl = module.costs_of_all(x, vectors), gaussian.kl()
    expected = ((2 * costs + 3 * kl) * target).sum(-1) + 0.5 * math.log(3)
    torch.testing.assert_close(bound, expected)


def test_every_weight_weighs_its_own_term():
    module, (x, labels) = make(), examples()
    shifted = Augmentation(shift=0.3)

    def total(**weights: float) -> float:
        off = {"unlabelled": 0.0, "labelled": 0.0, "prediction": 0.0}
        objective = Objective(terms=Terms(**{**off, **weights}), augmentation=shifted, shape=(2, 3))
        draws = objective.draw(module, x, x, generator=torch.Generator().manual_seed(9))
        return float(objective(module, x, x, labels, draws).total().detach())

    for name in ("unlabelled", "labelled", "prediction", "entropy", "balance"):
        assert total(**{name: 2.0}) == pytest.approx(2 * total(**{name: 1.0}))
        assert total(**{name: 1.0}) > 0
    once = total(consistency=1.0, confidence=0.0)
    assert total(consistency=2.0, confidence=0.0) == pytest.approx(2 * once)
    assert once > 0
    assert total(consistency=1.0, confidence=1.0) == 0
    assert total() == 0


def test_consistency_counts_sure_images_only():
    sure, unsure = torch.tensor([[9.0, 0.0, 0.0], [0.2, 0.1, 0.0]])
    copies = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]], requires_grad=True)
    losses = consistency_losses(torch.stack([sure, unsure]), copies, 0.9)
    torch.testing.assert_close(losses.detach(), torch.tensor([-copies[0].log_softmax(-1)[0].item(), 0.0]))
    losses.sum().backward()
    assert copies.grad is not None
    assert copies.grad[1].abs().sum() == 0
    assert copies.grad[0, 0] < 0 < copies.grad[0, 1]


def test_entropy_and_balance():
    even, sure = torch.zeros(2, 4), torch.tensor([[50.0, 0, 0, 0], [0, 50.0, 0, 0]])
    torch.testing.assert_close(entropy_losses(Categorical(even)), torch.full((2,), math.log(4)))
    torch.testing.assert_close(entropy_losses(Categorical(sure)), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(balance_loss(Categorical(even)), torch.tensor(0.0))
    torch.testing.assert_close(balance_loss(Categorical(sure)), torch.tensor(math.log(2)), atol=1e-5, rtol=0)
    assert balance_loss(Categorical(torch.zeros(5, 2, 4))).shape == (5,)


def test_balance_has_a_gradient_where_a_class_underflows():
    scores = torch.tensor([[200.0, 0, 0, 0], [0, 150.0, 0, 0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(balance_loss(Categorical(scores)), scores)
    assert gradient.isfinite().all()


def test_a_batch_without_examples_is_balanced():
    scores = torch.zeros(5, 0, 4, requires_grad=True)
    assert torch.equal(balance_loss(Categorical(scores)), torch.zeros(5))
    module, (x, _) = make(), examples()
    objective = Objective(terms=Terms(balance=1.0, entropy=1.0))
    draws = objective.draw(module, x[:0], None, generator=torch.Generator().manual_seed(1))
    assert objective(module, x[:0], None, None, draws).total() == 0


def test_the_elbo_can_be_kept_from_the_classes():
    module, (x, _) = make(), examples()

    def found(share: float) -> dict[str, torch.Tensor]:
        objective = Objective(terms=Terms(to_classes=share))
        draws = objective.draw(module, x, None, generator=torch.Generator().manual_seed(1))
        return gradients(module, objective(module, x, None, None, draws).total())

    whole, half, none = found(1.0), found(0.5), found(0.0)
    for name in CLASS_HEAD:
        torch.testing.assert_close(half[f"{name}.weight"], whole[f"{name}.weight"] / 2)
        assert none[f"{name}.weight"].abs().sum() == 0
    torch.testing.assert_close(none["decoder_leave.weight"], whole["decoder_leave.weight"])


@pytest.mark.parametrize("estimator", [Exact(), Direct(0.1), GumbelSoftmax(0.5), Reinforce(samples=2)])
def test_vmap_equals_stacking(estimator):
    """The objective is a function of parameters, batch and draws: under vmap it gives what stacked models give."""
    modules, (x, labels) = [make(seed) for seed in range(3)], examples()
    stacked = stack(modules)
    terms = Terms(consistency=1.0, confidence=0.3, entropy=0.5, balance=0.5)
    objective = Objective(estimator, terms, augmentation=Augmentation(shift=0.3), shape=(2, 3))
    wide = x.expand(3, *x.shape)
    draws = objective.draw(stacked, wide, wide, generator=torch.Generator().manual_seed(2))
    expected = gradients(stacked, objective(stacked, wide, wide, labels.expand(3, 4), draws).total().sum())

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = modules[0]

        def forward(self, draws):
            return objective(self.inner, x, x, labels, draws).total()

    parameters = {name: tensor.detach() for name, tensor in stacked.named_parameters()}

    def total(own, draws):
        return functional_call(Whole(), {f"inner.{name}": tensor for name, tensor in own.items()}, (draws,))

    classes_dim = draws.classes.dim() - 3 if draws.classes.numel() else None
    found = vmap(grad(total), in_dims=(0, Draws(0, classes_dim, 0, 0, 0, 0)))(parameters, draws)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: Terms(entropy=-1.0), "entropy must be a number that is not negative, got -1.0"),
        (lambda: Terms(confidence=1.5), "confidence and to_classes are shares"),
        (lambda: Objective(label_loss="hinge"), "label_loss must be"),
        (lambda: Objective(terms=Terms(consistency=1.0)), "give an augmentation too"),
        (lambda: Objective(label_epsilon=0.0), "epsilon must be finite and not 0"),
    ],
)
def test_wrong_settings_are_refused(make_it, message):
    with pytest.raises(ValueError, match=message):
        make_it()


@pytest.mark.parametrize("wrong", [-1, 3])
def test_labels_that_are_no_class_are_refused(wrong):
    module, (x, labels) = make(), examples()
    objective = Objective()
    draws = objective.draw(module, x, x, generator=torch.Generator().manual_seed(1))
    labels[2] = wrong
    with pytest.raises(ValueError, match=rf"labels must be class numbers 0 … 2, got {wrong} in 1 of 4 places"):
        objective(module, x, x, labels, draws)


def test_labels_are_not_read_under_transforms():
    """Where their numbers may not be looked at, as while a CUDA graph is captured."""
    module, (x, labels) = make(), examples()
    objective = Objective(Exact(), Terms(unlabelled=0.0))
    draws = objective.draw(module, None, x, generator=torch.Generator().manual_seed(1))
    expected = objective(module, None, x, labels, draws).total()
    found = vmap(lambda labels: objective(module, None, x, labels, draws).total())(labels.expand(2, 4))
    torch.testing.assert_close(found, expected.expand(2))

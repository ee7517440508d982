"""Stacked training: the same as one by one, given the same draws."""

import copy

import pytest
import torch

from argrad import Direct, Exact, GumbelSoftmax
from argrad.models import Augmentation, Objective, SemiSupervisedModule, Terms
from argrad.models.semi_supervised.loss import Draws
from argrad.models.semi_supervised.module import member
from argrad.models.semi_supervised.stack import Stack, evaluate_stack, train_stack
from argrad.models.semi_supervised.task import follow

MODELS = 3


def make(seed: int) -> SemiSupervisedModule:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SemiSupervisedModule(6, 3, 2, hidden=(8, 7, 6, 5)).double()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.rand(MODELS, 10, 6, generator=generator, dtype=torch.float64).round()
    return x, x[:, :4], torch.randint(3, (MODELS, 4), generator=generator)


@pytest.mark.parametrize("estimator", [Exact(), Direct(0.1), GumbelSoftmax(0.5, straight_through=True)])
def test_stacked_training_is_training_one_by_one(estimator):
    terms = Terms(consistency=1.0, confidence=0.3, balance=1.0)
    objective = Objective(estimator, terms, augmentation=Augmentation(shift=0.3), shape=(2, 3))
    modules = [make(seed) for seed in range(MODELS)]
    stacked = Stack(modules, objective, learning_rate=0.01, decay=0.9)
    averages = [copy.deepcopy(module).requires_grad_(False) for module in modules]
    optimisers = [torch.optim.Adam(module.parameters(), 0.01) for module in modules]
    for step in range(6):
        x, labelled, labels = batch(step)
        unlabelled = None if step < 2 else x
        draws = objective.draw(stacked.module, unlabelled, labelled, generator=torch.Generator().manual_seed(step))
        losses = stacked.step(unlabelled, labelled, labels, draws)
        for number, (module, optimiser) in enumerate(zip(modules, optimisers, strict=True)):
            own = Draws(*(part[number] if part.numel() else part for part in draws))
            loss = objective(module, None if step < 2 else x[number], labelled[number], labels[number], own).total()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            follow(averages[number], module, min(0.9, (2 + step) / (11 + step)))
            assert float(losses[number]) == pytest.approx(float(loss.detach()), rel=1e-6)
    for number in range(MODELS):
        pairs = [
            (member(stacked.module, number), modules[number]),
            (member(stacked.predictor, number), averages[number]),
        ]
        for found, expected in pairs:
            for a, b in zip(found.parameters(), expected.parameters(), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def images(number: int = 120) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy copies of three patterns, and which they are of."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.rand(3, 16, generator=generator) < 0.5
    labels = torch.arange(number) % 3
    flipped = torch.rand(number, 16, generator=generator) < 0.05
    return (patterns[labels] ^ flipped).to(torch.uint8), labels


def trained(labelled: list[torch.Tensor], epochs: int, **options) -> Stack:
    modules = []
    for seed in range(len(labelled)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            modules.append(SemiSupervisedModule(16, 3, 2, hidden=(16, 12, 8, 8)))
    objective = Objective(terms=Terms(prediction=10.0), label_loss="cross-entropy")
    stacked = Stack(modules, objective, learning_rate=5e-3, decay=0.9)
    x, labels = images()
    with torch.random.fork_rng(devices=[]):
        train_stack(stacked, x, labels, labelled, epochs=epochs, batch_size=20, labelled_batch=6, **options)
    return stacked


def test_a_stack_learns_from_labels_of_different_numbers():
    x, labels = images()
    epochs: list[int] = []
    stacked = trained([torch.arange(3), torch.arange(30)], 16, label_first=8, after_epoch=epochs.append)
    accuracy, bound = evaluate_stack(stacked.predictor, x, labels, chunk=50)
    assert epochs == list(range(1, 17))
    assert accuracy.shape == bound.shape == (2,)
    assert (accuracy > 80).all()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        new = SemiSupervisedModule(16, 3, 2, hidden=(16, 12, 8, 8))
    untrained = new.negative_elbo(x.float(), generator=torch.Generator().manual_seed(0)).mean()
    assert float(bound.max()) < float(untrained) - 2


def test_the_same_seed_gives_the_same_stack():
    first, second = (trained([torch.arange(6)], 2) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters, second.parameters, strict=True))


def test_evaluation_is_that_of_each_model():
    x, labels = images(40)
    modules = [SemiSupervisedModule(16, 3, 2, hidden=(16, 12, 8, 8)) for _ in range(2)]
    accuracy, bound = evaluate_stack(Stack(modules, Objective()).module, x, labels, chunk=40, seed=5)
    for number, module in enumerate(modules):
        noise = torch.randn(40, 3, 2, generator=torch.Generator().manual_seed(5))
        assert float(bound[number]) == pytest.approx(
            float(module.negative_elbo(x.float(), noise=noise).mean()), rel=1e-5
        )
        right = module.class_scores(module.trunk(x.float())).argmax(-1) == labels
        assert float(accuracy[number]) == pytest.approx(100 * float(right.double().mean()))


def test_too_few_images_for_a_batch_and_labels_that_are_no_class():
    x, labels = images(10)
    with pytest.raises(ValueError, match="a batch of 20 needs at least as many images, got 10"):
        train_stack(Stack([make(0)], Objective()), x, labels, [torch.arange(3)], epochs=1, batch_size=20)
    labels[1] = 77
    with pytest.raises(ValueError, match=r"labels must be class numbers .*, got 77 in 1 of 3 places"):
        train_stack(Stack([make(0)], Objective()), x, labels, [torch.arange(3)], epochs=1, batch_size=10)

"""The prior over grids of codes: a law that adds up to one, the same cell by cell and at once, and that learns."""

import itertools
import math

import pytest
import torch

from argrad.models import CodePrior
from argrad.models.tokenizer.prior import PriorTask
from argrad.training import LoopSettings, train

GRID, CODES = (2, 2), 3


@pytest.fixture(scope="module")
def prior() -> CodePrior:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = CodePrior(GRID, CODES, width=6).double()
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.mul_(3)  # far from uniform
    return made


@pytest.fixture(scope="module")
def every() -> torch.Tensor:
    return torch.tensor(list(itertools.product(range(CODES), repeat=4))).reshape(-1, *GRID)


def test_probabilities_add_up_to_one(prior, every):
    probabilities = prior.log_prob(every).exp()
    assert probabilities.sum().item() == pytest.approx(1)
    assert probabilities.max() > 3 * probabilities.min()


def test_the_sequence_is_the_same_law(prior, every):
    one_hot = torch.nn.functional.one_hot(every.flatten(1), CODES).double()
    torch.testing.assert_close(prior.sequence(len(every)).log_prob(one_hot), prior.log_prob(every))


def test_a_cell_depends_on_those_before_it_and_no_other(prior, every):
    for cell in range(4):
        changed = every[:1].flatten(1).clone()
        changed[0, cell] = 2
        moved = (prior.logits(changed.reshape(1, *GRID)) - prior.logits(every[:1])).abs().amax(-1)[0] > 1e-9
        assert moved.tolist() == [later > cell for later in range(4)]


def test_samples_follow_the_law(prior, every):
    """The share of every grid among 20,000, by z-test."""
    drawn = prior.sample(20_000, generator=torch.Generator().manual_seed(1)).flatten(1)
    place = (drawn * torch.tensor([27, 9, 3, 1])).sum(-1)
    found = torch.bincount(place, minlength=81) / 20_000
    wanted = prior.log_prob(every).exp().detach()
    error = (found - wanted).abs() / (wanted * (1 - wanted) / 20_000).sqrt()
    assert error.max() < 4.5


def test_what_is_drawn_does_not_depend_on_how_many_at_a_time(prior, monkeypatch):
    whole = prior.sample(100, generator=torch.Generator().manual_seed(3))
    for scores in (7 * 4 * CODES, 1):
        monkeypatch.setattr("argrad.models.tokenizer.task.SCORES_AT_ONCE", scores)
        assert torch.equal(prior.sample(100, generator=torch.Generator().manual_seed(3)), whole)


def test_it_learns_a_rule():
    """Columns whose two codes are equal: half of the entropy of independent cells."""
    generator = torch.Generator().manual_seed(2)
    codes = torch.randint(4, (600, 1, 3), generator=generator).expand(600, 2, 3).contiguous()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        prior = CodePrior((2, 3), 4, width=16)
    trained = train(
        PriorTask(prior, codes[:500], codes[500:]), LoopSettings(epochs=12, batch_size=50, learning_rate=0.01)
    )
    assert trained.best_loss < 3 * math.log(4) + 0.3
    drawn = prior.sample(50, generator=generator)
    assert (drawn[:, 0] == drawn[:, 1]).float().mean() > 0.9


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="codes >= 2"):
        CodePrior((2, 2), 1)
    with pytest.raises(ValueError, match="width >= 1"):
        CodePrior((2, 2), 4, width=0)

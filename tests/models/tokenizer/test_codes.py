"""Codes are placed among what the encoder says; dead ones are moved to where codes are lacking, and serve there."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from argrad import GumbelSoftmax
from argrad.models import Schedules, TokenizerModule, used
from argrad.models.tokenizer import codes
from argrad.models.tokenizer import task as task_file
from argrad.models.tokenizer.codes import SHARPNESS, place_codes, revive_codes, spread_among, squared_distances
from argrad.models.tokenizer.task import TokenizerTask
from argrad.training import Decay, LoopSettings, WarmUp, World, train

CODES = 8
DEAD = [4, 5, 6, 7]


def build(dead: tuple[int, ...] = ()) -> TokenizerModule:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = TokenizerModule((8, 8), GumbelSoftmax(0.5, straight_through=True), codes=CODES, width=8, dimension=4)
    with torch.no_grad():
        module.decoder.codebook[list(dead)] += 100.0  # far from everything
    return module


def pictures(number: int = 60) -> Tensor:
    """Every quarter of an image is one of four patterns."""
    generator = torch.Generator().manual_seed(1)
    patterns = torch.rand(4, 4, 4, generator=generator).round()
    cells = patterns[torch.randint(4, (number, 2, 2), generator=generator)]
    return cells.permute(0, 1, 3, 2, 4).reshape(number, 8, 8)


# --------------------------------------------------------------------------------------------------------- placed codes


def test_vectors_are_spread_by_the_law_of_k_means_pp():
    """Of vectors at 0, 1 and 3 the first is any, the second has a probability in proportion to the squared distance."""
    places, number = [0.0, 1.0, 3.0], 4000
    vectors, generator = torch.tensor(places)[:, None], torch.Generator().manual_seed(0)
    drawn = [tuple(spread_among(vectors, 2, generator)[0].flatten().tolist()) for _ in range(number)]
    for first, second in itertools.permutations(places, 2):
        p = (first - second) ** 2 / sum((first - other) ** 2 for other in places) / 3
        z = (drawn.count((first, second)) - number * p) / math.sqrt(number * p * (1 - p))
        assert abs(z) < 4


def test_every_cluster_gets_a_vector_and_distances_are_from_the_nearest():
    generator = torch.Generator().manual_seed(0)
    clusters = torch.repeat_interleave(100 * torch.eye(5), torch.tensor([500, 3, 1, 40, 7]), 0)
    vectors = clusters + 0.01 * torch.randn(clusters.shape, generator=generator)
    chosen, away = spread_among(vectors, 5, generator)
    assert sorted(chosen.argmax(-1).tolist()) == [0, 1, 2, 3, 4]
    nearest = squared_distances(vectors, chosen).amin(-1)
    torch.testing.assert_close(away.sort().values, nearest.sort().values)


def vectors_of(module: TokenizerModule, x: Tensor) -> Tensor:
    return module.encoder(x).detach().flatten(0, 1)


def test_placed_codes_serve_cells_at_once_with_a_precision_that_suits_them():
    module, x = build(dead=tuple(range(CODES))), pictures(100)
    before = module.log_precision.item()
    vectors = vectors_of(module, x)
    place_codes(module, vectors, torch.Generator().manual_seed(0))
    distances = squared_distances(module.decoder.codebook, vectors)
    assert distances.amin(-1).max() == 0
    assert (module.usage(x) > 0).all()
    mean = distances.amin(0).mean().item()
    assert module.log_precision.exp().item() == pytest.approx(SHARPNESS / mean, rel=1e-4)
    assert module.log_precision.item() != before


@pytest.mark.parametrize("number", [64, 65, 80, 400, 4000])
def test_codes_are_neither_sure_nor_all_alike_however_many_cells_there_are(number):
    """Vectors that were not among those which 64 codes were placed in."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = TokenizerModule((8, 8), GumbelSoftmax(), codes=64, width=8, dimension=4)
        vectors, others = torch.randn(number, 4), torch.randn(1000, 4)
    place_codes(module, vectors, torch.Generator().manual_seed(0))
    codebook = module.decoder.codebook
    scores = module.log_precision.exp() * (others @ codebook.T - 0.5 * codebook.square().sum(-1))
    entropy = torch.distributions.Categorical(logits=scores).entropy().mean()
    assert 0.3 < entropy < 0.6 * math.log(64)


def test_a_large_vocabulary_is_spread_several_codes_at_a_time(monkeypatch):
    monkeypatch.setattr(codes, "ROUNDS", 10)
    vectors = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
    chosen, away = spread_among(vectors, 45, torch.Generator().manual_seed(1))
    assert len(chosen.unique(dim=0)) == len(chosen) == 45
    at_random = torch.cdist(vectors, vectors[:45]).amin(-1).square()
    assert away.mean() < at_random.mean()


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_vectors_that_are_no_numbers_are_said(bad):
    with pytest.raises(ValueError, match=rf"as large as {bad:.3g}".replace("+", r"\+") + "; lower the learning rate"):
        spread_among(torch.tensor([[1.0], [bad], [2.0]]), 2, torch.Generator().manual_seed(0))


def test_more_codes_than_vectors_share_them():
    module, x = build(), torch.zeros(1, 8, 8)
    with torch.no_grad():
        module.encoder.last.weight.zero_()  # all cells alike
    before = module.log_precision.item()
    place_codes(module, vectors_of(module, x), torch.Generator().manual_seed(0))
    assert torch.equal(module.decoder.codebook, module.encoder(x)[0, :1].expand(CODES, -1))
    assert module.log_precision.item() == before  # no distance to suit it to
    assert module.losses(x).isfinite().all()


def task_of(module: TokenizerModule, x: Tensor, **others) -> TokenizerTask:
    return TokenizerTask(module, x, x[:0], lambda stored, _: stored, Schedules(), **others)


@pytest.mark.parametrize("scores_at_once", [2**24, 32 * 6], ids=["all at once", "six images at a time"])
@pytest.mark.parametrize(("number", "vectors"), [(3, 12), (60, 50)])
def test_codes_are_placed_among_so_many_cells_and_no_more(number, vectors, scores_at_once, monkeypatch):
    monkeypatch.setattr(task_file, "SCORES_AT_ONCE", scores_at_once)
    monkeypatch.setattr(task_file, "enough_cells", lambda codes: 50)
    monkeypatch.setattr(task_file, "AT_ONCE", 20)
    module, x = build(), pictures(number)
    found = task_of(module, x)._some_vectors(torch.Generator().manual_seed(0))
    assert vectors <= len(found) <= 1.2 * vectors
    assert len(found.unique(dim=0)) > 0.9 * len(vectors_of(module, x[:3]).unique(dim=0))
    assert squared_distances(found, vectors_of(module, x)).amin(-1).max() < 1e-6


def test_schedules_and_revival_begin_where_there_are_codes():
    module, x = build(), pictures(20)
    task = TokenizerTask(
        module,
        x,
        x[:0],
        lambda stored, _: stored,
        Schedules(temperature=Decay(1.0, 0.1, 0.5, 1), kl_weight=WarmUp(1.0, 4)),
        revive_until=2,
        continuous_steps=5,
    )
    weights = []
    for step in range(9):
        task.set_step(step)
        weights.append(task.kl_weight)
        assert module.estimator.temperature.item() == pytest.approx(max(0.1, math.exp(-0.5 * max(0, step - 5))))
    assert weights == [0] * 6 + [0.25, 0.5, 0.75]
    seen = []
    for epoch in range(1, 7):  # of two steps
        task.set_step(2 * epoch - 1)
        extra = task.after_epoch(epoch, torch.optim.Adam(module.parameters()), torch.Generator().manual_seed(0))
        seen.append(sorted(extra))
    assert seen == [["continuous"], ["continuous"], ["revived"], ["revived"], [], []]


@pytest.mark.parametrize("continuous_steps", [0, 2])
def test_training_begins_without_codes_when_told_to(continuous_steps):
    module, x = build(), pictures(20)
    task = TokenizerTask(module, x, x[:0], lambda stored, _: stored, Schedules(), continuous_steps=continuous_steps)
    before, batch = module.decoder.codebook.detach().clone(), torch.arange(10)
    for step in range(4):
        task.set_step(step)
        losses = task.losses(batch, torch.Generator().manual_seed(step), World())
        vectors = module.encoder(x).flatten(0, 1)
        (gradient,) = torch.autograd.grad(losses.sum(), module.decoder.codebook, allow_unused=True)
        if step < continuous_steps:
            torch.testing.assert_close(losses, module.continuous_losses(x[:10]))
            assert gradient is None
        else:
            assert gradient.any()
            is_placed = squared_distances(module.decoder.codebook, vectors).amin(-1).max() < 1e-6
            assert is_placed == (continuous_steps > 0)
        assert torch.equal(module.decoder.codebook, before) == (step < continuous_steps or not continuous_steps)


# -------------------------------------------------------------------------------------------------------- revived codes


def revive(module: TokenizerModule, usage: Tensor, x: Tensor, optimiser=None, seed: int = 0) -> int:
    optimiser = optimiser or torch.optim.Adam(module.parameters())
    return revive_codes(module, usage, x, optimiser, torch.Generator().manual_seed(seed))


def test_codes_in_use_are_left_alone():
    module, x = build(), pictures()
    assert revive(module, torch.full((CODES,), 1 / CODES), x) == 0
    assert torch.equal(module.decoder.codebook, build().decoder.codebook)


def test_dead_codes_move_onto_cells_and_serve_them():
    module, x = build(dead=DEAD), pictures()
    assert not module.usage(x)[DEAD].any()
    before = module.decoder.codebook[:4].clone()
    assert revive(module, torch.tensor([0.25] * 4 + [0.0] * 4), x) == 4
    assert torch.equal(module.decoder.codebook[:4], before)
    vectors = module.encoder(x).flatten(0, 1)
    distances = torch.cdist(module.decoder.codebook[DEAD], vectors)
    assert distances.min(-1).values.max() < 1e-3
    assert (module.usage(x)[DEAD] > 0).all()


def test_cells_that_are_far_from_their_code_come_first():
    """All cells but one lie on a code; the dead code goes to that one."""
    module, x = build(), pictures(2)
    with torch.no_grad():
        vectors = module.encoder(x).flatten(0, 1)
        module.decoder.codebook.copy_(vectors)
        module.decoder.codebook[3] += 5.0
    usage = torch.tensor([0.2, 0.2, 0.2, 0.0, 0.1, 0.1, 0.1, 0.1])
    assert revive(module, usage, x) == 1
    torch.testing.assert_close(module.decoder.codebook[3], vectors[3])


def test_never_more_codes_than_cells_that_want_one():
    module, x = build(dead=tuple(range(1, CODES))), pictures(1)
    assert revive(module, torch.eye(CODES)[0], x) == 4
    with torch.no_grad():
        module.decoder.codebook[:4] = module.encoder(x).flatten(0, 1)
    assert revive(module, torch.eye(CODES)[0], x) == 0  # every cell has its code


def steps(module: TokenizerModule, x: Tensor, optimiser: torch.optim.Optimizer, number: int) -> None:
    for _ in range(number):
        optimiser.zero_grad()
        module.losses(x, generator=torch.Generator().manual_seed(0)).mean().backward()
        optimiser.step()


@pytest.mark.parametrize("amsgrad", [False, True])
def test_what_the_optimiser_knew_of_a_revived_code_is_replaced(amsgrad):
    """By no direction, and by the size of the gradients of codes in use."""
    module, x = build(), pictures()
    optimiser = torch.optim.Adam(module.parameters(), amsgrad=amsgrad)
    steps(module, x, optimiser, 2)
    state = optimiser.state[module.decoder.codebook]
    kept = {name: memory.clone() for name, memory in state.items() if name != "step"}
    assert len(kept) == 2 + amsgrad
    revive(module, torch.tensor([0.3, 0.1, 0.1, 0.1, 0.2, 0.2, 0.0, 0.0]), x, optimiser)
    for name, before in kept.items():
        assert before[6:].any()
        assert torch.equal(state[name][:6], before[:6])
        after = torch.zeros(4) if name == "exp_avg" else before[:6].mean(0)
        assert torch.equal(state[name][6:], after.expand(2, -1))


def test_a_revived_code_steps_no_further_than_the_others():
    """Adam's count of steps is that of the whole codebook: a mean square of 0 would be believed."""
    module, x = build(dead=DEAD), pictures()
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-3)
    steps(module, x, optimiser, 300)
    assert revive(module, module.usage(x), x, optimiser) == 4
    codebook = module.decoder.codebook
    before = codebook.detach().clone()
    steps(module, x, optimiser, 1)
    lengths = (codebook.detach() - before).abs().amax(-1)
    assert (lengths[DEAD] > 0).all()
    assert lengths[DEAD].mean() < 1e-3 < lengths[:4].mean()  # squares of 0 make it 1.6e-3, whatever the gradient


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan")])
def test_threshold_is_a_share(threshold):
    module, x = build(), pictures(2)
    with pytest.raises(ValueError, match=f"threshold is a share of an equal share, 0 to 1, got {threshold}"):
        revive_codes(module, torch.full((CODES,), 1 / CODES), x, None, torch.Generator(), threshold=threshold)


@pytest.mark.parametrize("revive_until", [0, 2])
def test_training_brings_them_back_only_when_told_to(revive_until):
    module, x = build(dead=tuple(range(1, CODES))), pictures(100)
    assert used(module.usage(x)) == pytest.approx(1 / CODES)
    task = TokenizerTask(module, x, x[:0], lambda stored, _: stored, Schedules(), revive_until=revive_until)
    trained = train(task, LoopSettings(epochs=5, batch_size=20, learning_rate=1e-2))
    revived = [row.get("revived") for row in trained.history]
    assert revived[0] == (7 if revive_until else None)
    assert revived[revive_until:] == [None] * (5 - revive_until)
    assert (trained.history[-1]["used_codes"] > 0.4) == bool(revive_until)

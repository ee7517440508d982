"""The tokenizer comparison: the rival by hand and by its package, the pace, a tiny run, tables and picture."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from argrad.data import load
from argrad.experiments import tokenizer, tokenizer_training
from argrad.experiments.pictures import unpacked
from argrad.experiments.tokenizer import (
    METHODS,
    TokenizerComparison,
    assemble,
    build,
    format_table,
    markdown,
    plot,
    run_dataset,
    score,
)
from argrad.experiments.tokenizer_page import aims, beside, hard_over_softer
from argrad.experiments.tokenizer_training import Pace, Trainer, as_values, train
from argrad.experiments.tokenizer_vq import QuantizedModule, VectorQuantizer, rotate_onto
from argrad.models.dead_codes import perplexity
from argrad.models.tokenizer.codes import squared_distances
from tiny_images import silent

TINY = TokenizerComparison(
    quick=True, seeds=(0, 1), steps=12, codes=6, width=4, batch_size=10, looks=2, prior_steps=3, prior_width=4
)


def pictures(number: int, seed: int = 1) -> Tensor:
    """8-bit images, every quarter one of four patterns: empty, full, and halves."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.zeros(4, 4, 4)
    patterns[1], patterns[2, :, :2], patterns[3, :2] = 1.0, 1.0, 1.0
    cells = patterns[torch.randint(4, (number, 2, 2), generator=generator)]
    return (255 * cells.permute(0, 1, 3, 2, 4).reshape(number, 8, 8)).to(torch.uint8)


IMAGES = pictures(40), pictures(20, 2), pictures(20, 3)


# ----------------------------------------------------------------------------------------------------------- the rival


def test_codes_are_the_nearest_vectors():
    quantizer = VectorQuantizer(5, 3).eval()
    x = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0))
    found, codes, away = quantizer(x)
    distances = (x.unsqueeze(-2) - quantizer.vectors).square().sum(-1)
    assert torch.equal(codes, distances.argmin(-1))
    torch.testing.assert_close(away, distances.min(-1).values)
    torch.testing.assert_close(found, quantizer.vectors[codes])


def test_moving_averages_by_hand():
    """One vector for the first code, three for the second, a decay of a half."""
    quantizer = VectorQuantizer(2, 1, decay=0.5, smoothing=0.0, replace_below=0)
    quantizer.vectors.copy_(torch.tensor([[0.0], [10.0]]))
    quantizer.sums.copy_(quantizer.vectors)
    quantizer(torch.tensor([[[1.0], [9.0], [8.0], [10.0]]]))
    torch.testing.assert_close(quantizer.counts, torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(quantizer.sums, torch.tensor([[0.5], [18.5]]))
    torch.testing.assert_close(quantizer.vectors, torch.tensor([[0.5], [9.25]]))


def test_codes_out_of_use_become_vectors_of_the_batch():
    quantizer = VectorQuantizer(6, 2, replace_below=1.0)
    quantizer.vectors[1:] += 100.0
    quantizer.counts.copy_(torch.tensor([8.0, 0, 0, 0, 0, 0]))
    x = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    before = quantizer.vectors.clone()
    quantizer.replace(x)
    moved = (quantizer.vectors != before).any(-1)
    assert moved.tolist() == [False, True, True, True, False, False]  # three vectors, each once
    assert {tuple(row) for row in quantizer.vectors[moved].tolist()} == {tuple(row) for row in x.tolist()}
    assert quantizer.counts.tolist() == [8, 1, 1, 1, 0, 0]


def test_the_rotation_turns_x_into_its_code_and_gradients_with_it():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    target, direction = (torch.randn(5, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    turned = rotate_onto(x, target)
    torch.testing.assert_close(turned, target)
    (turned * direction).sum().backward()
    scale = target.norm(dim=-1) / x.detach().norm(dim=-1)
    torch.testing.assert_close(x.grad.norm(dim=-1), scale * direction.norm(dim=-1))  # a rotation keeps lengths ...
    along = (x.grad * x.detach()).sum(-1)
    torch.testing.assert_close(along, (direction * target).sum(-1))  # ... and the angle between gradient and vector


def test_straight_through_leaves_the_gradient_alone():
    quantizer = VectorQuantizer(5, 3, rotation=False).eval()
    x = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    quantizer(x)[0].sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))


@pytest.mark.parametrize("rotation", [True, False])
def test_it_is_what_the_package_does(rotation):
    package = pytest.importorskip("vector_quantize_pytorch", reason="needs vector-quantize-pytorch to compare with")
    theirs = package.VectorQuantize(dim=6, codebook_size=7, rotation_trick=rotation)
    ours = VectorQuantizer(7, 6, replace_below=0, rotation=rotation)
    ours.vectors.copy_(theirs.codebook)
    ours.sums.copy_(theirs.codebook)
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        x, weights = (torch.randn(5, 8, 6, generator=generator) for _ in range(2))
        both = [x.clone().requires_grad_() for _ in range(2)]
        theirs_found, their_codes, commitment = theirs(both[0])
        found, codes, away = ours(both[1])
        assert torch.equal(codes, their_codes)
        torch.testing.assert_close(found, theirs_found)
        ((theirs_found * weights).sum() + commitment).backward()
        ((found * weights).sum() + away.mean() / 6).backward()
        torch.testing.assert_close(both[1].grad, both[0].grad)
        torch.testing.assert_close(ours.vectors, theirs.codebook)


def test_it_replaces_what_the_package_replaces():
    package = pytest.importorskip("vector_quantize_pytorch", reason="needs vector-quantize-pytorch to compare with")
    theirs = package.VectorQuantize(dim=6, codebook_size=7, threshold_ema_dead_code=2)
    ours = VectorQuantizer(7, 6, replace_below=2.0)
    ours.vectors.copy_(theirs.codebook)
    ours.sums.copy_(theirs.codebook)
    kept, generator = torch.ones(7, dtype=torch.bool), torch.Generator().manual_seed(1)
    for _ in range(4):
        x = torch.randn(5, 8, 6, generator=generator)
        theirs(x)
        ours(x)
        counts = theirs._codebook.cluster_size[0]
        torch.testing.assert_close(ours.counts, counts)
        kept = counts != 2  # which vectors take the others' place is drawn
        torch.testing.assert_close(ours.vectors[kept], theirs.codebook[kept])
        if not kept.all():
            break
    assert not kept.all()
    assert kept.any()


def test_the_rival_replaces_codes_for_as_long_as_the_others_are_revived():
    model = build("vq", (8, 8), replace(TINY, replace_below=0.7), 0)
    trainer = Trainer(model, IMAGES[0], Pace(100, batch_size=10, revive=0.5))
    for progress, below in ((0.0, 0.7), (0.5, 0.7), (0.6, 0.0)):
        trainer.set_progress(progress)
        assert model.quantizer.replace_below.item() == pytest.approx(below)
    before = model.quantizer.vectors.clone()
    model.quantizer.counts.zero_()  # no code stands for anything, and still none is replaced
    model.quantizer.replace(torch.randn(20, 4))
    assert torch.equal(model.quantizer.vectors, before)
    model.quantizer.replace_below.fill_(0.7)
    model.quantizer.replace(torch.randn(20, 4))
    assert (model.quantizer.vectors != before).any(-1).all()


def test_the_rival_speaks_the_same_words():
    model = QuantizedModule((8, 8), codes=6, width=4, dimension=3).eval()
    x = as_values(IMAGES[0])
    torch.testing.assert_close(model.decode(model.encode(x)), model.reconstruct(x))
    assert model.losses(x).shape == (40,)
    assert (model.reconstruct(x, "soft") - model.reconstruct(x)).abs().max() > 0


# ------------------------------------------------------------------------------------------------------------ training


def test_a_pace_anneals_and_warms_up():
    pace = Pace(90, rounds=4, temperature=(1.0, 0.25), kl_weight=(0.5, 0.125), warm_up=0.1, anneal=0.6, settle=0.6)
    assert [pace.temperature_at(progress) for progress in (0, 0.3, 0.6, 1)] == pytest.approx([1, 0.5, 0.25, 0.25])
    assert [pace.kl_weight_at(progress) for progress in (0, 0.3, 0.6, 1)] == pytest.approx([0, 0.25, 0.125, 0.125])
    assert [pace.learning_rate_at(progress) for progress in (0, 0.6, 0.8, 1)] == pytest.approx([1e-3, 1e-3, 5e-4, 0])
    assert pace.kl_weight_at(0.05) == pytest.approx(0.5 * 0.5 * 0.25 ** (1 / 12))
    assert pace.ends() == [22, 45, 67, 90]
    assert Pace(3, rounds=24).ends() == [1, 2, 3]


def test_codes_are_sharpened_beside_what_they_learn():
    pace = Pace(40, batch_size=10, settle=0.5, sharpen=9.0)
    assert [pace.sharpness_at(progress) for progress in (0, 0.5, 0.75, 1)] == pytest.approx([1, 1, 3, 9])
    model = build("direct", (8, 8), TINY, 0)
    trainer, before = Trainer(model, IMAGES[0], pace), model.log_precision.item()
    for progress, factor in ((0.0, 1.0), (0.75, 3.0), (0.75, 3.0), (1.0, 9.0)):
        trainer.set_progress(progress)
        assert model.log_precision.item() == pytest.approx(before + math.log(factor))
    with torch.no_grad():
        model.log_precision.add_(1.0)
    trainer.set_progress(1.0)
    assert model.log_precision.item() == pytest.approx(before + math.log(9) + 1)


@pytest.mark.parametrize("method", ["reinforce", "vq"])
def test_a_training_begins_without_codes_and_places_them(method):
    model = build(method, (8, 8), TINY, 0)
    pace = Pace(40, batch_size=10, continuous=0.1)
    assert pace.continuous_steps() == 4
    trainer = Trainer(model, IMAGES[0], pace)
    codes = model.quantizer.vectors if method == "vq" else model.decoder.codebook
    before = codes.detach().clone()
    for step in range(4):
        trainer.advance(step)
        assert torch.equal(codes, before)
    trainer.step = lambda: None
    trainer.advance(4)
    vectors = model.encoder(as_values(IMAGES[0])).flatten(0, 1)
    assert squared_distances(codes, vectors).amin(-1).max() < 1e-6


def test_a_step_sets_the_temperature_and_moves_on():
    model = build("gumbel-softmax", (8, 8), TINY, 0)
    trainer = Trainer(model, IMAGES[0], Pace(20, batch_size=10, temperature=(1.0, 0.01), anneal=1.0, continuous=0))
    before = model.decoder.codebook.clone()
    for step in range(5):
        trainer.advance(step)
    assert trainer.cursor.item() == 10  # 40 images: the fifth step is the first of another order
    for step in range(5, 11):
        trainer.advance(step)
    assert model.estimator.temperature.item() == pytest.approx(0.1)
    assert not torch.equal(model.decoder.codebook, before)


def test_every_image_is_seen_once_before_any_is_seen_twice():
    trainer = Trainer(build("straight-through", (8, 8), TINY, 0), IMAGES[0], Pace(8, batch_size=10))
    orders = []
    for step in range(8):
        trainer.advance(step)
        orders.append(trainer.order.clone())
    assert torch.equal(orders[0].sort().values, torch.arange(40))
    assert all(torch.equal(order, orders[0]) for order in orders[:4])
    assert not torch.equal(orders[4], orders[0])


@pytest.mark.parametrize(("clip_norm", "norm"), [(1e-3, 1e-3), (1e9, None)])
def test_a_large_gradient_is_scaled_down_and_a_small_one_is_not(clip_norm, norm):
    trainer = Trainer(build("straight-through", (8, 8), TINY, 0), IMAGES[0], Pace(1, batch_size=10))
    gradients = []
    for limit in (1e9, clip_norm):
        torch.manual_seed(0)
        trainer.pace = Pace(1, batch_size=10, clip_norm=limit)
        trainer.optimiser = torch.optim.SGD(trainer.parameters, 0.0)
        trainer.cursor.zero_()
        trainer.step()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in trainer.parameters]))
    whole, found = gradients
    assert whole.norm() > 0.1
    torch.testing.assert_close(found, whole * (norm / whole.norm() if norm else 1.0))


@pytest.mark.parametrize("method", METHODS)
def test_a_step_looks_at_no_number(method):
    """On the meta device, where there are none to look at: so a GPU can capture the step as one graph."""
    model = build(method, (8, 8), TINY, 0)
    trainer = Trainer(model, IMAGES[0], Pace(1, batch_size=10))
    model.to("meta")
    for name in ("images", "order", "cursor", "offsets", "kl_weight"):
        setattr(trainer, name, getattr(trainer, name).to("meta"))
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    trainer.parameters, trainer.optimiser = learnt, torch.optim.SGD(learnt, 1e-3)
    trainer.step()
    assert all(parameter.grad is not None and parameter.grad.is_meta for parameter in learnt)


@pytest.mark.parametrize("method", ["direct", "vq"])
def test_a_training_that_never_has_codes_places_them_where_it_is_looked_at(method):
    model = build(method, (8, 8), TINY, 0)
    learnt = train(model, IMAGES[0], IMAGES[1], Pace(20, rounds=2, batch_size=10, continuous=1.0), silent)
    codes = model.quantizer.vectors if method == "vq" else model.decoder.codebook
    assert squared_distances(codes, model.encoder(as_values(IMAGES[0])).flatten(0, 1)).amin(-1).max() < 1e-6
    assert min(learnt.perplexity) > 2
    assert learnt.revived == 0


@pytest.mark.parametrize("method", ["reinforce", "vq"])
def test_scores_are_those_of_the_model(method, monkeypatch):
    model = build(method, (8, 8), TINY, 0).eval()
    monkeypatch.setattr(tokenizer, "AT_ONCE", 7)
    monkeypatch.setattr(tokenizer_training, "AT_ONCE", 7)
    x = as_values(IMAGES[2])
    found = score(model, IMAGES[2], 0.3)
    for how in ("hard", "soft"):
        assert found[f"{how}_error"] == pytest.approx((model.reconstruct(x, how) - x).square().mean().item(), rel=1e-5)
    usage = torch.bincount(model.encode(x).flatten(), minlength=6) / 80
    assert found["perplexity"] == pytest.approx(perplexity(usage), rel=1e-5)
    if method == "vq":
        return
    assert found["kl"] == pytest.approx(model.posterior(x).kl().mean().item(), rel=1e-5)
    alike, x = IMAGES[2][:1].expand(2000, -1, -1), x[:1].expand(2000, -1, -1)
    found = score(model, alike, 0.3)
    generator = torch.Generator().manual_seed(1)
    ways = [model.reconstruct(x, how, temperature=0.3, generator=generator) for how in ("relaxed", "sampled")]
    each = [(way - x).square().flatten(1).mean(1) for way in ways]
    for name, errors in zip(("relaxed_error", "sampled_error"), each, strict=True):
        assert abs(found[name] - errors.mean()) < 4.5 * errors.std() * (2 / 2000) ** 0.5
    bound = model.negative_elbo(x, generator=generator)
    assert abs(found["negative_elbo"] - bound.mean()) < 4.5 * bound.std() * (2 / 2000) ** 0.5


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_and_its_seed_decides(method):
    settings = TokenizerComparison(codes=8, width=8, batch_size=10, learning_rate=0.01, kl_weight=0.1)
    pace = Pace(60, rounds=3, batch_size=10, learning_rate=0.01, kl_weight=(0.05, 0.05), continuous=0.2, revive=0.4)

    def once() -> tuple[list[float], dict[str, float]]:
        model = build(method, (8, 8), settings, 0)
        learnt = train(model, IMAGES[0], IMAGES[1], pace, silent)
        assert learnt.looked_after == [20, 40, 60]
        return learnt.hard_error, score(model, IMAGES[2], 0.2)

    errors, scores = once()
    x = as_values(IMAGES[1])
    assert errors[-1] < 0.95 * (x - x.mean()).square().mean()
    assert scores["hard_over_soft"] == pytest.approx(scores["hard_error"] / scores["soft_error"])
    assert ("kl" in scores) == (method != "vq")
    if method == "straight-through":
        assert once() == (errors, scores)
        assert scores["perplexity"] > 2


@pytest.mark.slow
@pytest.mark.usefixtures("data_root")
@pytest.mark.parametrize("dataset", ["fashion-mnist", "omniglot"])
def test_hard_codes_are_as_good_as_soft_ones_and_many_are_used(dataset):
    """A small model, 2,000 images, 512 codes: hard within 5 % of soft, perplexity above 100."""
    images = load(dataset, binarize="none")
    settings = TokenizerComparison(width=16)
    model = build("straight-through", (28, 28), settings, 0)
    pace = replace(settings.pace(0), steps=360, rounds=6, batch_size=32)
    train(model, images.train[:1920], images.validation[:500], pace, silent)
    scores = score(model, images.test[:1000], 0.2)
    assert scores["hard_over_soft"] < 1.05
    assert scores["perplexity"] > 100


# ----------------------------------------------------------------------------------------------------------- the whole


@pytest.fixture(scope="module")
def result() -> dict:
    chosen = TokenizerComparison(**{**vars(TINY), "methods": ("straight-through", "vq")})
    rows = run_dataset("digits", IMAGES, chosen, silent)
    rows += [{key: value for key, value in row.items() if key != "pictures"} | {"dataset": "other"} for row in rows]
    return assemble(rows, chosen, "argrad reproduce tokenizer --quick --json")


def test_result_is_json_with_every_row(result):
    result = json.loads(json.dumps(result, allow_nan=False))
    assert {"command", "commit", "hardware", "software", "date", "settings", "quick", "rows"} <= result.keys()
    assert [(row["dataset"], row["method"]) for row in result["rows"][:2]] == [
        ("digits", "straight-through"),
        ("digits", "vq"),
    ]
    for row in result["rows"]:
        for name in ("hard_error", "soft_error", "hard_over_soft", "perplexity", "seconds", "curve"):
            assert len(row[name]) == 2
        assert len(row["curve"][0]) == len(row["looked_after"])
        assert row["looked_after"][-1] == 12
        assert 0 < row["prior_nll"] < 4 * math.log(6) * 1.5
    assert "kl" not in result["rows"][1]


def test_pictures_are_kept_where_they_may_be(result):
    packed = result["rows"][0]["pictures"]
    assert np.array_equal(unpacked(packed["originals"]), IMAGES[2][:8].numpy())
    assert unpacked(packed["samples"]).shape == (24, 8, 8)
    other = run_dataset("omniglot", IMAGES, TokenizerComparison(**{**vars(TINY), "methods": ("vq",)}), silent)
    assert "pictures" not in other[0]


def test_words_and_picture(result, tmp_path):
    text = format_table(result)
    assert text.startswith("QUICK")
    assert text.count("straight-through") == 2
    assert markdown(result).count("| vq |") == 2
    plot(result, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_aims_are_counted():
    row = {"dataset": "digits", "method": "direct", "hard_error": [1.0, 1.02], "soft_error": [1.0, 1.0]}
    row |= {"perplexity": [101.0, 120.0]}
    assert hard_over_softer(row) == pytest.approx(1.01)
    assert hard_over_softer(row | {"relaxed_error": [0.8, 1.02]}) == pytest.approx((1.25 + 1.02) / 2)
    rows = [row, row | {"method": "vq", "perplexity": [90.0, 100.0]}]
    assert aims({"rows": rows[:1]}).endswith("above 100: 1 of 1 rows.")
    assert aims({"rows": rows}).endswith("1 of 2 rows; not digits vq (1.010, 95).")


def test_images_beside_each_other():
    picture = beside(np.stack([np.full((2, 2), value, np.uint8) for value in range(4)]), 2)
    assert picture.shape == (6, 6)
    assert picture[0].tolist() == [0, 0, 255, 1, 1, 255]
    assert picture[3].tolist() == [2, 2, 255, 3, 3, 255]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"methods": ("magic",)}, "magic"),
        ({"methods": ()}, "none"),
        ({"seeds": ()}, "at least one seed"),
        ({"sharpen": 0.0}, "sharpen is a factor, above 0"),
    ],
)
def test_settings_are_checked(changes, words):
    with pytest.raises(ValueError, match=words):
        TokenizerComparison(**changes)

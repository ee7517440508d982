"""The completion experiment on tiny images: what a result holds, what it claims, and that no face enters it."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from argrad.data import Images
from argrad.experiments import completion
from argrad.experiments.completion import (
    K_BY_LIKELIHOOD,
    RIVALS,
    Completion,
    format_table,
    markdown,
    plot,
    run,
    run_dataset,
    shown,
)
from argrad.experiments.completion_rival import fit_head
from argrad.experiments.pictures import unpacked
from argrad.models.completion.run import CompletionSettings, train_completion
from argrad.models.completion.scores import evaluate_completion
from tiny_images import silent

SMALL = {"components": 3, "dimension": 2, "features": 8, "hidden": 16, "batch_size": 30}


def two_ways(name: str = "tiny", number: int = 160) -> Images:
    """Frames of several shades whose middle is dark or bright."""
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(number, 1, 1, generator=generator).expand(number, 6, 6).clone()
    x[:, 2:4, 2:4] = (torch.rand(number, 1, 1, generator=generator) < 0.5).float()
    return Images(name, x[:100], x[100:120], x[120:], binarization="none")


@pytest.fixture(scope="module")
def result() -> dict:
    settings = Completion(datasets=("tiny", "olivetti"), components=3, seeds=(0, 1), epochs=2, device="cpu", quick=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(completion, "load_pictures", lambda name, split_seed: two_ways(name))
        patch.setattr(completion, "RECIPES", {name: dict(SMALL_RECIPE) for name in ("tiny", "olivetti")})
        return run(settings, progress=silent)


SMALL_RECIPE = {name: value for name, value in SMALL.items() if name != "components"}


def test_result_is_json_with_values_by_seed_and_where_they_come_from(result):
    json.dumps(result, allow_nan=False)
    assert {"command", "commit", "hardware", "software", "date", "settings", "quick"} <= result.keys()
    for part in result["datasets"].values():
        assert {"command", "commit", "hardware", "software", "date"} <= part.keys()
        assert [(row["seed"], row["components"]) for row in part["rows"]] == [(0, 3), (0, 1), (1, 3), (1, 1)]
        assert part["images"] == {"train": 100, "validation": 20, "test": 40}
        assert part["shown"]["visible pixels untouched"] is True
        assert part["shown"]["smallest gradient"] > 0


def test_no_face_enters_a_result(result):
    assert unpacked(result["datasets"]["tiny"]["pictures"]).shape[:2] == (4, 10)
    assert result["datasets"]["olivetti"]["pictures"] is None


def test_faces_are_drawn_into_a_folder_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(completion, "RECIPES", {"olivetti": SMALL_RECIPE})
    settings = Completion(components=2, seeds=(0,), epochs=1, device="cpu", faces=str(tmp_path / "faces"))
    part = run_dataset(two_ways("olivetti"), settings, progress=silent)
    assert part["pictures"] is None
    assert (tmp_path / "faces" / "olivetti-completed.png").read_bytes().startswith(b"\x89PNG")


def test_words_and_picture(result, tmp_path):
    text = format_table(result)
    assert text.startswith("QUICK")
    assert "best-of-8 error above one component's" in text
    assert markdown(result).count("| tiny | 3 |") == 1
    plot(result, tmp_path / "completion.png")
    assert (tmp_path / "completion.png").read_bytes().startswith(b"\x89PNG")


def test_a_data_set_is_added_to_an_earlier_result(result, tmp_path, monkeypatch):
    path = tmp_path / "completion.json"
    path.write_text(json.dumps(result))
    monkeypatch.setattr(completion, "load_pictures", lambda name, split_seed: two_ways(name))
    monkeypatch.setattr(completion, "RECIPES", {"third": SMALL_RECIPE})
    settings = Completion(("third",), components=2, seeds=(0,), epochs=1, device="cpu", quick=True, add_to=str(path))
    both = run(settings, progress=silent)
    assert list(both["datasets"]) == ["tiny", "olivetti", "third"]
    assert both["datasets"]["tiny"] == result["datasets"]["tiny"]
    with pytest.raises(ValueError, match="quick and full do not mix"):
        run(replace(settings, quick=False), progress=silent)
    path.write_text("{}")
    with pytest.raises(ValueError, match="is not a result of"):
        run(settings, progress=silent)


def row(seed: int, components: int, **numbers: object) -> dict:
    usual = {"components_used": 2, "latent_log_likelihood": -3.0, **dict.fromkeys(RIVALS, -4.0)}
    usual |= {"diversity": 0.1, "best_error": 0.02, "bound": 5.0, "visible_untouched": True}
    return {"seed": seed, "components": components, "gradient": {"weights": 1.0, "means": 2.0}, **usual, **numbers}


def test_claims_are_differences_by_seed():
    rows = [row(0, 3, best_error=0.01), row(0, 1), row(1, 3, best_error=0.03), row(1, 1, best_error=0.06, bound=1.0)]
    rows[2]["gradient"]["means"] = 0.0
    rows[0][K_BY_LIKELIHOOD] = rows[2][K_BY_LIKELIHOOD] = -2.5
    found = shown(rows)
    assert found["smallest gradient"] == 0.0
    assert found["fewest components used"] == 2
    apart = [value for name, value in found.items() if name.startswith("log-likelihood of z_c")]
    assert apart == [{"mean": 1.0, "standard error": 0.0}, {"mean": 1.5, "standard error": 0.0}]
    error = found["best-of-8 error above one component's"]
    assert error["mean"] == pytest.approx(-0.02)
    assert error["standard error"] == pytest.approx(np.std([-0.01, -0.03], ddof=1) / 2**0.5, rel=1e-3)
    assert found["bound on log p(x_c | x_v) above one component's, nats"]["mean"] == 2.0


def test_the_mixture_beats_one_gaussian_on_the_same_latents_where_there_are_two_ways():
    settings = CompletionSettings(data="tiny", masks="centre", epochs=100, learning_rate=1e-2, **SMALL)
    images = two_ways()
    module, _ = train_completion(settings, None, images)
    shorter = replace(settings, epochs=40)
    one, several = (fit_head(module, shorter, images, number, by_likelihood=True) for number in (1, 3))
    for name in ("visible_encoder", "missing_encoder"):
        for ours, others in zip(getattr(module, name).parameters(), getattr(one, name).parameters(), strict=True):
            assert torch.equal(ours, others)
    scores = [evaluate_completion(each, images, masks="centre", samples=1) for each in (module, several, one)]
    assert scores[0]["components"] > 1.5
    ours, at_best, rival = (each["latent_log_likelihood"] for each in scores)
    assert ours > rival + 0.3
    assert at_best > rival + 0.3


def test_a_head_learns_by_the_same_loss_too():
    settings = CompletionSettings(data="tiny", masks="centre", epochs=1, **SMALL)
    images = two_ways()
    module, _ = train_completion(settings, None, images)
    same, likely = (fit_head(module, settings, images, 1, by_likelihood=likely) for likely in (False, True))
    assert same.components == likely.components == 1
    assert not torch.equal(same.mixture_head[-1].weight, likely.mixture_head[-1].weight)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"components": 1}, "components must be at least 2"),
        ({"seeds": ()}, "at least one seed"),
        ({"datasets": ()}, "one data set"),
        ({"epochs": -1}, "epochs must not be negative"),
    ],
)
def test_wrong_settings_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        Completion(**wrong)

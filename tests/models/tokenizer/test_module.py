"""The tokenizer's objective against enumeration, its KL by hand, codes there and back, and what it refuses."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from argrad import Direct, Exact, GumbelSoftmax, Reinforce
from argrad.models import TokenizerModule, perplexity

SHAPE, CODES = (4, 8), 3  # one row of two cells: nine grids of codes


def build(estimator=None, *, shape=SHAPE, codes=CODES, seed=4, **others) -> TokenizerModule:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = TokenizerModule(shape, estimator or Exact(), codes=codes, width=4, dimension=2, **others).double()
        with torch.no_grad():
            module.encoder.last.weight.mul_(5)  # neither uniform nor sure, and not the same for all images
            module.decoder.decoder.layers[0].weight.mul_(10)
    return module


def pictures(number: int = 3, shape=SHAPE) -> Tensor:
    return torch.rand(number, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def by_enumeration(module: TokenizerModule, x: Tensor, weight: float) -> Tensor:
    """Σ_z q(z|x) [−log p(x|z) + β (log q(z|x) − log p(z))] over all grids, written out."""
    log_q = module.scores(x).log_softmax(-1)
    total = torch.zeros(len(x), dtype=x.dtype)
    for first, second in itertools.product(range(CODES), repeat=2):
        log_joint = log_q[:, 0, first] + log_q[:, 1, second]
        logits = module.decoder.from_codes(torch.tensor([[first, second]]).expand(len(x), 2))
        nll = torch.nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="none").sum((1, 2))
        total = total + log_joint.exp() * (nll + weight * (log_joint + 2 * math.log(CODES)))
    return total


def gradients(module: TokenizerModule, value: Tensor) -> Tensor:
    """Of a sum, all parameters in one vector."""
    found = torch.autograd.grad(value.sum(), list(module.parameters()), retain_graph=True)
    return torch.cat([one.flatten() for one in found])


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_loss_and_gradient_are_those_of_enumeration(weight):
    module, x = build(), pictures()
    wanted = by_enumeration(module, x, weight)
    found = module.losses(x, kl_weight=weight)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradients(module, found), gradients(module, wanted))


def test_reinforce_has_the_gradient_of_enumeration_in_expectation():
    """A z-test of every parameter, 4,000 draws for one image."""
    module, x = build(Reinforce(2)), pictures(1)
    wanted = gradients(module, by_enumeration(module, x, 1.0))
    generator = torch.Generator().manual_seed(2)
    many = x.expand(400, *SHAPE)
    found = torch.stack([gradients(module, module.losses(many, generator=generator)) / 400 for _ in range(10)])
    error = (found.mean(0) - wanted).abs()
    spread = found.std(0) / math.sqrt(10)
    # Student's t with nine degrees of freedom, allowing for all the parameters at once.
    assert (error <= 9 * spread + 1e-9).all()
    assert (spread > 0).float().mean() > 0.3  # the others belong to pixels beyond the edge


@pytest.mark.parametrize("estimator", [GumbelSoftmax(), Direct("auto", changes=4), Direct(changes="gradient")])
def test_encoder_codebook_and_decoder_all_get_a_gradient(estimator):
    module = build(estimator)
    module.losses(pictures(20), generator=torch.Generator().manual_seed(0)).mean().backward()
    parts = (module.encoder.last.weight, module.decoder.codebook, module.decoder.decoder.layers[0].weight)
    for part in (*parts, module.log_precision):
        assert part.grad is not None
        assert part.grad.isfinite().all()
        assert part.grad.any()


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_without_codes_the_decoder_reads_the_encoders_vectors(likelihood):
    module, x = build(likelihood=likelihood), pictures()
    output = module.decoder.decoder(module.encoder(x))
    if likelihood == "bernoulli":
        wanted = torch.nn.functional.binary_cross_entropy_with_logits(output, x, reduction="none")
    else:
        wanted = 0.5 * (output - x).square() + 0.5 * math.log(2 * math.pi)
    losses = module.continuous_losses(x)
    torch.testing.assert_close(losses, wanted.sum((1, 2)))
    losses.sum().backward()
    assert module.encoder.last.weight.grad.any()
    assert module.decoder.decoder.layers[0].weight.grad.any()
    assert module.decoder.codebook.grad is None


def test_kl_is_per_image_and_does_not_depend_on_the_batch():
    module, x = build(), pictures(5)
    losses = module.losses(x)
    alone = torch.cat([module.losses(image[None]) for image in x])
    torch.testing.assert_close(losses, alone)
    terms = module.losses(x) - module.losses(x, kl_weight=0.0)
    log_q = module.scores(x).log_softmax(-1)
    torch.testing.assert_close(terms, (log_q.exp() * (log_q + math.log(CODES))).sum((1, 2)))


def test_kl_runs_from_nothing_to_all_cells():
    module, x = build(), pictures()
    with torch.no_grad():
        for precision, share in ((1e-9, 0.0), (1e9, 1.0)):
            module.log_precision.fill_(math.log(precision))
            wanted = torch.full((3,), share * 2 * math.log(CODES), dtype=torch.float64)
            torch.testing.assert_close(module.posterior(x).kl(), wanted, atol=1e-6, rtol=0)


def test_scores_are_minus_squared_distances_times_the_precision():
    module, x = build(), pictures()
    f, codebook = module.encoder(x), module.decoder.codebook
    distances = (f.unsqueeze(-2) - codebook).square().sum(-1)
    wanted = (-0.5 * module.log_precision.exp() * distances).log_softmax(-1)
    torch.testing.assert_close(module.scores(x).log_softmax(-1), wanted)
    assert torch.equal(module.encode(x).flatten(1), distances.argmin(-1))


def test_the_decoder_reads_a_mixture_of_codebook_vectors():
    module = build()
    mixture = torch.rand(6, 2, CODES, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).softmax(-1)
    vectors = torch.einsum("nci,id->ncd", mixture, module.decoder.codebook)
    torch.testing.assert_close(module.decoder(mixture), module.decoder.decoder(vectors))
    codes = torch.randint(CODES, (6, 2), generator=torch.Generator().manual_seed(4))
    one_hot = torch.nn.functional.one_hot(codes, CODES).double()
    torch.testing.assert_close(module.decoder(one_hot), module.decoder.from_codes(codes))


@pytest.mark.parametrize("shape", [(8, 8), (1, 8, 12), (3, 12, 8)])
@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_codes_there_and_back(shape, likelihood):
    module, x = build(shape=shape, codes=7, likelihood=likelihood), pictures(5, shape)
    codes = module.encode(x)
    assert codes.shape == (5, shape[-2] // 4, shape[-1] // 4)
    assert codes.dtype == torch.int64
    assert torch.equal(codes.flatten(1), module.posterior(x).scores.argmax(-1))
    torch.testing.assert_close(module.decode(codes), module.reconstruct(x, "hard"))
    assert module.decode(codes).shape == x.shape
    assert torch.equal(module.decode(codes), module.decode(codes.to(torch.int32)))


def test_hard_soft_sampled_and_relaxed_agree_when_the_encoder_is_sure():
    module, x = build(), pictures()
    with torch.no_grad():
        module.log_precision.fill_(math.log(1e9))
    ways = [module.reconstruct(x, how, generator=torch.Generator().manual_seed(0)) for how in ("hard", "soft")]
    ways += [module.reconstruct(x, how, generator=torch.Generator().manual_seed(0)) for how in ("sampled", "relaxed")]
    for other in ways[1:]:
        torch.testing.assert_close(other, ways[0], atol=1e-4, rtol=0)


def test_hard_and_soft_differ_when_it_is_not():
    module, x = build(), pictures()
    assert (module.reconstruct(x, "hard") - module.reconstruct(x, "soft")).abs().max() > 1e-3


def test_usage_counts_the_most_probable_codes():
    module, x = build(codes=5), pictures(40)
    codes = module.encode(x).flatten().tolist()
    usage = module.usage(x)
    assert usage.tolist() == pytest.approx([codes.count(code) / 80 for code in range(5)])
    assert perplexity(torch.full((8,), 1 / 8)) == pytest.approx(8)
    assert perplexity(torch.tensor([0.5, 0.5, 0.0])) == pytest.approx(2)


def test_codes_of_an_image_do_not_depend_on_its_neighbours():
    module, x = build(codes=7).train(), pictures(9)
    together = module.encode(x)
    assert torch.equal(together, torch.cat([module.encode(image[None]) for image in x]))


def test_negative_elbo_is_a_draw_of_the_bound():
    module, x = build(), pictures(1)
    with torch.no_grad():
        wanted = float(by_enumeration(module, x, 1.0))
    draws = module.negative_elbo(x.expand(4000, *SHAPE), generator=torch.Generator().manual_seed(5))
    assert abs(draws.mean().item() - wanted) < 4 * draws.std().item() / math.sqrt(4000)


class TestRefusals:
    @pytest.mark.parametrize("shape", [(28,), (27, 28), (28, 30), (2, 28, 28), (0, 8), (1, 1, 8, 8)])
    def test_shapes_that_do_not_divide(self, shape):
        with pytest.raises(ValueError, match="divisible by 4"):
            build(shape=shape)

    @pytest.mark.parametrize(
        "changes", [{"codes": 1}, {"likelihood": "poisson"}, {"scale": 2.0}, {"likelihood": "gaussian", "scale": 0.0}]
    )
    def test_settings(self, changes):
        with pytest.raises(ValueError, match=str(next(iter(changes)))):
            build(**changes)

    def test_an_image_of_the_wrong_size(self):
        with pytest.raises(ValueError, match=r"images of shape \(4, 8\).*got an array of shape \(2, 8, 8\)"):
            build().encode(torch.rand(2, 8, 8))

    def test_a_single_image(self):
        with pytest.raises(ValueError, match=r"\[N, 4, 8\]"):
            build().encode(torch.rand(4, 8))

    def test_whole_numbers_nan_and_pixels_out_of_range(self):
        module = build()
        with pytest.raises(ValueError, match="floating-point"):
            module.encode(torch.zeros(1, *SHAPE, dtype=torch.uint8))
        with pytest.raises(ValueError, match="NaN"):
            module.encode(torch.full((1, *SHAPE), torch.nan))
        with pytest.raises(ValueError, match=r"in \[0, 1\].*0 to 255"):
            module.encode(255 * torch.eye(8)[None, :4].double())

    @pytest.mark.parametrize("code", [-1, CODES, 99])
    def test_a_code_outside_the_vocabulary(self, code):
        with pytest.raises(ValueError, match=f"0 to 2, the vocabulary of this tokenizer, got {code}"):
            build().decode(torch.tensor([[[0, code]]]))

    def test_codes_that_are_no_grid_or_no_whole_numbers(self):
        with pytest.raises(ValueError, match=r"\[N, 1, 2\]"):
            build().decode(torch.zeros(3, 2, dtype=torch.int64))
        for kind in (torch.float32, torch.bool, torch.complex64):
            with pytest.raises(ValueError, match=f"whole numbers, as .* returns them, got {kind}"):
                build().decode(torch.zeros(3, 1, 2, dtype=kind))

    @pytest.mark.parametrize("kind", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8])
    def test_whole_numbers_of_any_kind(self, kind):
        codes = torch.tensor([[[0, 2]], [[1, 1]]])
        assert torch.equal(build().decode(codes.to(kind)), build().decode(codes))
        with pytest.raises(ValueError, match="0 to 2, the vocabulary of this tokenizer, got 120"):
            build().decode(torch.tensor([[[0, 120]]]).to(kind))

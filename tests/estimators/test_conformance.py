"""Every estimator on every latent that it supports."""

import copy

import pytest
import torch
from torch import Tensor, nn

import argrad
from argrad import Bits, Categorical, Latent, Permutation, estimators
from argrad.estimators import ESTIMATORS, Estimator
from problems import PROBLEMS, Problem, assert_mean, draws, make

CONFIGURATIONS = {
    "Exact": lambda: argrad.Exact(),
    "LocalExpectation": lambda: argrad.LocalExpectation(),
    "Direct": lambda: argrad.Direct(0.3),
    "Direct negative": lambda: argrad.Direct(-0.3),
    "Direct two-sided": lambda: argrad.Direct(0.3, two_sided=True),
    "Direct gradient": lambda: argrad.Direct(0.3, changes="gradient"),
    "Direct random": lambda: argrad.Direct(0.3, changes=3),
    "Direct auto": lambda: argrad.Direct("auto"),
    "DebiasedDirect": lambda: argrad.DebiasedDirect(),
    "DebiasedDirect one-sided": lambda: argrad.DebiasedDirect(0.7, two_sided=False),
    "DebiasedDirect random": lambda: argrad.DebiasedDirect(changes=2, draws=2),
    "DebiasedDirect gradient": lambda: argrad.DebiasedDirect(changes="gradient"),
    "GumbelSoftmax": lambda: argrad.GumbelSoftmax(0.5),
    "GumbelSoftmax straight-through": lambda: argrad.GumbelSoftmax(0.5, straight_through=True),
    "GumbelRao": lambda: argrad.GumbelRao(0.5, draws=3),
    "Reinforce none": lambda: argrad.Reinforce(baseline="none"),
    "Reinforce moving average": lambda: argrad.Reinforce(baseline="moving-average"),
    "Reinforce leave-one-out": lambda: argrad.Reinforce(samples=3),
    "Reinforce learnt": lambda: argrad.Reinforce(samples=2, baseline="learnt"),
    "Rebar": lambda: argrad.Rebar(0.5, eta=0.7),
    "Relax": lambda: argrad.Relax(),
    "Relax with cost": lambda: argrad.Relax(relaxed_cost=True),
    "Arm": lambda: argrad.Arm(),
    "DisArm": lambda: argrad.DisArm(),
    "PerturbedOptimizer": lambda: argrad.PerturbedOptimizer(0.5, samples=3),
    "PerturbedOptimizer latent": lambda: argrad.PerturbedOptimizer(samples=2, noise="latent"),
    "ImplicitMLE": lambda: argrad.ImplicitMLE(2.0, samples=2),
    "ImplicitMLE auto": lambda: argrad.ImplicitMLE("auto", two_sided=True),
    "ImplicitMLE gamma": lambda: argrad.ImplicitMLE(2.0, noise="sum-of-gamma", ones=2),
    "BlackboxDifferentiation": lambda: argrad.BlackboxDifferentiation(2.0),
    "GumbelSinkhorn": lambda: argrad.GumbelSinkhorn(0.5),
    "GumbelSinkhorn straight-through": lambda: argrad.GumbelSinkhorn(0.5, straight_through=True),
}
OWN_OBJECTIVE = [
    "GumbelSoftmax",
    "PerturbedOptimizer",
    "PerturbedOptimizer latent",
    "ImplicitMLE gamma",
    "BlackboxDifferentiation",
]
"""Those whose value is not the cost of a sample, and which say so."""
SAMPLES = 100_000


def supported(select=lambda estimator: True, problems=PROBLEMS):
    """Every (configuration, problem) pair that works together."""
    pairs = []
    for label, build in CONFIGURATIONS.items():
        estimator = build()
        pairs += [(label, name) for name in problems if select(estimator) and estimator.supports(make(name).latent)]
    return pairs


def simple(estimator: Estimator, scores: Tensor) -> Latent:
    """A latent that the estimator supports, on scores [4, 3]."""
    for latent in (Categorical(scores), Bits(scores)):
        if estimator.supports(latent):
            return latent
    return Permutation(scores.unsqueeze(-1).expand(4, 3, 3))


def smallest(estimator: Estimator) -> Problem:
    """A problem that the estimator supports."""
    return make("bits" if estimator.supports(make("bits").latent) else "permutation")


def trained(estimator: Estimator, problem: Problem, steps: int = 20) -> Estimator:
    """The estimator after a few steps on its own parameters and state, so that no check passes on zeros alone."""
    scores = problem.latent.scores.expand(8, *problem.latent.scores.shape).clone().requires_grad_()
    generator = torch.Generator().manual_seed(99)
    torch.manual_seed(0)
    optimiser = None
    for _ in range(steps):
        loss = estimator(problem.latent.with_scores(scores), problem.cost(problem.theta()), generator=generator).mean()
        if not list(estimator.parameters()):
            loss.backward()
            continue
        optimiser = optimiser or torch.optim.Adam(estimator.parameters(), 0.02)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return estimator


def test_every_estimator_is_configured():
    assert {label.split()[0] for label in CONFIGURATIONS} == set(ESTIMATORS)
    assert all(isinstance(getattr(estimators, name)(), Estimator) for name in ESTIMATORS)


@pytest.mark.parametrize(("label", "name"), supported(lambda estimator: estimator.unbiased))
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])  # one problem, and another
def test_unbiased_gradients(label, name, seed):
    problem = make(name, seed)
    estimator = trained(CONFIGURATIONS[label](), problem).eval()
    value, for_scores, for_theta = draws(estimator, problem, SAMPLES, seed)
    exact_value, exact_scores, exact_theta = problem.exact()
    assert_mean(value, exact_value, comparisons=3)
    assert_mean(for_scores, exact_scores, comparisons=3)
    assert_mean(for_theta, exact_theta, comparisons=3)


@pytest.mark.parametrize(
    ("label", "name"),
    [pair for pair in supported(lambda estimator: not estimator.unbiased) if pair[0] not in OWN_OBJECTIVE],
)
def test_biased_ones_keep_value_and_cost_gradient(label, name):
    problem = make(name)
    estimator = CONFIGURATIONS[label]()
    value, _, for_theta = draws(estimator, problem, SAMPLES)
    exact_value, _, exact_theta = problem.exact()
    assert_mean(value, exact_value, comparisons=2)
    assert_mean(for_theta, exact_theta, comparisons=2)


class OnlyForward(torch.autograd.Function):
    """A cost with parameters, whose derivative with respect to z raises."""

    @staticmethod
    def forward(ctx, z, theta):
        ctx.save_for_backward(z)
        return (z.flatten(1).sum(-1) - theta).square()

    @staticmethod
    def backward(ctx, upstream):
        raise AssertionError("the cost was differentiated with respect to z")


@pytest.mark.parametrize(("label", "name"), supported(lambda estimator: not estimator.needs_cost_gradient))
def test_black_box_cost(label, name):
    latent = make(name).latent
    scores = latent.scores.clone().requires_grad_()
    theta = torch.tensor(0.3, dtype=torch.float64)
    event = latent.event_dims

    def cost(z: Tensor) -> Tensor:
        flat = z.reshape(-1, *z.shape[z.dim() - event :])
        return OnlyForward.apply(flat, theta).reshape(z.shape[: z.dim() - event])

    CONFIGURATIONS[label]()(latent.with_scores(scores), cost).sum().backward()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("label", [label for label, build in CONFIGURATIONS.items() if build().needs_cost_gradient])
def test_needing_the_cost_gradient_is_no_idle_claim(label):
    estimator = CONFIGURATIONS[label]()
    latent = simple(estimator, torch.zeros(4, 3, dtype=torch.float64, requires_grad=True))
    event = latent.event_shape

    def cost(z: Tensor) -> Tensor:
        return OnlyForward.apply(z.reshape(-1, *event), torch.tensor(0.3)).reshape(z.shape[: z.dim() - len(event)])

    with pytest.raises(AssertionError, match="differentiated"):
        estimator(latent, cost).sum().backward()


@pytest.mark.parametrize(("label", "name"), supported())
def test_deterministic_in_its_noise(label, name):
    problem = make(name)
    estimator = trained(CONFIGURATIONS[label](), problem).eval()

    def call(**kwargs) -> tuple[Tensor, Tensor]:
        scores = problem.latent.scores.clone().requires_grad_()
        value = estimator(problem.latent.with_scores(scores), problem.cost(problem.theta()), **kwargs)
        value.sum().backward()
        return value.detach(), scores.grad

    noise = estimator.draw_noise(problem.latent, generator=torch.Generator().manual_seed(5))
    for first, second in zip(call(noise=noise), call(generator=torch.Generator().manual_seed(5)), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("label", CONFIGURATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [(), (1,), (0,), (2, 3)])
def test_batch_shapes_and_precisions(label, dtype, batch):
    for build in (
        lambda scores: Categorical(scores),
        lambda scores: Categorical(scores.unflatten(-1, (2, 3)), event_dims=2),
        lambda scores: Bits(scores),
    ):
        scores = torch.zeros(*batch, 6, dtype=dtype, requires_grad=True)
        latent = build(scores)
        estimator = CONFIGURATIONS[label]()
        if not estimator.supports(latent):
            continue
        event = latent.event_dims
        value = estimator(latent, lambda z, event=event: z.flatten(z.dim() - event)[..., 0].square())
        assert value.shape == batch
        assert value.dtype == dtype
        value.sum().backward()
        assert scores.grad.dtype == dtype
        assert scores.grad.isfinite().all()


@pytest.mark.parametrize("label", CONFIGURATIONS)
def test_half_precision_scores(label):
    scores = torch.zeros(5, 3, dtype=torch.bfloat16, requires_grad=True)
    for latent in (Categorical(scores), Bits(scores)):
        estimator = CONFIGURATIONS[label]()
        if estimator.supports(latent):
            estimator(latent, lambda z: z[..., 0].float().square()).sum().backward()
            assert scores.grad.dtype == torch.bfloat16
            assert scores.grad.isfinite().all()


@pytest.mark.parametrize("label", CONFIGURATIONS)
@pytest.mark.parametrize("name", ["impossible", "impossible bits"])
def test_impossible_outcomes_get_no_gradient(label, name):
    problem = make(name)
    estimator = CONFIGURATIONS[label]()
    if not estimator.supports(problem.latent):
        return
    value, for_scores, _ = draws(estimator, problem, 100)
    assert value.isfinite().all()
    assert for_scores.isfinite().all()
    assert (for_scores[..., 1] == 0).all()
    scores = problem.latent.scores.clone().requires_grad_()
    estimator(problem.latent.with_scores(scores), problem.cost(problem.theta())).mean().backward()
    for parameter in estimator.parameters():
        assert parameter.grad.isfinite().all()


@pytest.mark.parametrize(("label", "name"), supported(problems=("categorical", "categoricals", "bits")))
def test_declared_cost_evaluations(label, name):
    problem = make(name)
    seen = 0

    def cost(z: Tensor) -> Tensor:
        nonlocal seen
        seen += z.shape[: z.dim() - problem.latent.event_dims].numel()
        return problem.cost(problem.theta())(z)

    scores = problem.latent.scores.clone().requires_grad_()
    estimator = CONFIGURATIONS[label]()
    estimator(problem.latent.with_scores(scores), cost)
    assert seen == estimator.cost_evaluations(problem.latent) * problem.latent.batch_shape.numel()


@pytest.mark.parametrize("label", CONFIGURATIONS)
def test_no_gradient_wanted_means_one_look_at_the_cost(label):
    estimator = CONFIGURATIONS[label]()
    problem = smallest(estimator)
    state = copy.deepcopy({k: v for k, v in estimator.state_dict().items() if not nn.parameter.is_lazy(v)})
    with torch.no_grad():
        value = estimator(problem.latent, problem.cost(problem.theta()))
    assert not value.requires_grad
    for key, before in state.items():
        assert torch.equal(estimator.state_dict()[key], before)


@pytest.mark.parametrize("label", CONFIGURATIONS)
def test_state_round_trip(label):
    problem = smallest(CONFIGURATIONS[label]())
    estimator = trained(CONFIGURATIONS[label](), problem)
    restored = CONFIGURATIONS[label]()
    restored.load_state_dict(estimator.state_dict())
    first = draws(estimator.eval(), problem, 10)[1]
    torch.testing.assert_close(draws(restored.eval(), problem, 10)[1], first, rtol=0, atol=0)
    assert repr(restored) == repr(estimator)


def test_unsupported_latent_names_what_works():
    with pytest.raises(
        ValueError, match=r"Arm does not support Categorical\(batch=\(2,\).*these do: .*Direct"
    ) as error:
        argrad.Arm()(Categorical(torch.zeros(2, 3)), lambda z: z[..., 0])
    assert "DisArm" not in str(error.value).split("these do")[1]
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="needs a latent such as"):
        argrad.Direct()(torch.zeros(2, 3), lambda z: z[..., 0])


@pytest.mark.parametrize("label", CONFIGURATIONS)
def test_wrong_cost_shape(label):
    estimator = CONFIGURATIONS[label]()
    latent = simple(estimator, torch.zeros(4, 3, requires_grad=True))
    with pytest.raises(ValueError, match="one number per structure") as error:
        estimator(latent, lambda z: z)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("label", CONFIGURATIONS)
def test_wrong_noise_shape(label):
    estimator = CONFIGURATIONS[label]()
    if isinstance(estimator, argrad.Exact):
        return
    latent = simple(estimator, torch.zeros(4, 3, requires_grad=True))
    with pytest.raises(ValueError, match="noise"):
        estimator(latent, lambda z: z[..., 0], noise=torch.zeros(4, 2))


TRANSFORMABLE = [
    "Exact",
    "LocalExpectation",
    "Direct",
    "Direct two-sided",
    "Direct random",
    "DebiasedDirect",
    "DebiasedDirect one-sided",
    "DebiasedDirect random",
    "GumbelSoftmax",
    "GumbelSoftmax straight-through",
    "GumbelRao",
    "Reinforce none",
    "Reinforce leave-one-out",
    "Arm",
    "DisArm",
    "PerturbedOptimizer",
    "PerturbedOptimizer latent",
]


def gradient_function(label: str, name: str, device: str = "cpu"):
    """A function of (scores, noise) that returns the gradient estimate, and arguments for it."""
    problem = make(name)
    estimator = CONFIGURATIONS[label]().to(device)
    event = problem.latent.event_dims
    weights = problem.weights.to(device)

    def loss(scores: Tensor, noise) -> Tensor:
        latent = problem.latent.with_scores(scores)
        return estimator(
            latent, lambda z: ((z * weights).flatten(z.dim() - event).sum(-1) - 0.3).square(), noise=noise
        ).sum()

    latent = problem.latent.with_scores(problem.latent.scores.to(device))
    noise = estimator.draw_noise(latent, generator=torch.Generator(device).manual_seed(0))
    return loss, latent.scores, noise


@pytest.mark.parametrize(
    ("label", "name"), [pair for pair in supported(problems=("categorical", "bits")) if pair[0] in TRANSFORMABLE]
)
def test_compiles_whole(label, name):
    loss, scores, noise = gradient_function(label, name)
    plain = scores.clone().requires_grad_()
    loss(plain, noise).backward()
    compiled = scores.clone().requires_grad_()
    torch._dynamo.reset()
    torch.compile(loss, backend="aot_eager", fullgraph=True)(compiled, noise).backward()
    torch.testing.assert_close(compiled.grad, plain.grad)


@pytest.mark.parametrize(
    ("label", "name"), [pair for pair in supported(problems=("categorical", "bits")) if pair[0] in TRANSFORMABLE]
)
def test_vmap_of_grad(label, name):
    loss, scores, noise = gradient_function(label, name)
    plain = scores.clone().requires_grad_()
    loss(plain, noise).backward()
    copies = scores.expand(3, *scores.shape)
    many = torch.vmap(torch.func.grad(loss), in_dims=(0, None))(copies, noise)
    torch.testing.assert_close(many, plain.grad.expand_as(many))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("label", "name"), supported())
def test_same_gradient_on_gpu(label, name):
    problem = make(name)
    estimator = trained(CONFIGURATIONS[label](), problem).eval()
    noise = estimator.draw_noise(problem.latent, generator=torch.Generator().manual_seed(0))
    results = []
    for device in ("cpu", "cuda"):
        there = Problem(name, problem.latent.with_scores(problem.latent.scores.to(device)), problem.weights.to(device))
        scores = there.latent.scores.clone().requires_grad_()
        theta = problem.theta().to(device).requires_grad_()
        moved = tuple(part.to(device) for part in noise) if isinstance(noise, tuple) else noise.to(device)
        value = estimator.to(device)(there.latent.with_scores(scores), there.cost(theta), noise=moved)
        value.sum().backward()
        results.append((value.detach().cpu(), scores.grad.cpu(), theta.grad.cpu()))
    for on_cpu, on_gpu in zip(*results, strict=True):
        torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-4, atol=1e-5)  # control networks compute in float32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("label", [label for label in TRANSFORMABLE if "Arm" not in label])
def test_cuda_graph_capture(label):
    loss, scores, noise = gradient_function(label, "categorical", "cuda")
    static = scores.requires_grad_()
    expected = torch.autograd.grad(loss(static, noise), static)[0]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.autograd.grad(loss(static, noise), static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = torch.autograd.grad(loss(static, noise), static)[0]
    graph.replay()
    torch.testing.assert_close(captured, expected)

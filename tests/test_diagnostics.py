"""What a diagnosis reports is right: numbers against closed forms and enumeration, and nothing given is changed."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import argrad
from argrad import Bits, Categorical, Direct, Exact, GumbelSoftmax, Reconstruction, Reinforce, Relax, TableCost
from argrad.diagnostics import Diagnosis, diagnose
from argrad.diagnostics.measure import Moments, bias_with_error, exactly, measure
from argrad.diagnostics.plot import spread_out
from argrad.estimators import Estimator


def table_problem(seed: int = 0, examples: int = 3, k: int = 5, scale: float = 2.0) -> tuple[Categorical, TableCost]:
    generator = torch.Generator().manual_seed(seed)
    logits, costs = torch.randn(2, examples, k, generator=generator)
    return Categorical(logits), TableCost(scale * costs)


def exact_gradient(q: Categorical, costs: Tensor) -> Tensor:
    p = q.scores.softmax(-1)
    return p * (costs - (p * costs).sum(-1, keepdim=True))


def quadratic(z: Tensor) -> Tensor:
    """A cost of bits in which they interact: the squared distance of their number from 1/3 of them."""
    return (z.sum(-1) - z.shape[-1] / 3).square()


class Unforgiving(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, z: Tensor) -> Tensor:
        return z.square().sum(-1)

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        raise NotImplementedError("no derivative here")


@pytest.fixture(scope="module")
def everything() -> Diagnosis:
    """Every estimator on one small table problem."""
    q, cost = table_problem()
    return diagnose(q, cost, 4000, train_steps=60)


class TestNumbers:
    @pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, -0.5])
    @pytest.mark.parametrize("two_sided", [False, True])
    def test_direct_has_the_bias_of_its_closed_form(self, epsilon: float, two_sided: bool) -> None:
        q, cost = table_problem(1)
        row = diagnose(q, cost, 20_000, estimators=[Direct(epsilon, two_sided=two_sided)]).rows[0]
        h, c = q.scores.double(), cost.values.double()
        behind = h + epsilon * c if two_sided else h
        expected = (behind.softmax(-1) - (h - epsilon * c).softmax(-1)) / (2 * epsilon if two_sided else epsilon)
        bias = (expected - exact_gradient(q, cost.values)).norm().item()
        assert abs(row.bias - bias) < 4 * row.bias_error
        assert row.bias_error < 0.1 * exact_gradient(q, cost.values).norm()

    def test_unbiased_estimators_show_no_bias(self, everything: Diagnosis) -> None:
        rows = [row for row in everything.rows if row.unbiased]
        assert {"Exact", "LocalExpectation", "Reinforce", "Rebar", "Relax"} <= {row.estimator for row in rows}
        for row in rows:
            assert row.bias <= 4 * row.bias_error, row
        biased = everything.row("GumbelSoftmax(10.0)")
        assert biased.bias > 20 * biased.bias_error

    @pytest.mark.parametrize("seed", range(5))
    def test_the_error_of_a_bias_is_honest(self, seed: int) -> None:
        """Gaussian draws of known covariance around a known bias, in many dimensions."""
        generator = torch.Generator().manual_seed(seed)
        bias = torch.zeros(50, dtype=torch.float64)
        for length in (0.0, 0.05, 1.0):
            bias[0] = length
            groups = bias + torch.randn(20, 50, dtype=torch.float64, generator=generator) / math.sqrt(50)
            mean = groups.mean(0)
            moments = Moments(1000, mean, 50.0, groups - mean, math.nan)
            measured, error = bias_with_error(moments, exactly(torch.zeros(50)))
            assert abs(measured - length) < 4 * error
            assert 0.01 < error < 0.25

    def test_variance_of_reinforce_is_the_enumerated_one(self) -> None:
        q, cost = table_problem(2)
        row = diagnose(q, cost, 40_000, estimators=[Reinforce(baseline="none")]).rows[0]
        p = q.scores.double().softmax(-1)
        score = torch.eye(q.values, dtype=torch.float64) - p.unsqueeze(-2)  # [batch, z, event]
        draws = cost.values.double().unsqueeze(-1) * score
        second = (p * draws.square().sum(-1)).sum()
        variance = (second - (p.unsqueeze(-1) * draws).sum(-2).square().sum()).item()
        assert row.variance == pytest.approx(variance, rel=0.04)
        assert row.standard_deviation == pytest.approx(math.sqrt(row.variance))
        norm = exact_gradient(q, cost.values).norm().item()
        assert row.signal_to_noise == pytest.approx(norm / math.sqrt(variance), rel=0.1)

    def test_direct_follows_the_curves_of_the_closed_form(self, everything: Diagnosis) -> None:
        known = everything.closed_form
        assert known is not None
        for epsilon in (0.03, 0.3, 3.0):  # points of the curve too
            index = min(range(len(known.epsilons)), key=lambda i: abs(math.log(known.epsilons[i] / epsilon)))
            assert known.epsilons[index] == pytest.approx(epsilon)
            for two_sided, deviation in (
                ("", known.standard_deviation[index]),
                (", two_sided=True", known.standard_deviation_two_sided[index]),
            ):
                row = everything.row(f"Direct({epsilon}{two_sided})")
                width = 2 * epsilon if two_sided else epsilon
                moves = row.draws * row.variance * width**2 / 2  # or a little more: what the variance rests on
                assert row.standard_deviation == pytest.approx(deviation, rel=2 / math.sqrt(moves))

    def test_exact_has_no_error_at_all(self, everything: Diagnosis) -> None:
        row = everything.row("Exact")
        assert (row.bias, row.variance, row.signal_to_noise, row.error_at_equal_time) == (0, 0, math.inf, 0)
        assert row.cosine == pytest.approx(1)
        assert row.draws == 1

    def test_cosine_is_the_mean_over_draws(self) -> None:
        q, cost = table_problem(3)
        reference = exact_gradient(q, cost.values).double().flatten()
        moments = measure(Direct(0.01), q, cost, 400, torch.Generator().manual_seed(0), reference)
        assert -1 < moments.cosine < 0.5  # most draws are zero, and count as 0
        moments = measure(Exact(), q, cost, 400, torch.Generator().manual_seed(0), reference)
        assert moments.cosine == pytest.approx(1)

    def test_draws_in_small_chunks_give_the_same_law(self, monkeypatch: pytest.MonkeyPatch) -> None:
        q, cost = table_problem(4)
        whole = measure(Reinforce(2), q, cost, 2000, torch.Generator().manual_seed(0))
        monkeypatch.setattr("argrad.diagnostics.measure.MEMORY_LIMIT", 40_000)
        parts = measure(Reinforce(2), q, cost, 2000, torch.Generator().manual_seed(0))
        assert parts.draws == whole.draws == 2000
        assert parts.variance == pytest.approx(whole.variance, rel=0.15)

    def test_same_call_same_numbers(self) -> None:
        q, cost = table_problem(5)
        estimators: list[Estimator] = [Relax(), Direct("auto")]
        state = torch.random.get_rng_state()
        first, second = (diagnose(q, cost, 200, estimators=estimators, train_steps=5) for _ in range(2))
        assert [row.variance for row in first.rows] == [row.variance for row in second.rows]
        assert torch.equal(state, torch.random.get_rng_state())


class TestReference:
    def test_exact_where_it_can_be_enumerated(self, everything: Diagnosis) -> None:
        assert everything.reference == "exact"

    def test_unbiased_draws_where_not(self) -> None:
        """The cost is a sum over bits, so the gradient is known although 2^40 vectors are not enumerable."""
        q = Bits(torch.linspace(-1, 1, 40).unsqueeze(0))
        weights = torch.linspace(0, 2, 40)
        estimators: list[Estimator] = [Reinforce(2), Direct(1.0)]
        diagnosis = diagnose(q, lambda z: (z * weights).sum(-1), 2000, estimators=estimators)
        assert diagnosis.reference == "Reinforce(2), 8,000 draws"
        p = q.scores.double().sigmoid()
        truth = (weights * p * (1 - p)).norm().item()
        assert diagnosis.gradient_norm == pytest.approx(truth, rel=0.1)
        row = diagnosis.row("Direct(1.0)")
        bias = ((p - (q.scores - weights).double().sigmoid()) - weights * p * (1 - p)).norm().item()
        assert abs(row.bias - bias) < 4 * row.bias_error

    def test_a_reference_is_found_even_if_no_unbiased_estimator_was_asked_for(self) -> None:
        diagnosis = diagnose(Bits(torch.zeros(1, 30)), quadratic, 200, estimators=[Direct(0.3)])
        assert diagnosis.reference.startswith("LocalExpectation")


class TestRecommendation:
    def test_one_categorical_with_a_table_is_enumerated(self, everything: Diagnosis) -> None:
        assert everything.recommendation == "Exact"
        assert "5 structures" in everything.reason

    def test_forty_bits_are_not(self) -> None:
        generator = torch.Generator().manual_seed(0)
        q = Bits(torch.randn(4, 40, generator=generator))
        diagnosis = diagnose(q, quadratic, 400, epsilons=(0.1,), temperatures=(0.5,), train_steps=20)
        assert diagnosis.recommendation != "Exact"
        assert any(item.name == "Exact" and "2^40" in item.reason for item in diagnosis.left_out)
        assert diagnosis.recommendation in {row.name for row in diagnosis.rows}

    def test_local_expectation_wins_where_bits_do_not_interact(self) -> None:
        """Its estimate is then exact, whatever the sample."""
        q = Bits(torch.linspace(-1, 1, 30).expand(4, 30).clone())
        weights = torch.linspace(-3, 3, 30)
        diagnosis = diagnose(
            q, lambda z: (z * weights).sum(-1), 200, epsilons=(0.1,), temperatures=(0.5,), train_steps=5
        )
        assert diagnosis.recommendation == "LocalExpectation"
        assert "unbiased" in diagnosis.reason

    def test_a_hopelessly_slow_enumeration_is_not_recommended(self) -> None:
        q = Bits(torch.zeros(8, 14))
        estimators: list[Estimator] = [Exact(), argrad.LocalExpectation()]
        diagnosis = diagnose(q, lambda z: z.sum(-1), 200, estimators=estimators)
        assert diagnosis.recommendation == "LocalExpectation"
        assert "enumerating takes" in diagnosis.reason


class TestNothingIsChanged:
    def test_no_gradient_is_left_on_the_decoder_or_the_scores(self) -> None:
        torch.manual_seed(0)
        encoder, decoder = nn.Linear(6, 4), nn.Linear(4, 6)
        x = (torch.rand(5, 6) > 0.5).float()
        weights = decoder.weight.detach().clone()
        q = Categorical(encoder(x))
        diagnosis = diagnose(q, Reconstruction(x, decoder), 100, epsilons=(0.1,), temperatures=(0.5,), train_steps=3)
        assert len(diagnosis.rows) > 10
        for parameter in (*encoder.parameters(), *decoder.parameters()):
            assert parameter.grad is None
        assert torch.equal(weights, decoder.weight)

    def test_the_users_estimator_is_copied(self) -> None:
        q, cost = table_problem(6)
        estimator = Direct("auto")
        estimator.train()
        before = estimator.epsilon.item()
        diagnosis = diagnose(q, cost, 100, estimators=[estimator], train_steps=30)
        assert estimator.epsilon.item() == before
        assert estimator.training
        assert diagnosis.rows[0].adapted != before
        assert "settled" in diagnosis.rows[0].note

    def test_it_works_under_no_grad(self) -> None:
        q, cost = table_problem(7)
        with torch.no_grad():
            assert diagnose(q, cost, 100, estimators=[GumbelSoftmax(1.0)]).rows[0].variance > 0


class TestLeftOut:
    @pytest.mark.parametrize(
        ("cost", "reason"),
        [
            (lambda z: Unforgiving.apply(z), "NotImplementedError: no derivative here"),
            (lambda z: torch.from_numpy(z.numpy().sum(-1)), "RuntimeError: Can't call numpy"),
            (lambda z: z.detach().sum(-1), "does not depend differentiably"),
            (lambda z: z.round().sum(-1), "piecewise constant"),
            (lambda z: (z == 1).sum(-1).float(), "does not depend differentiably"),
        ],
    )
    def test_a_cost_without_derivative_leaves_out_those_that_need_it(
        self, cost: argrad.costs.Cost, reason: str
    ) -> None:
        q = Bits(torch.zeros(2, 4))
        diagnosis = diagnose(q, cost, 100, epsilons=(0.1,), temperatures=(0.5,), train_steps=2)
        left_out = {item.name: item.reason for item in diagnosis.left_out}
        assert {"GumbelSoftmax", "GumbelRao", "Rebar"} <= set(left_out)
        assert reason in left_out["GumbelSoftmax"]
        assert {"Reinforce", "Relax", "Arm", "DisArm", "LocalExpectation", "Exact"} <= {
            row.estimator for row in diagnosis.rows
        }
        assert not any(row.needs_cost_gradient for row in diagnosis.rows)
        assert "Left out" in diagnosis.table()

    def test_a_decoder_that_rules_out_tables(self) -> None:
        torch.manual_seed(0)
        decoder = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6))
        x = (torch.rand(5, 6) > 0.5).float()
        estimators: list[Estimator] = [Exact(), Direct(0.1), Reinforce(2)]
        diagnosis = diagnose(Categorical(torch.zeros(5, 3)), Reconstruction(x, decoder), 100, estimators=estimators)
        assert [row.name for row in diagnosis.rows] == ["Reinforce(2)"]
        assert all("BatchNorm1d in train mode" in item.reason for item in diagnosis.left_out)
        assert diagnosis.reference.startswith("Reinforce(2)")

    def test_none_that_works_is_an_error(self) -> None:
        with pytest.raises(ValueError, match=r"none of the estimators can be measured.*for bits only"):
            diagnose(Categorical(torch.zeros(1, 3)), lambda z: z[..., 0], 100, estimators=[argrad.Arm()])


class TestReport:
    def test_json_round_trip(self, everything: Diagnosis) -> None:
        text = everything.to_json()
        assert "\n" not in text
        back = json.loads(text)
        assert back == everything.to_dict()
        assert len(back["rows"]) == len(everything.rows)
        assert back["rows"][0]["signal_to_noise"] is None  # infinite: Exact

    def test_table_names_every_estimator_and_the_recommendation(self, everything: Diagnosis) -> None:
        text = everything.table()
        for row in everything.rows:
            assert row.estimator in text
        assert "Recommended: Exact." in text
        assert len(everything.table(every=True).splitlines()) > len(text.splitlines())
        assert max(map(len, text.split("\n\n")[1].splitlines())) <= 120

    def test_plot_writes_a_picture(self, everything: Diagnosis, tmp_path: Path) -> None:
        path = tmp_path / "picture.png"
        everything.plot(path)
        assert path.read_bytes().startswith(b"\x89PNG")

    def test_plot_of_few_rows(self, tmp_path: Path) -> None:
        q, cost = table_problem(8)
        for number, estimators in enumerate(([Exact()], [Direct(0.1)])):
            diagnose(q, cost, 100, estimators=estimators).plot(tmp_path / f"{number}.png")

    def test_a_constant_cost_has_no_gradient_to_compare_with(self) -> None:
        diagnosis = diagnose(Bits(torch.zeros(1, 2)), lambda z: 0 * z.sum(-1) + 1, 100, estimators=[Reinforce(2)])
        assert diagnosis.gradient_norm == 0
        row = diagnosis.to_dict()["rows"][0]
        assert row["relative_bias"] is None
        assert row["cosine"] is None
        assert "Recommended" in str(diagnosis)

    def test_a_missing_row_names_those_there_are(self, everything: Diagnosis) -> None:
        with pytest.raises(KeyError, match="LocalExpectation"):
            everything.row("Nonsense")

    def test_labels_are_spread_out_and_stay_near(self) -> None:
        assert spread_out([0.0, 5.0], 1.0) == [0.0, 5.0]
        assert spread_out([1.0, 1.0, 1.0], 1.0) == [0.0, 1.0, 2.0]
        assert spread_out([], 1.0) == []


class TestErrors:
    @pytest.mark.parametrize("arguments", [{"samples": 10}, {"train_steps": -1}, {"horizon": 0}])
    def test_numbers_out_of_range(self, arguments: dict[str, int]) -> None:
        q, cost = table_problem()
        with pytest.raises(ValueError, match=f"{next(iter(arguments))} must be at least"):
            diagnose(q, cost, **arguments)  # type: ignore[arg-type]

    def test_not_a_latent(self) -> None:
        with pytest.raises(ValueError, match="needs a latent"):
            diagnose(torch.zeros(2, 3), lambda z: z[..., 0])  # type: ignore[arg-type]

    def test_no_example(self) -> None:
        with pytest.raises(ValueError, match="at least one example"):
            diagnose(Bits(torch.zeros(0, 3)), lambda z: z[..., 0])

    def test_cost_of_the_wrong_shape(self) -> None:
        with pytest.raises(ValueError, match="one number per structure"):
            diagnose(Bits(torch.zeros(2, 3)), lambda z: z)

    def test_cost_that_is_not_a_number(self) -> None:
        with pytest.raises(ValueError, match="the cost of a sample is nan"):
            diagnose(Bits(torch.zeros(2, 3)), lambda z: z.sum(-1) * math.nan)

    def test_errors_of_the_cost_itself_are_not_swallowed(self) -> None:
        def broken(z: Tensor) -> Tensor:
            raise ZeroDivisionError("a bug of the user's")

        with pytest.raises(ZeroDivisionError):
            diagnose(Bits(torch.zeros(2, 3)), broken)


@pytest.mark.parametrize(
    "q",
    [
        Categorical(torch.tensor([[0.0, -torch.inf, 1.0]])),
        Categorical(torch.zeros(2, 3, 2), event_dims=2),
        Bits(torch.tensor([-torch.inf, 0.5])),
        Categorical(torch.zeros(2, 2, 3, dtype=torch.float64)),
    ],
    ids=repr,
)
def test_shapes_and_impossible_values(q: argrad.Latent) -> None:
    def cost(z: Tensor) -> Tensor:
        flat = z.flatten(z.dim() - q.event_dims)
        return (flat * torch.arange(flat.shape[-1], dtype=z.dtype)).sum(-1).square()

    diagnosis = diagnose(q, cost, 200, epsilons=(0.1,), temperatures=(0.5,), train_steps=2)
    for row in diagnosis.rows:
        assert math.isfinite(row.variance), row
        if row.unbiased:
            assert row.bias <= 4 * row.bias_error, row


@pytest.mark.parametrize("law", ["gibbs", "perturb"])
def test_structured_latents(law):
    generator = torch.Generator().manual_seed(0)
    q = argrad.PairwiseBits(torch.randn(2, 3, generator=generator), torch.randn(3, 3, generator=generator), law=law)
    measured = [argrad.Exact(), argrad.Reinforce(2), argrad.Direct(0.5), argrad.Direct(0.5, changes="gradient")]
    if law == "perturb":
        measured.append(argrad.DebiasedDirect())  # the only kind that can be the reference here
    result = diagnose(q, lambda z: (z.sum(-1) - 1).square(), samples=200, estimators=measured)
    left_out = {item.name: item.reason for item in result.left_out}
    if law == "gibbs":
        assert result.reference == "exact"
        assert not left_out
    else:
        assert "not known under law='perturb'" in left_out["Exact"]
        assert "Reinforce" in left_out
    assert result.row("Direct(0.5, changes='gradient')").milliseconds > 0

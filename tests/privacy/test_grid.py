"""Noise on whole numbers: its law, its exact cost by enumeration, and sums that exclude no table."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.types import Array
from fedscaffold.federation import (
    ClientUpdate,
    ProblemTask,
    RunConfig,
    SitePolicy,
    handle_request,
    initial_ledger,
    train_request,
)
from fedscaffold.federation.messages import message_of
from fedscaffold.privacy import ClientLevel, RecordLevel, epsilon, grid
from fedscaffold.privacy.grid import CLIP, clipped, clipped_sum, discrete_gaussian, noise_units


def law(sigma: float, reach: int) -> Array:
    """Probabilities of −reach, ..., reach."""
    k = np.arange(-reach, reach + 1)
    found = np.exp(-(k**2) / (2.0 * sigma**2))
    return np.asarray(found / found.sum())


def exact_delta(p: Array, shift: int, eps: float) -> float:
    """The least δ of a law on whole numbers and the same law shifted, by the sum over all numbers."""
    wide = np.concatenate([p, np.zeros(shift)])
    moved = np.concatenate([np.zeros(shift), p])
    return float(np.maximum(wide - math.exp(eps) * moved, 0.0).sum())


@pytest.mark.parametrize(("sigma", "count", "sure"), [(1, 50_000, 1e-9), (3, 200_000, 1e-9), (3, 4000, 2.0)])
def test_the_sampler_has_its_law(sigma: int, count: int, sure: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """By floats, and with every choice made by decimal arithmetic; χ² at five standard deviations."""
    monkeypatch.setattr(grid, "SURE", sure)
    drawn = discrete_gaussian(sigma, count)
    reach = int(2.5 * sigma)
    expected = count * law(sigma, 20 * sigma)[20 * sigma - reach : 20 * sigma + reach + 1]
    found = np.array([(drawn == k).sum() for k in range(-reach, reach + 1)])
    chi = float(((found - expected) ** 2 / expected).sum())
    assert chi < found.size + 5.0 * math.sqrt(2.0 * found.size)


def test_large_noise_has_its_variance_and_no_pattern() -> None:
    drawn = discrete_gaussian(2**40, 40_000)
    assert drawn.size == 40_000
    assert abs(drawn.std() / 2**40 - 1.0) < 4.0 / math.sqrt(80_000)
    assert abs((drawn % 2).mean() - 0.5) < 0.02
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.02


def test_exact_decisions_are_right_on_both_sides_of_the_threshold() -> None:
    """exp(−1) in 64 bits: the words next to it are decided without more bits."""
    first = int(Fraction(math.exp(-1.0)) * 2**64)  # right to 53 bits
    assert grid._happens_exactly(first - 2**12, 64, Fraction(1))
    assert not grid._happens_exactly(first + 2**12, 64, Fraction(1))
    assert grid._happens_exactly(2**64 - 1, 64, Fraction(0))


@pytest.mark.parametrize("sigma", [8, 64, 512])
def test_the_law_is_that_of_a_rounded_gaussian_as_closely_as_said(sigma: int) -> None:
    from scipy.stats import norm

    k = np.arange(6 * sigma)
    rounded = norm.sf((k - 0.5) / sigma) - norm.sf((k + 0.5) / sigma)
    ratio = np.log(law(sigma, 40 * sigma)[40 * sigma :][: k.size] / rounded)
    assert (np.abs(ratio) <= (k**2 + sigma**2) / (8.0 * sigma**4) + 1e-12).all()


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("z", [0.7, 2.0, 6.0])
def test_the_accountants_epsilon_is_exact_on_whole_numbers(z: float, steps: int) -> None:
    """T releases with shifts of Δ: δ by enumeration of their sum's law is the accountant's."""
    shift, delta = 400, 1e-4
    sigma = z * shift
    # T shifts of Δ are distinguished by their sum alone, whose noise is T such numbers
    reach = int(9 * sigma)
    one = law(sigma, reach)
    together = one
    for _ in range(steps - 1):
        together = np.convolve(together, one)
    found = epsilon(noise_multiplier=z, delta=delta, steps=steps, adjacency="remove")
    exact = exact_delta(together, steps * shift, found)
    assert exact == pytest.approx(delta, rel=0.02)  # of a grid of 280 units per standard deviation and more
    finer = exact_delta(
        law(8.0 * sigma, 8 * reach),
        8 * shift,
        epsilon(noise_multiplier=z, delta=delta, steps=1, adjacency="remove"),
    )
    assert finer == pytest.approx(delta, rel=0.003)


def test_vectors_cost_what_their_norm_costs() -> None:
    """Two numbers that change by 30 and 40 units, by enumeration, are one that changes by 50."""
    sigma, delta = 75.0, 1e-3
    p = law(sigma, 600)
    both = np.outer(np.concatenate([p, np.zeros(30)]), np.concatenate([p, np.zeros(40)]))
    moved = np.outer(np.concatenate([np.zeros(30), p]), np.concatenate([np.zeros(40), p]))
    eps = epsilon(noise_multiplier=sigma / 50.0, delta=delta, steps=1, adjacency="remove")
    exact = float(np.maximum(both - math.exp(eps) * moved, 0.0).sum())
    assert exact == pytest.approx(delta, rel=0.01)


def test_parts_of_noise_add_up_to_the_noise() -> None:
    """The sum of three numbers of variance 16 has the law of one of variance 48, to a factor 1 ± 10⁻¹²."""
    part = law(4.0, 120)
    total = np.convolve(np.convolve(part, part), part)
    whole = law(math.sqrt(48.0), 360)
    middle = slice(360 - 40, 360 + 41)
    np.testing.assert_allclose(total[middle], whole[middle], rtol=1e-11)


def test_clipped_vectors_are_within_the_clip_in_whole_numbers() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(2000, 7)) * 10.0 ** rng.integers(-3, 4, size=(2000, 1))
    vectors[0], vectors[1], vectors[2] = np.inf, np.nan, 1e308
    whole = clipped(vectors, 0.3)
    for row in whole.tolist():
        assert sum(k * k for k in row) <= CLIP**2  # Python's whole numbers have no limit
    np.testing.assert_allclose(whole[3:] * (0.3 / CLIP), fs.core.privacy.clipped_rows(vectors[3:], 0.3), atol=1e-8)
    assert not whole[:2].any()
    assert clipped(np.array([0.3, 0.0]), 0.3).tolist() == [CLIP - 1, 0]


@pytest.mark.parametrize("multiplier", [0.0, 1e-4, 2e6, math.inf, math.nan])
def test_noise_that_is_too_small_or_too_large_is_rejected(multiplier: float) -> None:
    with pytest.raises(fs.InvalidInput, match="the noise must be between"):
        noise_units(multiplier)


def problem(seed: int, n: int = 30) -> Any:
    rng = np.random.default_rng(seed)
    return fs.problems.Ridge([rng.normal(size=(n, 3))], [rng.normal(size=n)], l2=0.1)


@pytest.mark.parametrize("kind", ["ridge", "poisson", "multinomial"])
def test_one_other_row_changes_a_sum_by_twice_the_clip_at_most(kind: str) -> None:
    """In exact arithmetic, for rows of any size and any model."""
    rng = np.random.default_rng(3)
    made = {"ridge": fs.problems.Ridge, "poisson": fs.problems.Poisson, "multinomial": fs.problems.Multinomial}[
        kind
    ]
    x, y = rng.normal(size=(40, 3)) * 100.0, rng.integers(0, 3, 40).astype(float)
    for scale in (1e-3, 1.0, 1e3):
        theta, at = scale * rng.normal(size=9 if kind == "multinomial" else 3), np.arange(40)
        sums = []
        for row in ([1e6, -3.0, 1e-9], [0.0, 0.0, 0.0]):
            x[0] = row
            sums.append(clipped_sum(made([x.copy()], [y], l2=0.1), theta, at, 0.7))
        change = [int(a) - int(b) for a, b in zip(*sums, strict=True)]
        assert sum(k * k for k in change) <= (2 * CLIP) ** 2


def asked(privacy: Any, theta: Array) -> Any:
    method = fs.Scaffold(step_size=0.1, local_steps=1)
    config = RunConfig(name="demo", method=method, n_clients=1, dim=3, privacy=privacy)
    return train_request(config, initial_ledger(config, theta), client=0)


@pytest.mark.parametrize("seed", range(40))
def test_no_bit_of_a_deployed_message_excludes_a_table(seed: int, tmp_path: Any) -> None:
    """Some whole number of noise, of usual size, turns every other table into the very message that was sent."""
    theta, privacy = np.array([0.3, -1.7, 123.4]), RecordLevel(clip=1.0, noise_multiplier=5.0)
    sent: Any = handle_request(asked(privacy, theta), ProblemTask(problem(0)), tmp_path, SitePolicy())
    penalty = problem(0).penalty
    total = np.rint(((theta - sent.vector) / 0.1 - penalty * theta) * 30 * CLIP)
    again = min(
        np.abs(theta - 0.1 * ((total + k) * (1.0 / CLIP) / 30 + penalty * theta) - sent.vector).max()
        for k in (-1, 0, 1)
    )
    assert again <= np.abs(theta).max() * 2.0**-52
    noise = total - clipped_sum(problem(seed + 1), theta, np.arange(30), 1.0)
    assert (noise == np.rint(noise)).all()
    assert np.abs(noise).max() < 12 * noise_units(5.0) + 30 * CLIP


@pytest.mark.parametrize("theta", [np.zeros(3), np.array([0.3, -1.7, 1e30])])
def test_a_noisy_message_of_a_client_is_whole_numbers(theta: Array, tmp_path: Any) -> None:
    """Beside a large θ the change and its noise would be rounded away; θ is added at the server."""
    request = asked(ClientLevel(clip=0.25, noise_multiplier=3.0), theta)
    sent, other = (
        handle_request(request, ProblemTask(problem(0)), tmp_path / name, SitePolicy()) for name in ("a", "b")
    )
    assert isinstance(sent, ClientUpdate)
    assert isinstance(other, ClientUpdate)
    assert (sent.vector != other.vector).all()  # each has new noise
    np.testing.assert_array_equal(sent.vector, np.rint(sent.vector))
    unit = 0.25 / CLIP
    np.testing.assert_array_equal(message_of(request.config, sent.vector, theta), theta + unit * sent.vector)


def test_rows_enter_a_message_through_noisy_whole_numbers_alone(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other rows, and noise that makes up for them: the same bits after five local steps in floating point."""
    method = fs.Scaffold(step_size=0.1, local_steps=5)
    privacy = RecordLevel(clip=1.0, noise_multiplier=5.0)
    config = RunConfig(name="demo", method=method, n_clients=1, dim=3, privacy=privacy)
    request = train_request(config, initial_ledger(config, np.array([0.3, -1.7, 123.4])), client=0)
    released: list[Any] = []
    totals: list[Any] = []

    def summed(*given: Any) -> Any:
        totals.append(clipped_sum(*given))
        return totals[-1]

    def drawn(sigma: int, count: int) -> Any:
        if len(totals) <= 5:  # the first table
            released.append(totals[-1] + discrete_gaussian(sigma, count))
        return released[(len(totals) - 1) % 5] - totals[-1]

    monkeypatch.setattr(grid, "clipped_sum", summed)
    monkeypatch.setattr(grid, "discrete_gaussian", drawn)
    one, two = (
        handle_request(request, ProblemTask(problem(seed)), tmp_path / str(seed), SitePolicy()) for seed in (0, 1)
    )
    assert isinstance(one, ClientUpdate)
    assert isinstance(two, ClientUpdate)
    assert len(totals) == 10
    assert not np.array_equal(totals[0], totals[5])
    assert one.vector.tobytes() == two.vector.tobytes()

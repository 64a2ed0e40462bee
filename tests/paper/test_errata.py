"""Both sides of every row of the page "Errata" that `verify` does not measure, in exact arithmetic if possible.

Rows with a simulation behind them (Lemmas 5.1, C.2, C.4, E.2, E.4, Theorem 4.9) are in test_verify.py, constants
in tests/theory/bounds/test_constants_exactly.py. Each test has the printed statement and the corrected one.
"""

from collections.abc import Iterable
from fractions import Fraction as F
from itertools import product
from pathlib import Path

import numpy as np


def total(values: Iterable[F]) -> F:
    """Return the sum as a fraction, also of nothing."""
    return sum(values, F(0))


PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "theory" / "errata.md"


def test_co_coercivity_and_lemma_4_1_need_every_loss_convex() -> None:
    """Curvatures μ ± a with equal probability, N = H = 1: f is μ-strongly convex and every F^z is 1-smooth."""
    mu, a, L, gamma = F(1, 20), F(9, 10), F(1), F(495, 1000)
    curvatures = (mu + a, mu - a)
    assert max(map(abs, curvatures)) <= L
    assert gamma <= 1 / (2 * L)
    assert gamma * (L + mu) <= 1
    second = total(k**2 for k in curvatures) / 2
    assert second == F(65, 80) > L * mu  # E‖g(θ) − g(θ')‖² against L⟨∇f(θ) − ∇f(θ'), θ − θ'⟩, at distance 1
    ratio = total((1 - gamma * k) ** 2 for k in curvatures) / 2
    assert round(float(ratio), 3) == 1.150
    assert ratio > 1 > 1 - gamma * mu / 4
    convex = {2 * mu: F(1, 2), F(0): F(1, 2)}  # the same mean, and convex
    assert total(p * (1 - gamma * k) ** 2 for k, p in convex.items()) <= 1 - gamma * mu / 4


def test_lemma_4_3_fails_outside_its_proof_s_step_size() -> None:
    """g(θ) = Aθ + e in two dimensions, three outcomes, N = H = 1, θ = (1, 0), θ* = 0: A1, A2 and all of A5 hold.

    The length of e is always σ and ‖A − E A‖ ≤ L, so ‖ε(θ)‖² ≤ (σ + L‖θ‖)² ≤ (1 + δ)σ² + (1 + 1/δ)L²‖θ‖², for
    every outcome and thus for every moment.
    """
    L, sigma, delta, x, y = F(1), F(3, 25), F(1, 100), F(13, 85), F(84, 85)
    law = [  # probability, u with A = uuᵀ, e
        (F(85, 196), (x, y), (sigma * x, sigma * y)),
        (F(85, 196), (x, -y), (sigma * x, -sigma * y)),
        (F(13, 98), (F(0), F(0)), (-sigma, F(0))),
    ]
    assert total(q for q, *_ in law) == 1
    assert [total(q * e[k] for q, _, e in law) for k in (0, 1)] == [0, 0]
    assert {e[0] ** 2 + e[1] ** 2 for *_, e in law} == {sigma**2}
    assert {u[0] ** 2 + u[1] ** 2 for _, u, _ in law} == {F(0), L}  # convex, and L-smooth
    assert total(q * u[0] * u[1] for q, u, _ in law) == 0
    mu = min(total(q * u[k] ** 2 for q, u, _ in law) for k in (0, 1))
    assert mu == F(169, 8330)

    def sides(gamma: F) -> tuple[F, F]:
        moved = [(q, 1 - gamma * (u[0] ** 2 + e[0]), -gamma * (u[0] * u[1] + e[1])) for q, u, e in law]
        after = total(q * (a**2 + b**2) for q, a, b in moved)
        return after, 1 - gamma * mu / 4 + 2 * gamma**2 * (1 + delta) * sigma**2

    left, right = sides(1 / (L + mu))
    assert (round(float(left), 4), round(float(right), 4)) == (1.0241, 1.0230)
    inside, limit = sides(1 / (4 * L))
    assert (round(float(inside), 3), round(float(limit), 3)) == (0.994, 1.001)


def test_theorem_4_4_does_not_follow_from_lemma_4_3_alone() -> None:
    """2γ²H/(1 − (1 − γμ/4)^H) is more than 8γ/μ for H > 1; the sum over single local steps is not."""
    gamma, mu, H = F(1, 40), F(1), 10
    rate = 1 - gamma * mu / 4
    assert 2 * gamma**2 * H / (1 - rate**H) > 8 * gamma / mu
    assert 40 * gamma**2 * H / (1 - (1 - gamma * mu / 6) ** H) > 240 * gamma / mu
    assert total(2 * gamma**2 * rate**k for k in range(10 * H)) <= 8 * gamma / mu


def test_corollary_b_4_lacks_a_power() -> None:
    """f_c = sθ²/2 and gradients sθ ± s, N = 2, H = 1: then ξ_c = −s(z_c − z̄), and units give it away."""
    s = F(1000)
    gamma, sigma2 = 1 / (48 * s), s**2  # μ = L = s; γL ≤ 1/48 and γH(L + μ) ≤ 1/24 are met
    sixth = total((s * F(a - b, 2)) ** 6 for a, b in product((-1, 1), repeat=2)) / 4
    assert sixth == s**6 / 2
    bound = 240 * gamma * sigma2 / s
    assert bound == 5
    assert gamma**2 * sixth > bound**3  # printed: (γ²H² mean E‖ξ_c − ξ*_c‖⁶)^{1/3} ≤ 240γσ*²/μ
    assert (gamma**2) ** 3 * sixth <= bound**3


def test_lemma_c_6_has_no_n_to_divide_by() -> None:
    """R₃^θ = (γ²/N²) Σ_{c,c'} E R_c R_c'ᵀ of equal clients without noise is γ²RRᵀ for every N."""
    gamma, R = F(1, 10), F(3)
    for N in (1, 10, 1000):
        double = gamma**2 / N**2 * total(R * R for _ in range(N)) * N
        assert double == gamma**2 * R**2
    assert double > gamma**2 * R**2 / N


def test_lemma_c_5_s_third_remainder_is_divided_by_h_once() -> None:
    """The product of mean C̃_i(ξ_i − ξ*_i) with (R_c' − R̄)/H, both from Lemma C.2."""
    H, mean_tilde_xi, spread = F(4), F(2), F(3)
    in_c_2 = (-mean_tilde_xi) * (-spread / H)
    assert in_c_2 == mean_tilde_xi * spread / H
    assert in_c_2 != mean_tilde_xi / H * (spread / H)  # as printed
    own, mean = F(5), F(2)  # R_c and R̄: the fifth is the product of two deviations from the mean
    assert (own - mean) ** 2 != (own + mean) * (own - mean)  # as printed


def test_corollary_c_7_s_norms_are_not_traces() -> None:
    u, v = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    product = np.outer(u, v)
    assert abs(np.trace(product)) < np.linalg.norm(product, 2) <= np.linalg.norm(u) * np.linalg.norm(v)


def test_lemma_c_12_bounds_a_mean() -> None:
    """Curvatures 1, 1, 2 and H = 1: ‖Δ_3‖ = 2/3, ζ₂² = 2/9, and mean ‖Δ_c‖ = 4/9."""
    curvatures = (F(1), F(1), F(2))
    mean = total(curvatures) / 3
    deltas = [abs(k - mean) for k in curvatures]
    zeta2_squared = total(d**2 for d in deltas) / 3
    assert max(deltas) ** 2 > zeta2_squared
    assert (total(deltas) / 3) ** 2 <= zeta2_squared


def test_lemma_e_1_s_third_remainder_has_h_squared() -> None:
    """C̃ − γ(H−1)/2 A = −γ²(H−1)(H−2)/6 A² + …: four times as large for twice the H."""
    gamma = F(1, 10**6)

    def rest(H: int) -> F:
        return 1 - total((1 - gamma) ** h for h in range(H)) / H - gamma * (H - 1) / 2

    assert 3.9 < rest(200) / rest(100) < 4.1
    assert abs(rest(100) + gamma**2 * 99 * 98 / 6) < gamma**2


def test_lemma_f_1_takes_products_from_left_to_right() -> None:
    a, b = np.random.default_rng(0).integers(-3, 4, size=(2, 2, 2, 2))
    telescoped = (a[0] - b[0]) @ b[1] + a[0] @ (a[1] - b[1])
    assert (telescoped == a[0] @ a[1] - b[0] @ b[1]).all()
    assert (telescoped != a[1] @ a[0] - b[1] @ b[0]).any()  # the order that the paper's Notations define


def test_grad_lipschitz_and_its_right_side() -> None:
    """Appendix A.1's last display, ‖u‖ ≤ L‖u‖ for u = g(θ) − g(θ'), is false for L < 1; ‖u‖ ≤ L‖θ−θ'‖ is meant."""
    L, distance = F(1, 2), F(1)
    u = L * distance
    assert not u <= L * u
    assert u <= L * distance


def test_corollary_4_10_has_no_factor_of_heterogeneity() -> None:
    """H ∝ min(1, μ/ζ₂) and T ∝ max(1, ζ₂/μ): the product, which is gradients per client, has neither."""
    for ratio in (F(1, 2), F(1), F(29)):
        assert min(F(1), 1 / ratio) * max(F(1), ratio) == 1
    assert min(F(1), 1 / F(29)) != 1  # as printed


def test_theorem_4_9_s_start_needs_a_four() -> None:
    """One dimension, noise that is opposite to the start: ‖a + b‖² ≤ 2‖a‖² + 2‖b‖² is attained at a = b, twice."""
    start, stationary = F(1), F(-1)  # θ⁰ − θ*, and a stationary θ̂⁰ − θ*
    assert 2 * (start - stationary) ** 2 == 4 * start**2 + 4 * stationary**2 > 2 * start**2 + 4 * stationary**2


def test_burkholder_s_constant() -> None:
    """p* − 1 with p* = max(p, p/(p − 1)), squared: 5² for p = 6."""
    constant = max(F(6), F(6, 5)) - 1
    assert constant == 5 > F(3)


def test_minkowski_s_factor() -> None:
    """‖u + v‖² ≤ 2‖u‖² + 2‖v‖², and not ‖u‖² + ‖v‖², behind 600 and 3,000."""
    u, v = F(1), F(1)
    assert u**2 + v**2 < (u + v) ** 2 <= 2 * u**2 + 2 * v**2
    cube = 3**2 * F(3, 2) ** 3  # of the ξ-term's 3/2, by (a + b + c)³ ≤ 9(a³ + b³ + c³); 8 is printed
    assert F(8) < cube
    assert cube * F(3000, 24) ** 3 + 9 * (240**3 + 1) <= 600**3


def test_every_row_of_the_page_quotes_the_paper_with_its_place_and_names_its_test() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "| printed |" not in line]
    table = [row for row in rows if "test_" in row]
    assert len(table) >= 19
    known = {name for name in globals() if name.startswith("test_")}
    for path in (PAGE.parents[3] / "tests").rglob("test_*.py"):
        if path.parent.name in ("paper", "bounds"):
            lines = path.read_text(encoding="utf-8").splitlines()
            known |= {line.split("(")[0][4:] for line in lines if line.startswith("def test_")}
    for row in table:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == 5, row
        assert "“" in cells[1], row
        names = [word.strip("`, ") for word in cells[4].split() if "test_" in word]
        assert names, row
        assert set(names) <= known, names

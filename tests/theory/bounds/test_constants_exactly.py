"""Every constant of `bounds` against its derivation, in exact arithmetic.

Lengths are in units that make the statement a number: γσ²/μ for second moments, Lσ²/(μH) for control variates. A
condition γH(L + μ) ≤ ℓ gives γHL ≤ ℓ and, as μ ≤ L, γHμ ≤ ℓ/2. The constants of the sharp proof have roots;
test_sharp_proof.py computes them to 1e-15, a billionth of what they are rounded up by.
"""

from fractions import Fraction as F
from typing import Any

import pytest

from fedscaffold.theory import Constants
from fedscaffold.theory.bounds import MOMENTS, PROOFS, PaperProof, ScaffoldBounds
from tests.theory.bounds import proof_constants as proof

UNIT = Constants(
    mu=1.0, L=1.0, L_record=1.0, Q=0.0, G=0.0, zeta1=0.0, zeta2=0.0, sigma_star2=1.0, beta=0.0,
    noise_at_optimum=1.0, noise_variance_at_optimum=1.0, noise_lipschitz2=0.0, mu_at_optimum=1.0, L_at_optimum=1.0,
)  # fmt: skip
PAPER: PaperProof = PROOFS["paper"]  # type: ignore[assignment]


def stated(name: str, **more: Any) -> F:
    """Return a bound at μ = L = σ² = 1, γ = 2⁻¹⁰ and H = 1 over γ or over 1, as the exact value of the float."""
    value = getattr(ScaffoldBounds(UNIT, step_size=2.0**-10, local_steps=1, n_clients=1), name)(**more).value
    return F(value) * (1 if name == "control_variates" else 2**10)


def rounded_up(constant: F, derived: F, slack: F = F(1, 1000)) -> bool:
    """Return whether a constant is at least the derived one and not much larger; floats are exact fractions."""
    return derived <= constant <= derived * (1 + slack)


CRUDE = F(2) * 4  # Theorem 4.4: 2γ²σ² in each local step, times Σ_k (1 − γμ/4)^k ≤ 4/(γμ)


def third_line(ell: F) -> F:
    """‖θ_c^h − θ*‖² ≤ 2‖y‖² + 2a with a = γ²H²‖ξ_c − ξ*_c‖², y = θ_c^h − θ* + γh(ξ_c − ξ*_c).

    E‖y‖² ≤ ‖θ − θ*‖² + 2γ²Hσ² + (ℓ/3) a, as Σ_{h<H} γ³h²(L + μ/2) ≤ γ²H² γH(L + μ)/3.
    """
    return (2 + 2 * ell / 3) * CRUDE + 4 * ell / 2


def test_theorem_4_4_and_corollary_4_5() -> None:
    assert stated("stationary_mse") == CRUDE
    assert F(1, 3) <= 1 - F(1, 2) / 4  # the control variates' part: γH(L + μ)/3 ≤ (1 − γμ/4)^H


def test_the_third_line_of_corollary_4_5() -> None:
    derived = third_line(F(1, 12))
    assert derived == F(299, 18)
    assert rounded_up(stated("mean_local_iterates"), derived)
    assert F(16.6) < derived  # rounded the wrong way


def lemma_4_6(ell: F, noise: F) -> tuple[F, F]:
    """Solve M ≤ 2·8 + 4γHμ + 3a, a ≤ 4γHμ + (4(γHL)² + 2γ²Hβ)(mean of M over clients + M), with γβ ≤ noise·L."""
    factor = 4 * ell**2 + 2 * ell * noise
    local = (2 * CRUDE + 4 * ell / 2 + 3 * (4 * ell / 2 + factor * third_line(ell))) / (1 - 3 * factor)
    return local, 4 + (4 * ell + 2 * noise) * (third_line(ell) + local)


def test_lemma_4_6() -> None:
    """25.43 and 39.04 with γβ ≤ L/4, for the printed 28 and 54, which do not come out with the printed γβ ≤ L."""
    local, xi = lemma_4_6(F(1, 12), F(1, 4))
    assert rounded_up(F("25.43"), local)
    assert rounded_up(F("39.04"), xi)
    assert local <= stated("local_iterates") == 28
    assert xi <= stated("control_variates") == 54
    wide, wide_xi = lemma_4_6(F(1, 12), F(1))
    assert wide > 28
    assert wide_xi > 54


def test_lemma_4_7_s_spread_of_powers() -> None:
    """mean ‖Δ_c‖ ≤ (1 + 2γHL) ζ₂, which with γHL ≤ 1/12 is 7/6."""
    assert 1 + 2 * F(1, 12) == F(7, 6)


def test_the_papers_theorem_4_8() -> None:
    """Remainders r = E^{1/2}‖R_c‖² ≤ 600γHQσ²/μ by Cauchy–Schwarz, through Lemma C.9's coefficients at γHL ≤ 1/48.

    With s = √(γ/μ)σ: E^{1/2}‖a‖² and γH E^{1/2}‖b‖² are at most √8 s for the noise-free parts a of θ⁺ and b of
    ξ_c⁺, by Corollary 4.5, and γ E^{1/2}‖ε_c‖² ≤ √(γHμ · 47/19) s. ‖R^θ‖ ≤ γr(2|a| + 2γ|ε| + γr),
    γH‖R^{θ,ξ}‖ ≤ γr(|a| + γH|b| + 2γ|ε| + γr), γ²H²‖R^ξ‖ ≤ γr(2γH|b| + 2γ|ε| + γr).
    """
    ell, share = F(1, PAPER.length), F(1, PAPER.share_of_noise)
    assert 4 * (1 + 28 * share) == F(188, 19)
    assert 4 * (1 + 28 * share) <= F(PAPER.linear)
    root8, eps = F(2829, 1000), F(161, 1000)
    assert root8**2 >= 8
    assert eps**2 >= ell / 2 * (1 + 28 * share)
    cross, own = 3 * ell + 3 * ell**4, 9 * ell**3 + F(3, 4) * ell**2
    assert max(cross, own) <= 1  # Corollary C.7 takes 1 for both
    linear = 2 * root8 + 2 * eps + (cross + own) * (2 * root8 + 2 * eps)
    assert 2 * 600 * linear <= F(PAPER.three_halves)
    assert 2 * 600**2 * (1 + cross + own) <= F(PAPER.cubic)
    assert PAPER.three_halves == 6 * 15080
    assert 1080 + 6000 + 8000 == 15080
    assert 2 + 2 + 4 == 8


def test_the_600_of_fourth_moments_holds_at_the_papers_conditions() -> None:
    """The sharp proof at γH(L + μ) ≤ 1/48, γβ ≤ μ/19 gives far less than 600, 240 and 3,000."""
    corner = proof.Corner(1 / PAPER.length, 1 / PAPER.spread, 1 / PAPER.share_of_noise)
    for p, free in ((2, proof.FOURTH), (3, proof.SIXTH)):
        found = proof.moment(p, corner, free)
        assert found.whole < MOMENTS[2 * p][0] < 240
        assert found.local < MOMENTS[2 * p][1] < 600


def test_theorem_4_9() -> None:
    """‖u + v‖² ≤ 2‖u‖² + 2‖v‖² twice: 4, and 4 · 8 = 32, for which the paper has 64."""
    start = PAPER.start(1.0, 1.0, 1.0, 0.0)
    assert 2 * 2 * CRUDE == 32 <= start == 64
    assert PAPER.start(1.0, 0.0, 1.0, 1.0) == 4
    assert PAPER.total(0.0, 1.0) == 2


@pytest.mark.parametrize(("constant", "derived"), [(F("16.6"), F(299, 18)), (F(17), F(299, 18))])
def test_a_constant_that_is_too_small_or_too_large_is_seen(constant: F, derived: F) -> None:
    assert not rounded_up(constant, derived)

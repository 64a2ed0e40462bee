"""Rows on the appendix: moments (B), one round and its covariances (C), expansions (E), and algebra (F)."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.engines import choose_engine
from fedscaffold.paper.verify.convergence import distance2
from fedscaffold.paper.verify.rows import (
    Measured,
    Printed,
    StatementRow,
    close,
    jackknife,
    norm,
    over_groups,
    worst,
)
from fedscaffold.paper.verify.settings import KINDS, WIDE, Budget, Case, case, make
from fedscaffold.paper.verify.stationary import StationaryChains, simulate
from fedscaffold.theory import expansion
from fedscaffold.theory.bounds import Condition, noise_pair

Pair = tuple[Measured, float]  # a left side, of any shape, and its upper bound
Inequality = tuple[str, str, tuple[Condition, ...], Sequence[Pair], Printed | None]
EXACT = 1e-9  # relative, of identities: rounding errors of some hundred operations are far below


def long(kind: str) -> Case:
    """Return rounds as long as Lemmas C.1 to C.5 allow, so that every term of them matters."""
    return case(make(kind, 3, 2, WIDE[kind]), parts=1, H=6)  # type: ignore[arg-type,index]


def judged(setting: Case, found: Iterable[Inequality]) -> list[StatementRow]:
    """Build one row per statement, on whichever of its inequalities is nearest to failing."""
    rows = []
    for statement, claim, conditions, pairs, printed in found:
        nearest = [worst(left, right)[1:] for left, right in pairs]
        right, left, error = max(nearest, key=lambda one: (one[1] - 3.0 * one[2]) / one[0])
        row = StatementRow(
            statement=statement, claim=claim, setting=setting.text, relation="≤", predicted=right, measured=left,
            standard_error=error, conditions=conditions, printed=printed,
        )  # fmt: skip
        rows.append(row)
    return rows


def exactly(value: float) -> Measured:
    """Return a computed number, without an error."""
    return Measured(np.array(value), np.zeros(()))


# Appendix B


def moment_rows(chains: StationaryChains, budget: Budget) -> list[StatementRow]:
    """Return B.1 to B.5 as printed, but for B.1's third line and B.4's, with L of single records as in A2."""
    one = chains.case
    known, gamma, H = one.constants, one.method.step_size, one.method.uniform_local_steps
    mu, L, length2 = known.mu, known.L_record, (gamma * H) ** 2
    short = tuple(one.bounds._short_round(parts, record=True) for parts in (1, 12, 24))
    small = tuple(Condition(f"γL_record ≤ 1/{k}", gamma * L, 1 / k) for k in (4, 48))
    unit = gamma / mu
    at, crude = known.noise_at_optimum, 8 * unit * known.noise_variance_at_optimum
    squares, xi2 = over_groups(chains.local[:, 0]), over_groups(chains.xi_norms[:, 0])
    mean_xi2 = over_groups(length2 * chains.xi_norms[:, 0].mean(axis=1))
    mean_local = over_groups(chains.local[:, 0].mean(axis=2))
    s1, b1 = noise_pair(known, L / gamma)
    s5, b5 = noise_pair(known, min(L / (12 * gamma), 1 / (144 * gamma**2 * H)))
    local_sum, clients = squares.value[:H].sum(axis=0), range(one.problem.n_clients)
    fourth = []
    for k, p in enumerate((1, 2, 3)):
        fourth.append((root(chains.distance[:, k], p), 240 * unit * at))
        fourth.append((root(chains.local[:, k].mean(axis=2), p), 240 * unit * at))
        fourth.append((root(length2**p * chains.xi_norms[:, k].mean(axis=1), p), 240 * unit * at))
    no_power = length2 ** (1 / 3 - 1) * float(fourth[-1][0].value)
    beta5 = (
        Condition("γ√(Hβ) ≤ 1/12", gamma * math.sqrt(H * b5), 1 / 12),
        Condition("γβ ≤ L/12", gamma * b5, L / 12),
    )
    text = "(γ²H² mean ‖ξ_c−ξ*_c‖^{2p})^{1/p}"
    found: list[Inequality] = [
        (
            "Corollary B.1",
            "stationary law: E‖θ−θ*‖², γ²H² mean E‖ξ_c−ξ*_c‖² ≤ 8γσ²/μ, mean E‖θ_c^h−θ*‖² ≤ 16.62γσ²/μ",
            (short[1], small[0]),
            [(mean_local.at(0), crude), (mean_xi2, crude), (mean_local, one.bounds.mean_local_iterates().value)],
            Printed("8 for all three", crude),
        ),
        (
            "Lemma B.2", "E‖θ_c^h−θ*‖² ≤ 18γσ*²/μ + 3γ²H²E‖ξ_c−ξ*_c‖²; E‖ξ_c−ξ*_c‖² ≤ 8(L+μ)σ*²/(μH) + "
            "(4L²+2β)/H Σ_h E‖θ_c^h−θ*‖²",
            (short[1], Condition("γβ ≤ L", gamma * b1, L)),
            [(squares.at((slice(None), c)), 18 * unit * s1 + 3 * length2 * xi2.value[c]) for c in clients]
            + [
                (xi2.at(c), 8 * (L + mu) * s1 / (mu * H) + (4 * L**2 + 2 * b1) / H * local_sum[c])
                for c in clients
            ],
            None,
        ),
        (
            "Lemma B.3", "one round from zero and from X*: E^{1/3}‖X⁺−X*‖⁶_Λ ≤ (1−γμ/6)^H‖X−X*‖²_Λ + 40γ²Hσ*²",
            (small[1], short[2]),
            [_sixth(one, start, budget) for start in (np.zeros(one.problem.dim), one.problem.optimum())],
            None,
        ),
        (
            "Corollary B.4", "p = 1, 2, 3: E^{1/p} of ‖θ−θ*‖^{2p}, of mean ‖θ_c^h−θ*‖^{2p}, of mean "
            "(γH‖ξ_c−ξ*_c‖)^{2p} ≤ 240γσ*²/μ",
            (small[1], short[2]), fourth,
            Printed(f"third: {text} for p = 3 is {no_power:.3g}, not of the units of 240γσ*²/μ", 240 * unit * at),
        ),
        (
            "Lemma B.5", "E^{1/3}‖θ_c^h−θ*‖⁶ ≤ 600γσ*²/μ and E^{1/3}‖ξ_c−ξ*_c‖⁶ ≤ 3000Lσ*²/(μH) for all c, h",
            (small[1], short[2], *beta5),
            [
                (root(chains.local[:, 2], 3), 600 * unit * s5),
                (root(chains.xi_norms[:, 2], 3), 3000 * L * s5 / (mu * H)),
            ],
            None,
        ),
    ]  # fmt: skip
    return judged(one, found)


def root(groups: Array, p: int) -> Measured:
    """Return the mean over groups to the power 1/p, with its error by the delta method."""
    mean, error = over_groups(groups)
    return Measured(mean ** (1 / p), error * mean ** (1 / p - 1) / p)


def _sixth(one: Case, theta: Array, budget: Budget) -> Pair:
    """Return E^{1/3}‖X⁺ − X*‖⁶_Λ after one round from θ and ξ_c = 0, or ξ*_c if θ = θ*, and Lemma B.3's bound."""
    xi = one.ideal if np.any(theta) else np.zeros_like(one.ideal)
    before = float(distance2(one, theta[None], xi[None])[0])
    trace = one.run(
        rounds=1, seed=4, repetitions=10 * budget.repetitions, theta0=theta, control_variates0=xi, record=()
    )
    after = distance2(one, trace.theta, trace.control_variates) ** 3
    gamma, H = one.method.step_size, one.method.uniform_local_steps
    noise = 40 * gamma**2 * H * one.constants.noise_at_optimum
    return root(after, 3), (1 - gamma * one.constants.mu / 6) ** H * before + noise


# Appendix C: v = (θ − θ*, ξ_c − ξ*_c, R_c, ε_c) determines the next state, which is linear in it


def transition(one: Case, *, printed_delta: bool = False) -> Array:
    """Return the blocks of Lemmas C.1 and C.2, (1 + N, 1 + 3N, d, d), from v to θ⁺ − θ* and ξ_c⁺ − ξ*_c."""
    gamma, H, N, d = one.method.step_size, one.method.uniform_local_steps, one.problem.n_clients, one.problem.dim
    powers, eye = one.powers, np.eye(one.problem.dim)
    mean, tilde = powers[H].mean(axis=0), eye - powers[:H].mean(axis=0)
    blocks = np.zeros((1 + N, 1 + 3 * N, d, d))
    blocks[0, 0], blocks[0, 1 : 1 + N], blocks[0, 1 + N :] = mean, gamma * H * tilde / N, -gamma * eye / N
    blocks[1:, 0] = (powers[1 if printed_delta else H] - mean) / (gamma * H)
    blocks[1:, 1 : 1 + N], blocks[1:, 1 + N :] = -tilde / N, eye / (N * H)
    for c in range(N):
        blocks[1 + c, 1 + c] += tilde[c]
        blocks[1 + c, [1 + N + c, 1 + 2 * N + c]] -= eye / H
    return blocks


def one_round_rows(one: Case) -> list[StatementRow]:
    """Return C.1 and C.2: identities for any X and any noise, with R_c by quadrature of the third derivative."""
    problem, gamma, H, seed, chains = one.problem, one.method.step_size, one.method.uniform_local_steps, 17, 4
    rng, optimum = np.random.default_rng(seed), one.problem.optimum()
    theta, xi = optimum + rng.normal(size=problem.dim), one.ideal + rng.normal(size=one.ideal.shape)
    xi = xi - xi.mean(axis=0)
    trace = one.run(rounds=1, seed=seed, repetitions=chains, theta0=theta, control_variates0=xi, record=())
    start, many = np.tile(theta, (chains, 1)), np.tile(xi, (chains, 1, 1))
    with choose_engine("auto", problem).open(problem, Batches(one.batch_size), seed=seed) as local_sgd:
        local = [np.broadcast_to(theta, many.shape)] + [
            local_sgd(start, many, step_size=gamma, local_steps=h, round=0) for h in range(1, H + 1)
        ]
    curved = np.stack([[_curved(one, points) for points in step] for step in local[:H]])
    gradients = np.stack([[_gradients(one, points) for points in step] for step in local[:H]])
    noise = (np.stack(local[:H]) - np.stack(local[1:])) / gamma - xi - gradients
    sums = [np.einsum("hcij,hrcj->rci", one.powers[-2::-1], each) for each in (curved, noise)]
    v = np.concatenate([(start - optimum)[:, None], many - one.ideal, *sums], axis=1)
    after = np.concatenate([(trace.theta - optimum)[:, None], trace.control_variates - one.ideal], axis=1)
    right, as_printed = (
        np.einsum("xaij,raj->rxi", transition(one, printed_delta=wrong), v) for wrong in (False, True)
    )
    own = np.einsum("cij,j->ci", one.powers[H], theta - optimum) - gamma * sum(sums)
    own = own - gamma * np.einsum("hcij,cj->ci", one.powers[:H], xi - one.ideal)
    claims = (
        ("Lemma C.1", "θ_c^H − θ* = Γ_c^H(θ−θ*) + γHC_c(ξ_c−ξ*_c) − γR_c − γε_c", own, local[H] - optimum, None),
        (
            "Lemma C.1", "θ⁺ − θ* = Γ̄(θ−θ*) + γH mean C̃_c(ξ_c−ξ*_c) − γR̄ − γε̄", right[:, 0], after[:, 0], None,
        ),
        (
            "Lemma C.2",
            "ξ_c⁺ − ξ*_c = Δ_c(θ−θ*) + C̃_c(ξ_c−ξ*_c) − mean C̃_i(ξ_i−ξ*_i) − (R_c − R̄ + ε_c − ε̄)/H, "
            "Δ_c = (Γ_c^H − Γ̄)/(γH)",
            right[:, 1:], after[:, 1:],
            Printed(
                "Δ_c = (Γ_c − Γ̄)/(γH)", norm(as_printed[:, 1:]), norm(after[:, 1:] - as_printed[:, 1:])
            ),
        ),
    )  # fmt: skip
    return [
        close(name, claim, one.text, value, Measured(seen, np.zeros_like(seen)), EXACT, printed=printed)
        for name, claim, value, seen, printed in claims
    ]


def _gradients(one: Case, points: Array) -> Array:
    return np.stack([one.problem.client_gradients(point)[c] for c, point in enumerate(points)])


def _curved(one: Case, points: Array) -> Array:
    """Return ∫(1 − t)∇³f_c(θ* + t(θ_c − θ*))dt (θ_c − θ*)⊗², by 16 points of Gauss and Legendre."""
    nodes, weights = np.polynomial.legendre.leggauss(16)  # exact to 1e-12 for logistic losses
    optimum, result = one.problem.optimum(), np.zeros_like(points)
    for c, point in enumerate(points):
        away = point - optimum
        for t, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
            third = one.problem.client_third_derivatives(optimum + t * away, np.outer(away, away))[c]
            result[c] += weight * (1 - t) * third
    return result


def second_moments(one: Case, parts: Array, *, printed_delta: bool = False) -> tuple[Array, Array]:
    """Return the right sides of Lemmas C.3 to C.5 and their remainders alone, (..., 1 + N, 1 + N, d, d).

    Noise has mean 0 given the past and is independent over clients: its products with θ, ξ_c, and with R_c' and
    ε_c' of other clients, are left out, as in the lemmas.
    """
    N = one.problem.n_clients
    noise, kept = slice(1 + 2 * N, None), np.ones(parts.shape[-4:-2])
    kept[noise, :], kept[:, noise] = 0.0, 0.0
    for c in range(N):
        own = 1 + 2 * N + c
        kept[own, [own, own - N]], kept[own - N, own] = 1.0, 1.0
    blocks = transition(one, printed_delta=printed_delta)
    whole = np.einsum("xaij,...abjk,yblk->...xyil", blocks, parts * kept[..., None, None], blocks, optimize=True)
    kept[1 + N : 1 + 2 * N, :], kept[:, 1 + N : 1 + 2 * N] = 0.0, 0.0
    plain = np.einsum("xaij,...abjk,yblk->...xyil", blocks, parts * kept[..., None, None], blocks, optimize=True)
    return whole, whole - plain


def recursion_rows(chains: StationaryChains, budget: Budget) -> list[StatementRow]:
    """Return C.3 to C.5: left and right sides of a stationary chain, the first less Γ̄Σ^θΓ̄, nearly all of it."""
    one, N = chains.case, chains.case.problem.n_clients
    (right, _), (as_printed, _) = (
        second_moments(one, chains.parts, printed_delta=wrong) for wrong in (False, True)
    )
    mean = one.powers[-1].mean(axis=0)
    shrunk = mean @ chains.theta @ mean
    same = np.arange(N)
    others = ~np.eye(N, dtype=bool)
    short = one.bounds._short_round(1)
    claims = (
        ("Lemma C.3", "Σ^θ − Γ̄Σ^θΓ̄ = γH mean(Γ̄Σ^{θ,ξ}_cC̃_c + ᵀ) + γ²H² mean C̃_cΣ^ξ_{c,c'}C̃_c' + γ²Σ̄^ε/N + R^θ",
         chains.theta - shrunk, right[:, 0, 0] - mean @ chains.parts[:, 0, 0] @ mean, None),
        ("Lemma C.4", "Σ^{θ,ξ}_c = Γ̄Σ^θΔ_c + … + γ(Σ^ε_c − Σ̄^ε)/(NH) + R^{θ,ξ}_c",
         chains.theta_xi, right[:, 0, 1:], as_printed[:, 0, 1:]),
        ("Lemma C.5", "Σ^ξ_{c,c} = Δ_cΣ^θΔ_c + (1−2/N)Σ^ε_c/H² + Σ̄^ε/(NH²) + … + R^ξ_{c,c}",
         chains.xi[:, same, same], right[:, 1 + same, 1 + same], as_printed[:, 1 + same, 1 + same]),
        ("Lemma C.5", "Σ^ξ_{c,c'} = Δ_cΣ^θΔ_c' + (Σ̄^ε − Σ^ε_c − Σ^ε_c')/(NH²) + … + R^ξ_{c,c'}",
         chains.xi[:, others], right[:, 1:, 1:][:, others], as_printed[:, 1:, 1:][:, others]),
    )  # fmt: skip
    rows = []
    for name, claim, left, value, wrong in claims:
        seen, expected = over_groups(left), value.mean(axis=0)
        seen = Measured(seen.value, over_groups(left - value).error)
        printed = None
        if wrong is not None:
            other = wrong.mean(axis=0)
            printed = Printed("with Δ_c = (Γ_c − Γ̄)/(γH)", norm(other), norm(seen.value - other))
        tolerance = 0.05 * budget.loosen
        rows.append(close(name, claim, one.text, expected, seen, tolerance, conditions=(short,), printed=printed))
    return rows


def remainder_rows(chains: StationaryChains) -> list[StatementRow]:
    """Return C.6 to C.14, as printed, but for C.6's 1/N and C.12, with L of single records as in A2."""
    one, known, N = chains.case, chains.case.constants, chains.case.problem.n_clients
    gamma, H, mu, L, Q = one.method.step_size, one.method.uniform_local_steps, known.mu, known.L_record, known.Q
    short = {k: one.bounds._short_round(k, record=True) for k in (12, 24, 48)}
    sigma2, beta = noise_pair(known, min(L / (12 * gamma), 1 / (144 * gamma**2 * H)))
    conditions = (
        short[48],
        Condition("γ√(Hβ) ≤ 1/12", gamma * math.sqrt(H * beta), 1 / 12),
        Condition("γβ ≤ L/12", gamma * beta, L / 12),
    )
    s3, s4 = sigma2**1.5 / mu**1.5, sigma2**2 / mu**2
    squares = 600**2 * Q**2 * s4

    def remainders(parts: Array, k: int, trace: bool) -> float:
        """Return the mean ‖R^θ‖, ‖R^{θ,ξ}_c‖ or ‖R^ξ_{c,c'}‖ for k = 0, 1, 2; or the largest |trace|."""
        rest = second_moments(one, parts)[1]
        block = (rest[:1, :1], rest[:1, 1:], rest[1:, 1:])[k]
        if trace:
            return float(np.abs(np.einsum("xyii->xy", block)).max())
        return float(np.linalg.norm(block, 2, axis=(2, 3)).mean())

    def seen(k: int, *, trace: bool = False) -> Measured:
        return jackknife(lambda parts: remainders(parts, k, trace), chains.parts)

    limits = (
        1080 * gamma**2.5 * H * Q * s3 + 2 * gamma**4 * H**2 * squares,
        6000 * gamma**1.5 * Q * s3 + 2 * gamma**3 * H * squares,
        8000 * gamma**0.5 * Q * s3 / H + 4 * gamma**2 * squares,
    )
    printed = 1080 * gamma**2.5 * H * Q * s3 + 2 * gamma**4 * H**2 * squares / N
    weights = (1.0, gamma * (H - 1), (gamma * (H - 1)) ** 2)
    together = jackknife(
        lambda parts: sum(w * remainders(parts, k, False) for k, w in enumerate(weights)), chains.parts
    )
    s9, b9 = noise_pair(known, mu / (19 * gamma))
    spread = Condition("5γ(H−1)Lζ₂ ≤ μ/2", 5 * gamma * (H - 1) * L * known.zeta2, mu / 2)
    ninth = (spread, short[12], Condition("γβ ≤ μ/19", gamma * b9, mu / 19))
    noise2 = over_groups(
        np.stack([np.einsum("gii->g", chains.parts[:, k, k]) for k in range(1 + 2 * N, 1 + 3 * N)], 1)
    )
    rest2 = over_groups(np.stack([np.einsum("gii->g", chains.parts[:, k, k]) for k in range(1 + N, 1 + 2 * N)], 1))
    norms = jackknife(spectral, chains.theta)
    rms = Measured(np.sqrt(rest2.value), rest2.error / (2 * np.sqrt(rest2.value)))
    found: list[Inequality] = [
        ("Lemma C.6", "|tr R^{θ,ξ}_c| ≤ 6000 …, |tr R^ξ_{c,c'}| ≤ 8000 … Qσ*³ + O(Q²σ*⁴) for all c, c'",
         conditions, [(seen(k, trace=True), limits[k]) for k in (1, 2)], None),
        ("Lemma C.6", "|tr R^θ| ≤ 1080γ^{5/2}HQσ*³/μ^{3/2} + 2·600²γ⁴H²Q²σ*⁴/μ²", conditions,
         [(seen(0, trace=True), limits[0])],
         Printed("the last term over N, which its proof does not have", printed)),
        ("Corollary C.7", "‖R^θ‖ + γ(H−1) mean ‖R^{θ,ξ}_c‖ + γ²(H−1)² mean ‖R^ξ_{c,c'}‖ ≤ 15080 … + 8·600² …",
         (short[12], *conditions),
         [(together, 15080 * gamma**2.5 * H * Q * s3 + 8 * gamma**4 * H**2 * squares)], None),
        ("Lemma C.9", "‖Σ^θ‖ ≤ 10γσ*²/(Nμ) + 2/(γμH) (the left side of C.7)",
         ninth, [(norms, 10 * gamma * s9 / (N * mu) + 2 * float(together.value) / (gamma * mu * H))], None),
        ("Lemma C.13", "E‖ε_c‖² ≤ Hσ*² + 28γβHσ*²/μ for all c", (short[12],),
         [(noise2, H * sigma2 * (1 + 28 * gamma * beta / mu))], None),
        ("Lemma C.14", "E‖R_c‖ ≤ E^{1/2}‖R_c‖² ≤ 28γHQσ*²/μ and E‖R_c‖² ≤ 600²γ²H²Q²σ*⁴/μ² for all c",
         (short[24], *conditions),
         [(rest2, gamma**2 * H**2 * squares), (rms, 28 * gamma * H * Q * sigma2 / mu)], None),
    ]  # fmt: skip
    return judged(one, found)


def system_row(chains: StationaryChains) -> StatementRow:
    """Return Lemma 4.7 and C.8: the largest left side over right side, with measured noise and remainders."""
    one, N = chains.case, chains.case.problem.n_clients
    limits = one.bounds.covariance_system(theta=0, theta_xi=0, xi=0, round_noise=0, remainders=(0, 0, 0))

    def sides(k: int, theta: Array, theta_xi: Array, xi: Array, parts: Array) -> float:
        sizes = spectral(theta), spectral(theta_xi), spectral(xi)
        rest = second_moments(one, parts)[1]
        right = one.bounds.covariance_system(
            theta=sizes[0], theta_xi=sizes[1], xi=sizes[2],
            round_noise=float(np.mean([spectral(parts[a, a]) for a in range(1 + 2 * N, 1 + 3 * N)])),
            remainders=(spectral(rest[0, 0]), spectral(rest[0, 1:]), spectral(rest[1:, 1:])),
        )  # fmt: skip
        return sizes[k] / right[k].value

    measured = (chains.theta, chains.theta_xi, chains.xi, chains.parts)
    found = [jackknife(lambda *means, k=k: sides(k, *means), *measured) for k in range(3)]
    each = ", ".join(f"{ratio:.2g}" for ratio, _ in found)
    claim = f"(and C.8) covariances of θ, (θ, ξ), ξ bound each other, with remainders; left/right: {each}"
    return judged(one, [("Lemma 4.7", claim, limits.theta.conditions, [(ratio, 1.0) for ratio in found], None)])[0]


def spectral(matrices: Array) -> float:
    """Return the mean spectral norm over the leading axes."""
    return float(np.linalg.norm(matrices, 2, axis=(-2, -1)).mean())


def matrix_rows(one: Case) -> list[StatementRow]:
    """Return C.10 and C.11: norms of Γ_c^h and C̃_c, computed."""
    known, gamma, H = one.constants, one.method.step_size, one.method.uniform_local_steps
    small = (Condition("γ ≤ 1/L", gamma, 1 / known.L),)
    powers = np.linalg.norm(one.powers, 2, axis=(2, 3)).max(axis=1)
    tilde = np.linalg.norm(np.eye(one.problem.dim) - one.powers[:H].mean(axis=0), 2, axis=(1, 2)).max()
    claims: list[Inequality] = [
        ("Lemma C.10", "‖Γ_c^h‖ ≤ (1−γμ)^h for all c, h", small,
         [(exactly(powers[h]), (1 - gamma * known.mu) ** h) for h in range(1, H + 1)], None),
        ("Lemma C.11", "‖C̃_c‖ ≤ γ(H−1)L/2 for all c", small,
         [(exactly(tilde), gamma * (H - 1) * known.L / 2)], None),
    ]  # fmt: skip
    return judged(one, claims)


# Appendices E and F


def expansion_rows(chains: StationaryChains, budget: Budget) -> list[StatementRow]:
    """Return E.3: E‖θ_c^H − θ*‖² − E‖θ − θ*‖², to first order from Lemma 5.1; all terms are O(γ²H)."""
    one, gamma, H = chains.case, chains.case.method.step_size, chains.case.method.uniform_local_steps
    found = expansion(one.problem, one.method, batch_size=one.batch_size)
    value = []
    for c, hessian in enumerate(one.hessians):
        pulled = found.cov_theta_xi(c) + found.cov_theta @ hessian
        grown = found.cov_xi(c, c) * H + found.noise[c]
        value.append(gamma * H * np.trace(gamma * grown - 2 * pulled))
    seen = over_groups(chains.local[:, 0, H] - chains.local[:, 0, 0])
    claim = (
        "tr U_c^H = E‖θ_c^H−θ*‖² − E‖θ−θ*‖² = γ²H tr(H Cov ξ_c + C_c) − 2γH tr(Cov(θ, ξ_c) + Cov θ ∇²f_c) = O(γ²H)"
    )
    conditions = (one.bounds._short_round(12),)
    return [
        close("Lemma E.3", claim, one.text, value, seen, 0.05 * budget.loosen, conditions=conditions)
    ]  # fmt: skip


def algebra_rows() -> list[StatementRow]:
    """Return C.12, E.1, F.1 and F.2: computed, on three curvatures, on random matrices and vectors."""
    curvatures, short = np.array([1.0, 1.0, 2.0]), 1 / 24
    deltas = np.abs(curvatures - curvatures.mean())  # of H = 1
    zeta2 = float(np.sqrt(np.square(deltas).mean()))
    rng = np.random.default_rng(5)
    curvature, gamma = 1.0, 2.0**-14  # in one dimension, γH(L + μ) ≤ 1/12 for all H below
    sizes = np.array([64, 128, 256, 512])
    whole = np.array([(1 - gamma * curvature) ** H - 1 + gamma * H * curvature for H in sizes])
    means = [np.mean([(1 - gamma * curvature) ** h for h in range(H)]) for H in sizes]
    tilde = np.array([1 - mean - gamma * (H - 1) / 2 * curvature for mean, H in zip(means, sizes, strict=True)])
    first, second = (np.polyfit(np.log(sizes), np.log(np.abs(rest)), 1)[0] for rest in (whole, tilde))
    a, b = rng.normal(size=(2, 4, 3, 3))
    x, y = rng.normal(size=(2, 5, 3))
    forward, backward = (_products(a[::way]) - _products(b[::way]) for way in (1, -1))
    telescoped = sum(_products(a[:k]) @ (a[k] - b[k]) @ _products(b[k + 1 :]) for k in range(4))
    centred = (x.mean(axis=0) - x) - (y.mean(axis=0) - y)
    projection = float((np.square(x - y).sum(axis=1) - np.square(centred).sum(axis=1)).mean())
    scalars, matrices = "one dimension, γ = 2⁻¹⁴, H = 64 to 512", "random matrices, K = 4, d = 3"
    off = Printed("ΠM_k = M_K ⋯ M_1, as under Notations", norm(backward), norm(telescoped - backward))
    mean = x.mean(axis=0) - y.mean(axis=0)
    spread = StatementRow(
        statement="Lemma C.12", claim="mean ‖Δ_c‖ ≤ (1 + 2γHL)ζ₂; largest over ζ₂ is √2", relation="≤",
        setting="curvatures 1, 1, 2, γ = 1/48, H = 1", predicted=(1 + 2 * short) * zeta2, measured=deltas.mean(),
        printed=Printed("‖Δ_c‖ ≤ ζ₂ for all c, so mean ≤ ζ₂ mean/largest", zeta2 * deltas.mean() / deltas.max()),
    )  # fmt: skip
    return [
        spread,
        close("Lemma E.1", "Γ_c^H and Γ̄ = I − γH∇²f + O(γ²H²): power of H in the remainder", scalars, 2.0,
              exactly(float(first)), 0.02),
        close("Lemma E.1", "C̃_c = γ(H−1)/2 ∇²f_c + O(γ²H²): power of H in the remainder", scalars, 2.0,
              exactly(float(second)), 0.02, printed=Printed("O(γ²H): power 1", 1.0)),
        close("Lemma F.1", "ΠM_k − ΠM'_k = Σ_k {Π_{l<k}M_l}(M_k − M'_k){Π_{l>k}M'_l}, ΠM_k = M_1 ⋯ M_K", matrices,
              forward, Measured(telescoped, np.zeros_like(telescoped)), EXACT, printed=off),
        close("Lemma F.2", "‖x̄−ȳ‖² = mean {‖x_c−y_c‖² − ‖(x̄−x_c) − (ȳ−y_c)‖²}", "random vectors, N = 5, d = 3",
              float(mean @ mean), exactly(projection), EXACT),
    ]  # fmt: skip


def _products(matrices: Array) -> Array:
    """Return the product from left to right; the identity if there is none."""
    result = np.eye(3)
    for matrix in matrices:
        result = result @ matrix
    return result


# Section 5's sentence on FedAvg


def homogeneous_rows(budget: Budget) -> list[StatementRow]:
    """Return "we even recognize the bias of FedAvg with homogeneous functions": both methods on equal clients."""
    one = case(make("logistic", 1, 2, WIDE["logistic"], copies=3, seed=1), parts=48, H=2)
    value = expansion(one.problem, one.method, batch_size=one.batch_size).bias
    claim = "equal clients: b = −(γ/2N) ∇²f⁻¹ ∇³f[𝐀C̄], the bias of FedAvg with homogeneous functions; {}"
    return [
        close(
            "Theorem 5.3", claim.format(name), one.text, value,
            over_groups(simulate(one, budget, fedavg=fedavg).bias), 0.1 * budget.loosen,
        )
        for name, fedavg in (("FedAvg", True), ("Scaffold", False))
    ]  # fmt: skip


def rows(budget: Budget) -> list[StatementRow]:
    """Return all rows but the ones that need the chains of `stationary`."""
    fewer = replace(budget, chains=max(budget.chains // 4, 20 * 20))
    found = [*algebra_rows(), *homogeneous_rows(fewer)]
    for kind in KINDS:
        one = long(kind)
        found += [*one_round_rows(one), *matrix_rows(one), *recursion_rows(simulate(one, fewer), budget)]
    return found


def chain_rows(chains: StationaryChains, budget: Budget) -> list[StatementRow]:
    """Return the rows on stationary chains inside the conditions of Theorem 4.8; remainders if there are any."""
    found = [*moment_rows(chains, budget), system_row(chains), *expansion_rows(chains, budget)]
    return found + (remainder_rows(chains) if chains.case.constants.Q > 0 else [])

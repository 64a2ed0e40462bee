"""Lemma 5.1 and Theorem 5.3: covariances and bias to first order, and the sign that is wrong in print."""

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.paper.verify.chains import StationaryChains
from fedscaffold.paper.verify.rows import Measured, Printed, StatementRow, close, norm, over_groups
from fedscaffold.paper.verify.settings import Budget
from fedscaffold.theory import Expansion, expansion

TOLERANCE = 0.05
CROSS = "Cov(θ, ξ_c) = (γ/N){−𝐀C̄(∇²f_c−∇²f) + C_c − C̄}"
BIAS = "b = −½ ∇²f⁻¹ ∇³f[Cov θ] (lemma before Theorem 5.3)"
BIAS_XI = "E ξ_c − ξ*_c = −(∇²f_c−∇²f) b − ½(∇³f_c−∇³f)[Cov θ] (sign as in Lemma 5.1)"
Part = tuple[str, str, Array, Measured, Printed | None]  # statement, claim, predicted, measured, as printed


def rows(chains: StationaryChains, budget: Budget) -> list[StatementRow]:
    """From stationary chains; biases for logistic regression only, as ridge has none."""
    case = chains.case
    found = expansion(case.problem, case.method, batch_size=case.batch_size)
    spread = case.problem.client_hessians(case.problem.optimum()) - found.hessian
    parts = _covariances(chains, found, spread)
    if case.problem.kind != "ridge":
        parts += _biases(chains, found, spread)
    conditions = case.bounds.stationary_covariance().conditions
    return [
        close(
            statement, claim, case.text, value, seen, TOLERANCE * budget.loosen,
            conditions=conditions, printed=printed,
        )
        for statement, claim, value, seen, printed in parts
    ]  # fmt: skip


def _covariances(chains: StationaryChains, found: Expansion, spread: Array) -> list[Part]:
    clients = range(chains.case.problem.n_clients)
    cross = np.stack([found.cov_theta_xi(c) for c in clients])
    as_printed = cross + 2.0 * found.cov_theta @ spread
    measured, of_xi = over_groups(chains.theta_xi), over_groups(chains.xi)
    printed = Printed("(γ/N){+𝐀C̄(∇²f_c−∇²f) + C_c − C̄}", norm(as_printed), norm(measured.value - as_printed))
    result: list[Part] = [
        ("Lemma 5.1", "Cov θ = (γ/N)𝐀C̄", found.cov_theta, over_groups(chains.theta), None),
        ("Lemma 5.1", CROSS, cross, measured, printed),
    ]
    for claim, pairs in (
        ("Cov ξ_c = (1−2/N)C_c/H + C̄/(NH)", [(c, c) for c in clients]),
        ("Cov(ξ_c, ξ_c') = (C̄ − C_c − C_c')/(NH)", [(c, i) for c in clients for i in clients if c != i]),
    ):
        value = np.stack([found.cov_xi(c, i) for c, i in pairs])
        seen = of_xi.at(tuple(np.array(pairs).T))
        result.append(("Lemma 5.1", claim, value, seen, None))
    return result


def _biases(chains: StationaryChains, found: Expansion, spread: Array) -> list[Part]:
    N = chains.case.problem.n_clients
    bias, bias_xi = over_groups(chains.bias), over_groups(chains.bias_xi)
    of_xi = np.stack([found.bias_xi(c) for c in range(N)])
    too_small, wrong_sign = found.bias / N, spread @ found.bias
    printed = Printed("−(1/2N) ∇²f⁻¹ ∇³f[Cov θ]", norm(too_small), norm(bias.value - too_small))
    printed_xi = Printed("+(∇²f_c−∇²f) b", norm(wrong_sign), norm(bias_xi.value - wrong_sign))
    return [
        ("Theorem 5.3", "b = E θ − θ* = −(γ/2N) ∇²f⁻¹ ∇³f[𝐀C̄]", found.bias, bias, None),
        ("Lemma E.4", BIAS, found.bias, bias, printed),
        ("Lemma E.2", BIAS_XI, of_xi, bias_xi, printed_xi),
    ]

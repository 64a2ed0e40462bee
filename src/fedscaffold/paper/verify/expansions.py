"""Lemma 5.1 and Theorem 5.3: covariances and bias to first order, and the sign that is wrong in print."""

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.paper.verify.chains import StationaryChains
from fedscaffold.paper.verify.rows import Printed, StatementRow, norm, norms, over_groups
from fedscaffold.paper.verify.settings import Budget
from fedscaffold.theory import Expansion, bounds, expansion
from fedscaffold.theory.bounds import Condition

TOLERANCE = 0.05
USES = expansion


def rows(chains: StationaryChains, budget: Budget) -> list[StatementRow]:
    """From stationary chains; biases for logistic regression only, as ridge has none."""
    case = chains.case
    found = expansion(case.problem, case.method, batch_size=case.batch_size)
    conditions = bounds.stationary_covariance(case.constants, **case.arguments).conditions
    result = [*_covariances(chains, found, conditions, budget)]
    return result if case.problem.kind == "ridge" else result + _biases(chains, found, conditions, budget)


def _covariances(
    chains: StationaryChains, found: Expansion, conditions: tuple[Condition, ...], budget: Budget
) -> list[StatementRow]:
    case, clients = chains.case, range(chains.case.problem.n_clients)
    spread = case.problem.client_hessians(case.problem.optimum()) - found.hessian
    cross = np.stack([found.cov_theta_xi(c) for c in clients])
    as_printed = cross + 2.0 * found.cov_theta @ spread
    measured = over_groups(chains.theta_xi)
    own = np.stack([found.cov_xi(c, c) for c in clients])
    pairs = [(c, i) for c in clients for i in clients if c != i]
    others = np.stack([found.cov_xi(c, i) for c, i in pairs])
    at = tuple(np.array(pairs).T)
    of_xi = over_groups(chains.xi)
    printed = Printed("(γ/N){+𝐀C̄(∇²f_c−∇²f) + C_c − C̄}", norm(as_printed), norm(measured.value - as_printed))
    diagonal = np.arange(len(clients))
    parts = (
        ("Cov θ = (γ/N)𝐀C̄", found.cov_theta, over_groups(chains.theta), TOLERANCE, None, USES),
        (
            "Cov(θ, ξ_c) = (γ/N){−𝐀C̄(∇²f_c−∇²f) + C_c − C̄}",
            cross,
            measured,
            TOLERANCE,
            printed,
            Expansion.cov_theta_xi,
        ),
        (
            "Cov ξ_c = (1−2/N)C_c/H + C̄/(NH)",
            own,
            of_xi.at((diagonal, diagonal)),
            TOLERANCE,
            None,
            Expansion.cov_xi,
        ),
        (
            "Cov(ξ_c, ξ_c') = (C̄ − C_c − C_c')/(NH)",
            others,
            of_xi.at(at),
            TOLERANCE,
            None,
            Expansion.cov_xi,
        ),
    )
    return [
        StatementRow(
            statement="Lemma 5.1",
            claim=claim,
            setting=case.text,
            relation="≈",
            tolerance=tolerance * budget.loosen,
            conditions=conditions,
            printed=wrong,
            uses=(uses,),
            **norms(value, seen)._asdict(),
        )
        for claim, value, seen, tolerance, wrong, uses in parts
    ]


def _biases(
    chains: StationaryChains, found: Expansion, conditions: tuple[Condition, ...], budget: Budget
) -> list[StatementRow]:
    case, N = chains.case, chains.case.problem.n_clients
    bias, bias_xi = over_groups(chains.bias), over_groups(chains.bias_xi)
    spread = case.problem.client_hessians(case.problem.optimum()) - found.hessian
    of_xi = np.stack([found.bias_xi(c) for c in range(N)])
    wrong_sign: Array = spread @ found.bias
    too_small = found.bias / N
    parts = (
        ("Theorem 5.3", "b = E θ − θ* = −(γ/2N) ∇²f⁻¹ ∇³f[𝐀C̄]", found.bias, bias, None, USES),
        (
            "Lemma E.4",
            "b = −½ ∇²f⁻¹ ∇³f[Cov θ] (lemma before Theorem 5.3)",
            found.bias,
            bias,
            Printed("−(1/2N) ∇²f⁻¹ ∇³f[Cov θ]", norm(too_small), norm(bias.value - too_small)),
            USES,
        ),
        (
            "Lemma E.2",
            "E ξ_c − ξ*_c = −(∇²f_c−∇²f) b − ½(∇³f_c−∇³f)[Cov θ] (sign as in Lemma 5.1)",
            of_xi,
            bias_xi,
            Printed("+(∇²f_c−∇²f) b", norm(wrong_sign), norm(bias_xi.value - wrong_sign)),
            Expansion.bias_xi,
        ),
    )
    return [
        StatementRow(
            statement=statement,
            claim=claim,
            setting=case.text,
            relation="≈",
            tolerance=TOLERANCE * budget.loosen,
            conditions=conditions,
            printed=wrong,
            uses=(uses,),
            **norms(value, seen)._asdict(),
        )
        for statement, claim, value, seen, wrong, uses in parts
    ]

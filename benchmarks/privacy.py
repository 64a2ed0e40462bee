"""What privacy costs: time of a step, and the hospitals' model at several budgets, predicted and measured."""

import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.metrics import roc_auc_score

import fedscaffold as fs
from benchmarks import measured
from fedscaffold.core.random.stream import Batches
from fedscaffold.engines import Native
from fedscaffold.privacy import RecordLevel

BUDGETS = (1.0, 3.0, 8.0)
HOSPITALS, DELTA = 5, 1e-3
DRAWS = 1000  # models of the predicted law, enough for its mean AUC


def step_cost(kind: str, sampling: Any) -> dict[str, float]:
    """Nanoseconds of a step with and without clipping and noise, d = 20, B = 10; contenders in turns, the best."""
    rng = np.random.default_rng(0)
    clients, steps, d = 100, 200, 20
    X, z = rng.normal(size=(clients, 200, d)), rng.normal(size=(clients, 200))
    problem: Any = fs.problems.Ridge(X, z) if kind == "ridge" else fs.problems.Logistic(X, np.sign(z))
    engine, batches, best = Native(threads=1), Batches(10, sampling), [np.inf, np.inf]
    privacy = RecordLevel(clip=1.0, noise_multiplier=1.0)
    with (
        engine.open(problem, batches, seed=1) as plain,
        engine.open(problem, batches, seed=1, privacy=privacy) as private,
    ):
        theta, xi = np.zeros((1, d)), np.zeros((1, clients, d))
        for k in range(40):
            for i, local_sgd in enumerate((plain, private)):
                began = time.process_time()
                local_sgd(theta, xi, step_size=0.01, local_steps=steps, round=k)
                best[i] = min(best[i], time.process_time() - began)
    plain_ns, private_ns = (1e9 * seconds / (clients * steps) for seconds in best)
    return {"plain_ns": plain_ns, "private_ns": private_ns, "ratio": private_ns / plain_ns}


def hospitals() -> tuple[Any, Any, Any]:
    """Breast cancer over hospitals: the problem on four fifths of each, and the rows that are left."""
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    X = np.column_stack([X[:, :10], np.ones(len(X))])
    signs = np.where(y == 1, 1.0, -1.0)
    owners = fs.data.partition.dirichlet(y, n_clients=HOSPITALS, alpha=2.0, seed=1)
    rows = [np.random.default_rng(c).permutation(np.flatnonzero(owners == c)) for c in range(HOSPITALS)]
    train, test = [r[len(r) // 5 :] for r in rows], np.concatenate([r[: len(r) // 5] for r in rows])
    problem = fs.problems.Logistic(
        [X[r] for r in train], [signs[r] for r in train], l2=0.01, n_unpenalised=1, weights=[len(r) for r in train]
    )
    return problem, X[test], signs[test]


def interval(values: Any) -> dict[str, float]:
    """Mean and 95 % interval over runs."""
    mean, error = float(np.mean(values)), 1.96 * float(np.std(values, ddof=1) / np.sqrt(len(values)))
    return {"mean": mean, "low": mean - error, "high": mean + error}


def predicted_models(problem: Any, plan: Any) -> Any:
    """Models after the rounds of runs with another seed, as `theory.predict` measures errors."""
    options = {"rounds": plan.rounds, "privacy": plan.privacy, "repetitions": DRAWS, "seed": 1}
    return fs.run(problem, plan.method, progress=False, **options).theta


def predicted_auc(problem: Any, plan: Any, X: Any, signs: Any, runs: int) -> dict[str, float]:
    """Mean AUC of predicted models, and where the mean of so many runs lies in 95 of 100 cases."""
    found = np.array([roc_auc_score(signs, X @ theta) for theta in predicted_models(problem, plan)])
    mean, error = float(found.mean()), 1.96 * float(found.std() / np.sqrt(runs))
    return {"mean": mean, "low": mean - error, "high": mean + error}


def hospital_costs(runs: int, budgets: tuple[float, ...]) -> dict[str, Any]:
    """AUC on rows that were left out and squared error, without privacy and at each budget."""
    problem, X, signs = hospitals()
    best = problem.optimum()
    found: dict[str, Any] = {"none": {"auc": float(roc_auc_score(signs, X @ best))}}
    for plan in fs.plan(problem, epsilon=budgets, delta=DELTA, max_rounds=30).plans:
        trace = fs.run(
            problem, plan.method, rounds=plan.rounds, privacy=plan.privacy, repetitions=runs, progress=False
        )
        predicted = fs.theory.predict(
            problem, plan.method, batch_size=None, privacy=plan.privacy, rounds=plan.rounds
        )
        assert predicted.curve is not None
        found[f"epsilon_{plan.epsilon:g}"] = {
            "auc_predicted": predicted_auc(problem, plan, X, signs, runs),
            "auc": interval([roc_auc_score(signs, X @ theta) for theta in trace.theta]),
            "mse": interval(trace.mse[:, -1]),
            "mse_predicted": float(predicted.curve[-1]),
            "local_steps": plan.method.local_steps,
            "rounds": plan.rounds,
        }
    return found


def main() -> None:
    """Measure, print and keep the figures."""
    options = measured.parser(__doc__).parse_args()
    kinds = ("ridge",) if options.quick else ("ridge", "logistic")
    steps = {
        f"{kind}_{sampling}": step_cost(kind, sampling)
        for kind in kinds
        for sampling in ("without_replacement", "with_replacement")
    }
    costs = hospital_costs(5 if options.quick else 20, BUDGETS[-1:] if options.quick else BUDGETS)
    table = Table("steps", "plain, ns", "private, ns", "ratio")
    for name, row in steps.items():
        table.add_row(name, f"{row['plain_ns']:.0f}", f"{row['private_ns']:.0f}", f"{row['ratio']:.2f}")
    Console().print(table)
    Console().print(costs)
    measured.save("privacy", {"steps": steps, "hospitals": costs}, options)


if __name__ == "__main__":
    main()

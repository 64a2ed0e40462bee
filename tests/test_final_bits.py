"""The final models of every method, problem and engine on small cases, compared with values kept in a file.

On a machine like one of those in the file (processor features, versions of NumPy and JAX, the kernels that its
BLAS chose) the bits must be equal; elsewhere the numbers must agree to ten digits.
`python -m tests.test_final_bits` writes the file again, for this machine alone, which is right only for a change
that is listed under "Numbers that change" in CHANGELOG.md.
Cases that take long to compile are marked slow where others of the same engine and problem are not.
"""

import hashlib
import json
import platform
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from threadpoolctl import threadpool_info

import fedscaffold as fs
from fedscaffold.core.types import Array
from tests.samples import make, systems

FILE = Path(__file__).with_suffix(".json")
SIZES = (8, 11, 9, 30, 5)
Result = dict[str, Array]


def _multinomial() -> Any:
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(n, 4)) + rng.normal(size=4) for n in SIZES]
    y = [rng.integers(0, 3, size=n) for n in SIZES]
    return fs.problems.Multinomial(X, y, n_classes=3, l2=0.05, n_unpenalised=1)


def _differentiable() -> Any:
    import jax.numpy as jnp

    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean(jnp.exp(batch["x"] @ params["w"]) - batch["y"] * (batch["x"] @ params["w"]))

    rng = np.random.default_rng(1)
    clients = [{"x": 0.3 * rng.normal(size=(n, 4)), "y": rng.poisson(1.0, size=n).astype(float)} for n in SIZES]
    return fs.problems.Differentiable(loss, {"w": np.zeros(4)}, clients, l2=0.1)


def _frame() -> pd.DataFrame:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(120, 3))
    return pd.DataFrame(
        {
            "site": np.repeat(["bonn", "cork", "dijon", "essen"], [20, 50, 10, 40]),
            "age": 5 + x[:, 0],
            "dose": x[:, 1],
            "ward": np.where(x[:, 2] > 0, "a", "b"),
            "ill": np.where(x @ [1.0, -1.0, 0.5] + rng.normal(size=120) > 0, "yes", "no"),
        }
    )


PROBLEMS: dict[str, Callable[[], Any]] = {
    "ridge": lambda: make("ridge", SIZES, 7, weights=range(1, 6), n_unpenalised=1),
    "logistic": lambda: make("logistic", SIZES, 7, weights=range(1, 6), n_unpenalised=2),
    "multinomial": _multinomial,
    "linear systems": lambda: systems(SIZES, 3),
    "td": lambda: fs.problems.GarnetTD(n_clients=5, states=6, dim=3, seed=1),
    "td along a chain": lambda: fs.problems.GarnetTD(n_clients=5, states=6, dim=3, sampling="markov", seed=1),
    "gaussian stream": lambda: fs.problems.RidgeStream(n_clients=5, dim=7, l2=0.1, seed=3),
    "logistic stream": lambda: fs.problems.LogisticStream(n_clients=5, dim=7, l2=0.1, seed=3),
    "differentiable": _differentiable,
    "table": lambda: fs.data.from_frame(_frame(), target="ill", client="site", kind="logistic", l2=0.05),
    "seventy clients": lambda: make("ridge", (4,) * 70, 3),
}
FURTHER: dict[str, Any] = {  # on one problem, with the reference and the compiled engine
    "FedProx": fs.FedProx(step_size=0.05, local_steps=6, proximal_weight=0.3, cohort=3),
    "FedSplit": fs.FedSplit(step_size=0.05, local_steps=6, proximal_weight=0.3),
    "APDA": fs.Apda(step_size=0.05, local_steps=6, smoothness=2.0, strong_convexity=0.1),
    "Scallion, natural": fs.Scallion(step_size=0.05, local_steps=6, compression="natural", cohort=3),
    "Scallion, random_k": fs.Scallion(step_size=0.02, local_steps=6, compression="random_k:0.5"),
    "Scallion, top_k": fs.Scallion(step_size=0.02, local_steps=6, compression="top_k:0.5"),
    "Scallion, quantised": fs.Scallion(step_size=0.02, local_steps=6, compression="quantised:7"),
    "Scallion, both directions": fs.Scallion(
        step_size=0.02, local_steps=6, compression="quantised:7", server_levels=8
    ),
    "Tamuna": fs.Tamuna(step_size=0.05, communication_probability=0.2, owners=2),
    "Tamuna, cohorts": fs.Tamuna(step_size=0.05, communication_probability=0.2, owners=2, cohort=3),
    "RandProx": fs.RandProx(step_size=0.05, communication_probability=0.2, share=0.5),
    "amplified": fs.AmplifiedScaffold(step_size=0.02, local_steps=6, window=3, amplification=1.5, cohort=2),
    "LocalSvrg": fs.LocalSvrg(step_size=0.05, local_steps=6),
    "VRProxSkip": fs.VRProxSkip(step_size=0.05, communication_probability=0.2),
}
NOT_IN_A_FEDERATION = ("Adam", "Tamuna", "Tamuna, cohorts", "RandProx", "amplified")
METHODS: dict[str, Any] = {
    **FURTHER,
    "Scaffold": fs.Scaffold(step_size=0.05, local_steps=6),
    "Scaffold, cohorts": fs.Scaffold(step_size=0.05, local_steps=6, cohort=3),
    "Scaffold, unequal steps": fs.Scaffold(step_size=0.05, local_steps=(3, 9, 1, 6, 4), participation=0.6),
    "FedAvg": fs.FedAvg(step_size=0.05, local_steps=6),
    "FedAvg, cohorts": fs.FedAvg(step_size=0.05, local_steps=6, cohort=2),
    "two-sided": fs.TwoSidedScaffold(step_size=0.05, local_steps=6, server_step_size=0.8, cohort=2),
    "ProxSkip": fs.ProxSkip(step_size=0.05, communication_probability=0.2),
    "FedLin": fs.FedLin(step_size=0.05, local_steps=6),
    "FedLin, minibatch": fs.FedLin(step_size=0.05, local_steps=6, correction_gradients="minibatch"),
    "Adam": fs.ServerOptimizer(
        method=fs.Scaffold(step_size=0.05, local_steps=6), optimizer="adam", learning_rate=0.05
    ),
}
ENGINES = ("reference", "native", "jax")
OPTIONS: dict[str, dict[str, Any]] = {
    "minibatches": {"batch_size": 3},
    "without replacement": {"batch_size": 3, "sampling": "without_replacement"},
    "full gradients": {},
}


def _fits(problem: str, method: str, options: str, engine: str) -> bool:
    if method in FURTHER:
        return problem == "ridge" and options == "minibatches" and engine != "jax"
    if problem == "differentiable":
        return engine == "jax"
    if engine == "jax" and problem not in ("ridge", "logistic", "multinomial", "table", "seventy clients"):
        return False
    if "stream" in problem and method == "FedLin":
        return False  # distributions have no full gradients
    if problem in ("table", "seventy clients") and method == "Scaffold, unequal steps":
        return False
    if options != "minibatches":
        tables = ("ridge", "logistic", "multinomial")
        return problem in tables and method in ("Scaffold", "FedLin", "Scaffold, cohorts")
    return True


def _run(problem: str, method: str, options: str, engine: Any) -> Result:
    trace = fs.run(
        PROBLEMS[problem](), METHODS[method], rounds=7, repetitions=2, seed=2**40 + 1, engine=engine,
        record=("mse", "loss") if problem in ("ridge", "logistic") else (), **OPTIONS[options],
    )  # fmt: skip
    return {"theta": trace.theta, "xi": trace.control_variates, **trace.metrics}


def _staged() -> Result:
    found = fs.staged(
        PROBLEMS["logistic"](), METHODS["Scaffold"], rounds=60, batch_size=3, repetitions=2, engine="native"
    )
    return {"theta": found.trace.theta, "xi": found.trace.control_variates, "stages": np.array(found.stages)}


def _extrapolated() -> Result:
    found = fs.richardson_romberg(
        PROBLEMS["logistic"](), METHODS["Scaffold"], rounds=60, batch_size=3, repetitions=2, discard=10
    )
    return {"theta": found.theta, "fine": found.fine, "error": found.standard_error}


def _in_a_folder() -> Result:
    with tempfile.TemporaryDirectory() as folder:
        trace = fs.run(
            PROBLEMS["ridge"](), METHODS["Scaffold, cohorts"], rounds=7, batch_size=3, client_state_dir=folder
        )
        return {"theta": trace.theta, "xi": np.array(trace.control_variates)}


def _ray() -> Result:
    trace = fs.run(
        PROBLEMS["seventy clients"](), METHODS["Scaffold"], rounds=7, batch_size=3, engine=fs.engines.Ray(shards=2)
    )
    return {"theta": trace.theta, "xi": trace.control_variates}


def _federation(method: str) -> Result:
    from tests.federation.federation import Federation

    with tempfile.TemporaryDirectory() as folder:
        found = Federation(Path(folder), PROBLEMS["ridge"](), METHODS[method]).run(7)
    return dict(found.server._asdict())


def _predicted(problem: str, method: str) -> Result:
    found = fs.theory.predict(PROBLEMS[problem](), METHODS[method], batch_size=3, rounds=5)
    return {"mse": np.array(found.mse), "curve": np.array(found.curve), "bias": np.array(found.bias)}


def _planned() -> Result:
    found = fs.plan(PROBLEMS["ridge"](), target_mse=0.01, batch_size=3)
    return {"plan": np.array([found.method.step_size, found.method.local_steps, found.rounds], dtype=float)}


def _fitted() -> Result:
    from fedscaffold.sklearn import FederatedLogisticRegression

    frame = _frame()
    model = FederatedLogisticRegression()
    model.fit(frame[["age", "dose"]], frame.ill, clients=frame.site)
    return {"coefficients": model.coef_, "intercept": np.atleast_1d(model.intercept_)}


CASES: dict[str, Callable[[], Result]] = {
    **{
        f"{problem} | {method} | {options} | {engine}": partial(_run, problem, method, options, engine)
        for problem in PROBLEMS
        for method in METHODS
        for options in OPTIONS
        for engine in ENGINES
        if _fits(problem, method, options, engine)
    },
    "staged": _staged,
    "Richardson–Romberg": _extrapolated,
    "memory in a folder": _in_a_folder,
    "ray": _ray,
    **{f"federation | {m}": partial(_federation, m) for m in METHODS if m not in NOT_IN_A_FEDERATION},
    **{f"predicted | ridge | {method}": partial(_predicted, "ridge", method) for method in ("Scaffold", "FedAvg")},
    "planned": _planned,
    "estimator": _fitted,
}


def _digest(values: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(values, dtype=np.float64).tobytes()).hexdigest()[:16]


def _projections(values: Array) -> list[float]:
    """Three numbers that depend on all entries and on their order."""
    flat = np.asarray(values, dtype=np.float64).reshape(-1)
    k = np.arange(flat.size)
    return [float(flat @ np.cos(frequency * k)) for frequency in (0.0, 1.0, 2.7)]


def _machine() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
        flags = set(next(line for line in text.splitlines() if line.startswith("flags")).split())
    except (OSError, StopIteration):
        flags = set()
    features = sorted(flags & {"avx2", "avx512f", "avx512vl", "fma"})
    packages = ("numpy", "scipy", "jax", "optax", "scikit-learn")
    return {
        "processor": f"{platform.system()} {platform.machine()} {' '.join(features)}",
        "blas": " ".join(sorted({b["architecture"] for b in threadpool_info() if b["user_api"] == "blas"})),
        **{name: version(name) for name in packages},
    }


def _is_slow(case: str) -> bool:
    """Whether a case is left to the slow tests: JAX compiles every run anew, and Ray starts processes."""
    kept = ("| Scaffold | minibatches |",)
    return case == "ray" or (case.endswith("jax") and not any(part in case for part in kept))


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow) if _is_slow(case) else case for case in CASES]
)
def test_final_models(case: str) -> None:
    kept = json.loads(FILE.read_text())
    found = CASES[case]()
    assert set(found) == set(kept["projections"][case])
    for name, values in found.items():
        scale = 1e-10 * (1.0 + np.abs(values).sum())
        np.testing.assert_allclose(_projections(values), kept["projections"][case][name], rtol=0, atol=scale)
    for machine in kept["machines"]:
        if machine["machine"] == _machine() and case in machine["digests"]:
            assert {name: _digest(values) for name, values in found.items()} == machine["digests"][case]


def test_the_file_has_these_cases_and_no_others() -> None:
    assert set(json.loads(FILE.read_text())["projections"]) == set(CASES)


def _write() -> None:
    found = {case: compute() for case, compute in CASES.items()}
    digests = {case: {name: _digest(v) for name, v in values.items()} for case, values in found.items()}
    projections = {case: {name: _projections(v) for name, v in values.items()} for case, values in found.items()}
    kept = {"projections": projections, "machines": [{"machine": _machine(), "digests": digests}]}
    FILE.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    _write()

"""Values that nobody should pass, and calls of the public interface in which they take the place of good ones."""

# ruff: noqa: E501

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import fedscaffold as fs
from fedscaffold.benchmarking import Sweep, compare
from fedscaffold.core.random.stream import Batches
from fedscaffold.data import partition
from fedscaffold.federation.client.policy import SitePolicy
from fedscaffold.federation.study.plan import StudySettings
from fedscaffold.sklearn import FederatedLogisticRegression, FederatedPoissonRegression, FederatedRidge

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 12, 2))
Y = X.sum(axis=2)
LABELS = (X[:, :, 0] > 0) * 1.0
FRAME = pd.DataFrame(
    {"site": np.repeat(list("abc"), 12), "x": X[:, :, 0].ravel(), "z": X[:, :, 1].ravel(), "y": Y.ravel()}
)


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def hostile(folder: Path) -> list[Any]:
    """New ones for every call, since some are used up."""
    return [
        None, True, False, Ellipsis, NotImplemented, 0, -1, 1, 2, 3, 1.5, -0.0, 0.1, 1e308, -1e308, 5e-324, np.nan,
        np.inf, -np.inf, 2**31, 2**62, 2**63, 2**64, 10**400, -(10**400), 10**5000, 1j, Fraction(1, 3), Decimal("0.1"),
        np.int8(3), np.uint8(200), np.int32(1), np.uint64(2**63), np.float16(0.5), np.float32(0.5), np.longdouble(0.5),
        np.bool_(True), np.complex128(1j), np.str_("x"), np.datetime64("2020-01-01"), "", "x", "auto", "a\0b", "é" * 300,
        "x" * 300, "../" * 2000, b"1", bytearray(b"ab"), [], [1], [1.0, 2.0, 3.0], [None, 1.0], ["a", 1.0],
        [[1.0], [1.0, 2.0]], [10**400], [10**5000], nested(40), nested(900), (), (1, 2), {}, {"a": 1}, {1: 2}, set(),
        {1, 2}, frozenset(), object(), range(3), iter([1.0, 2.0]), (n for n in range(3)), lambda *_: 1.0, print, int, fs,
        fs.problems.Ridge, fs.Scaffold, np.ones(3), np.ones((2, 3)), np.ones((3, 12, 2)), np.zeros(0), np.zeros((0, 0)),
        np.ones((3, 2)) * 1j, np.array("x"), np.array(["a", "b"]), np.array([1.0, None], dtype=object),
        np.array([10**400], dtype=object), np.array(["2020-01-01"], dtype="M8[D]"), np.full((3, 12, 2), np.nan),
        np.full((3, 12, 2), 1e300), np.ma.masked_equal(np.ones((3, 12, 2)), 1.0), np.ma.masked_equal([1.0, 2.0], 2.0),
        np.broadcast_to(np.ones(2), (3, 12, 2)), X[:, ::2], X.astype(np.float32), np.ones((3, 12, 2, 2)), np.array(5),
        np.zeros(3, dtype=[("a", "f8")]), memoryview(b"abc"), FRAME, FRAME["x"], pd.Series([None, "a"]),
        folder, folder / "missing" / "file", folder / "text.json", folder / "x.npz", 3.0 + 0j, -(2**63), 256,
        METHOD, PROBLEM, Batches(2),
    ]  # fmt: skip


METHOD = fs.Scaffold(step_size=0.05, local_steps=2)
PROBLEM = fs.problems.RidgeStream(n_clients=3, dim=2)
TABLE = fs.problems.Ridge(X, Y, l2=0.1)
RUN = {"rounds": 2, "batch_size": 2, "seed": 0, "repetitions": 1, "engine": "reference", "theta0": None,
       "checkpoint": None, "progress": False, "sampling": "with_replacement", "checkpoint_every": None}  # fmt: skip
TABLE_OPTIONS = {"target": "y", "client": "site", "features": None, "categorical": (), "kind": "ridge", "l2": 0.1,
                 "weights": "rows", "missing": "error", "standardize": False, "intercept": True, "min_rows": 1,
                 "max_categories": 10}  # fmt: skip
STREAM = partial(fs.problems.RidgeStream, dim=2)
STUDY_OF_RUNS: dict[str, Any] = {"problem": STREAM, "grid": {"n_clients": [2], "step_size": 0.1}, "method": METHOD, "rounds": 2,
                 "batch_size": 1, "repetitions": 1, "seed": 0, "start": "zero"}  # fmt: skip
DIFFERENTIABLE = [{"x": x, "y": y} for x, y in zip(X, Y, strict=True)]
ESTIMATOR = {"X": X.reshape(-1, 2), "clients": FRAME["site"].to_numpy(), "sample_weight": None, "fit_intercept": True,
             "standardize": True, "trainer": "auto", "tolerance": 0.5, "dispersion": None, "warm_start": False,
             "min_rows": 2, "verbose": False}  # fmt: skip
STUDY: dict[str, Any] = {"target": "y", "kind": "ridge", "event": None, "columns": {}, "features": None, "ignore": (), "categorical": (),
         "l2": 0.1, "tolerance": "se:0.05", "missing": "error", "min_cell": 1, "trainer": "auto", "hessians": True,
         "max_exchanges": 20, "evaluate": 0.0, "exposure": None, "offset": None, "weight": None, "sums": "open",
         "client_intercepts": False, "epsilon": None, "delta": None, "clip": None, "protect": "rows"}  # fmt: skip
PART = {"n_clients": 3, "seed": 0, "min_rows": 1}


def calls(folder: Path) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Public functions and classes, with good arguments by name."""
    FRAME.to_csv(folder / "t.csv", index=False)
    FRAME.to_parquet(folder / "t.parquet")
    (folder / "text.json").write_text("[" * 100_000)
    (folder / "x.npz").write_bytes(b"PK\x03\x04 no archive")
    problems, methods = fs.problems, {"step_size": 0.1, "local_steps": 2}
    glm = {"X": X, "y": Y, "l2": 0.1, "weights": None, "n_unpenalised": 0}
    stream = {"n_clients": 3, "dim": 2, "heterogeneity": 1.0, "scale_spread": 0.5, "spectrum": None, "signal": 1.0,
              "l2": 0.1, "weights": None, "seed": 0}  # fmt: skip
    cohort = {"participation": 1.0, "cohort": None}
    return {
        "Ridge": (problems.Ridge, glm),
        "Logistic": (problems.Logistic, {**glm, "y": LABELS}),
        "Multinomial": (problems.Multinomial, {**glm, "y": LABELS, "n_classes": None}),
        "LinearSA": (problems.LinearSA, {"A": np.ones((3, 2, 2, 2)) + np.eye(2), "b": np.ones((3, 2, 2)), "weights": None}),
        "GarnetTD": (
            problems.GarnetTD,
            {"n_clients": 2, "states": 5, "branching": 2, "dim": 2, "discount": 0.9, "heterogeneity": 0.5,
             "environments": None, "sampling": "iid", "weights": None, "seed": 0},
        ),
        "RidgeStream": (problems.RidgeStream, {**stream, "noise": 1.0}),
        "LogisticStream": (problems.LogisticStream, stream),
        "paper": (problems.paper, {"kind": "regression", "n_clients": 2, "l2": 0.1, "seed": 0}),
        "subset": (TABLE.subset, {"clients": [0, 1]}),
        "stream subset": (PROBLEM.subset, {"clients": [0, 1]}),
        "Scaffold": (fs.Scaffold, {**methods, **cohort}),
        "FedAvg": (fs.FedAvg, {**methods, **cohort}),
        "TwoSidedScaffold": (fs.TwoSidedScaffold, {**methods, **cohort, "server_step_size": 1.0}),
        "FedLin": (fs.FedLin, {**methods, "correction_gradients": "full"}),
        "ProxSkip": (fs.ProxSkip, {"step_size": 0.1, "communication_probability": 0.5}),
        "ServerOptimizer": (
            fs.ServerOptimizer, {"method": METHOD, "optimizer": "sgd", "learning_rate": 1.0, "options": ()}
        ),
        "Batches": (Batches, {"size": 2, "sampling": "with_replacement"}),
        "Native": (fs.engines.Native, {"threads": 1, "dtype": "float64"}),
        "Jax": (fs.engines.Jax, {"dtype": "float64", "clients_at_once": None, "device": None}),
        "Ray": (fs.engines.Ray, {"shards": None, "snapshot_every": 10, "shard_engine": fs.engines.Reference()}),
        "choose_engine": (fs.engines.choose_engine, {"engine": "auto"}),
        "Mse": (fs.simulation.Mse, {"optimum": np.zeros(2)}),
        "TailAverage": (fs.simulation.TailAverage, {"after": 0}),
        "run": (
            fs.run,
            {"problem": PROBLEM, "method": METHOD, **RUN, "record": ("mse",), "control_variates0": None,
             "client_state_dir": None},
        ),
        "run on tables": (fs.run, {"problem": TABLE, "method": METHOD, **RUN, "engine": "native", "record": ("loss",)}),
        "staged": (fs.staged, {"problem": PROBLEM, "method": METHOD, **RUN, "record": ("mse",)}),
        "richardson_romberg": (
            fs.richardson_romberg, {"problem": PROBLEM, "method": METHOD, **RUN, "rounds": 12, "discard": 2}
        ),
        "plan": (
            fs.plan,
            {"problem": PROBLEM, "target_mse": 0.5, "batch_size": 4, "mode": "first_order", "max_local_steps": 50,
             "max_rounds": 1000, "round_cost": 100.0, "gradient_cost": 1.0, "sampling": "with_replacement",
             "optimum": None, "progress": False},
        ),
        "predict": (
            fs.theory.predict,
            {"problem": TABLE, "method": METHOD, "batch_size": 2, "sampling": "with_replacement", "rounds": None,
             "accuracy": 0.1, "seconds": 1.0, "how": None, "privacy": None, "optimum": None},
        ),
        "constants": (fs.theory.constants, {"problem": TABLE, "batch_size": 2}),
        "Trace.load": (fs.Trace.load, {"path": folder / "x.npz"}),
        "Model.load": (fs.Model.load, {"path": folder / "text.json"}),
        "Encoding.load": (fs.data.Encoding.load, {"path": folder / "text.json"}),
        "from_frame": (fs.data.from_frame, {"data": FRAME, **TABLE_OPTIONS}),
        "from_csv": (fs.data.from_file, {"data": folder / "t.csv", **TABLE_OPTIONS}),
        "from_parquet": (fs.data.from_file, {"data": folder / "t.parquet", **TABLE_OPTIONS}),
        "open_problem": (fs.data.open_problem, {"data": folder / "t.csv", "target": "y", "client": "site", "l2": 0.1}),
        "iid": (partition.iid, {"y": Y.ravel(), **PART}),
        "dirichlet": (partition.dirichlet, {"y": LABELS.ravel(), "alpha": 1.0, **PART}),
        "quantity": (partition.quantity, {"y": Y.ravel(), "alpha": 1.0, **PART}),
        "feature_shift": (partition.feature_shift, {"X": X.reshape(-1, 2), "strength": 0.5, "column": None, **PART}),
        "FitSettings": (
            fs.models.FitSettings,
            {"tolerance": 0.1, "trainer": "auto", "max_exchanges": 9, "client_intercepts": False, "dispersion": None},
        ),
        "Sweep": (Sweep, STUDY_OF_RUNS),
        "sweep": (
            partial(Sweep(**STUDY_OF_RUNS).run, progress=False),
            {"out": None, "engine": "reference", "predict": False},
        ),
        "compare": (
            partial(compare, progress=False),
            {"problem": PROBLEM, "methods": {"Scaffold": METHOD}, "rounds": 2, "gradients": None, "vectors": None,
             "targets": (), "record": "mse", "batch_size": 2, "sampling": "with_replacement", "seed": 0, "repetitions": 1,
             "engine": "reference", "cells": None},
        ),
        "fit": (
            fs.fit,
            {"data": FRAME, "target": "y", "client": "site", "kind": "ridge", "l2": 0.1, "tolerance": 0.5,
             "trainer": "auto", "max_exchanges": 9, "client_intercepts": False, "dispersion": None, "features": None, "drop": (), "categorical": (), "reference": {}, "dates": (),
             "missing": "error", "min_rows": 2, "max_categories": 100, "exposure": None, "offset": None, "weight": None},
        ),
        "Poisson": (problems.Poisson, {**glm, "y": LABELS, "offset": None, "sample_weight": None}),
        "Gamma": (problems.Gamma, {**glm, "y": np.exp(Y), "offset": None, "sample_weight": None}),
        "StudySettings": (StudySettings, STUDY),
        "Study": (study, STUDY),
        "SitePolicy": (
            SitePolicy,
            {"min_batch_size": 1, "min_rows": 1, "max_local_steps": 10, "max_rounds": 10, "max_runs": 2, "methods": (),
             "run_names": ("*",), "keep_back": 0.0, "tell_rows": True, "tell_state": True, "draws": "secret",
             "changed_data": "refuse"},
        ),
        "FederatedPoissonRegression": (
            partial(estimator, FederatedPoissonRegression), {**ESTIMATOR, "y": LABELS.ravel(), "alpha": 1.0},
        ),
        "Differentiable": (
            differentiable,
            {"loss": squared, "params": np.zeros(2), "clients": DIFFERENTIABLE, "l2": 0.1, "weights": None},
        ),
        "FederatedRidge": (
            partial(estimator, FederatedRidge),
            {**ESTIMATOR, "y": Y.ravel(), "alpha": 1.0, "positive": False},
        ),
        "FederatedLogisticRegression": (
            partial(estimator, FederatedLogisticRegression),
            {**ESTIMATOR, "y": LABELS.ravel(), "C": 1.0, "class_weight": None},
        ),
    }  # fmt: skip


def squared(params: Any, batch: Any) -> Any:
    """The mean of squared residuals."""
    return ((batch["x"] @ params - batch["y"]) ** 2).mean()


def differentiable(**given: Any) -> None:
    """Make the problem and use it."""
    problem = fs.problems.Differentiable(given.pop("loss"), given.pop("params"), given.pop("clients"), **given)
    problem.loss(np.zeros(problem.dim))


def estimator(kind: Any, *, X: Any, y: Any, clients: Any, sample_weight: Any, **given: Any) -> None:
    """Fit and predict."""
    kind(**given).fit(X, y, clients=clients, sample_weight=sample_weight).predict(X)


def study(**given: Any) -> None:
    """Make the study and run it in this process."""
    tables = {str(site): rows.drop(columns="site") for site, rows in FRAME.groupby("site")}
    fs.federation.Study(**given).run(tables, engine="reference")

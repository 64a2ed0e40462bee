"""Tables that scikit-learn ships, split over clients; what the tests on tables share."""

from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

from fedscaffold.data import partition

NAMES = np.array(["Bonn", "Graz", "Kiel", "Ulm"])


def cancer() -> pd.DataFrame:
    """Two classes, text; eight numbers, on very different scales; a text column."""
    loaded = load_breast_cancer(as_frame=True)
    owners = partition.dirichlet(loaded.target, n_clients=4, alpha=0.5, seed=1)
    frame = loaded.data.iloc[:, :8].assign(hospital=NAMES[owners])
    frame["ward"] = np.where(loaded.data["worst symmetry"] > 0.28, "north", "south")
    frame["diagnosis"] = loaded.target.map({0: "malignant", 1: "benign"})
    return frame


def diabetes() -> pd.DataFrame:
    """A number to predict."""
    frame = load_diabetes(as_frame=True, scaled=False).frame
    owners = partition.feature_shift(frame[["age", "bmi"]].to_numpy(), n_clients=4, strength=0.7, seed=0)
    return frame.assign(hospital=NAMES[owners])


def wine() -> pd.DataFrame:
    """Three classes, whole numbers."""
    frame = load_wine(as_frame=True).frame
    owners = partition.dirichlet(frame.target, n_clients=3, alpha=1.0, seed=0)
    return frame.assign(hospital=NAMES[owners])


def written(frame: pd.DataFrame, path: Path) -> Path:
    """The frame in a file, by its suffix."""
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False)
    return path

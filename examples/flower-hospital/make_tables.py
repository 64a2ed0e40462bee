"""Breast-cancer records from scikit-learn as the tables of four hospitals and one of new patients."""

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

from fedscaffold.data import partition
from hospital.task import COLUMNS


def write_tables(folder: Path, n_clients: int = 4) -> list[Path]:
    """Write hospital-0.csv, hospital-1.csv, ... and new.csv, which has every fourth row."""
    loaded = load_breast_cancer(as_frame=True)
    frame = loaded.data[list(COLUMNS)].assign(diagnosis=loaded.target.map({0: "malignant", 1: "benign"}))
    new = np.arange(len(frame)) % 4 == 3
    known = frame[~new]
    owners = partition.dirichlet(known["diagnosis"], n_clients=n_clients, alpha=0.5, seed=2, min_rows=20)
    folder.mkdir(parents=True, exist_ok=True)
    frame[new].to_csv(folder / "new.csv", index=False)
    files = [folder / f"hospital-{c}.csv" for c in range(n_clients)]
    for c, file in enumerate(files):
        known[owners == c].to_csv(file, index=False)
        ill = (known[owners == c]["diagnosis"] == "malignant").mean()
        print(f"{file}: {np.count_nonzero(owners == c)} rows, {ill:.0%} malignant")
    return files


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write")
    write_tables(parser.parse_args().folder)

"""Breast-cancer records of five imaginary hospitals: two tables, a fit, a score. Works offline."""

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

from fedscaffold.data import partition

HOSPITALS = np.array(["Bonn", "Graz", "Kiel", "Linz", "Ulm"])


def write_tables(folder: Path) -> tuple[Path, Path]:
    """Write visits.csv and new.csv, which has every fourth row."""
    loaded = load_breast_cancer(as_frame=True)
    diagnosis = loaded.target.map({0: "malignant", 1: "benign"})
    owners = partition.dirichlet(loaded.target, n_clients=HOSPITALS.size, alpha=0.5, seed=0)
    frame = loaded.data.assign(hospital=HOSPITALS[owners], diagnosis=diagnosis)
    new = np.arange(len(frame)) % 4 == 3
    folder.mkdir(parents=True, exist_ok=True)
    files = folder / "visits.csv", folder / "new.csv"
    frame[~new].to_csv(files[0], index=False)
    frame[new].to_csv(files[1], index=False)
    return files


def fedscaffold(*words: str | Path) -> None:
    """Run the command and show it."""
    print("$ fedscaffold", *words, flush=True)
    subprocess.run(
        [sys.executable, "-c", "from fedscaffold.cli.main import main; main()", *map(str, words)], check=True
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("hospitals"), help="where to write")
    folder = parser.parse_args().folder
    visits, new = write_tables(folder)
    columns = ["--target", "diagnosis", "--client", "hospital"]
    fedscaffold("inspect", visits, *columns)
    fedscaffold("fit", visits, *columns, "--test", new, "--out", folder / "model")
    fedscaffold("score", folder / "model" / "model.json", new, "--out", folder / "predictions.csv")

"""Run this app without Flower, on all tables at once, and compare with the federation's model if it exists."""

import argparse
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

import fedscaffold as fs
from hospital import task

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="with hospital-0.csv, hospital-1.csv, ...")
    folder = parser.parse_args().folder
    config = tomllib.loads((Path(__file__).parent / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    problem = task.pooled([folder / f"hospital-{c}.csv" for c in range(config["clients"])])
    options = {"rounds": config["rounds"], "batch_size": config["batch-size"], "seed": config["seed"]}
    best = problem.optimum()
    methods: dict[str, Any] = {
        "Scaffold": task.method(config),
        "FedAvg": fs.FedAvg(step_size=config["step-size"], local_steps=config["local-steps"]),
    }
    for name, method in methods.items():
        theta = fs.run(problem, method, **options).theta[0]
        distance = np.linalg.norm(theta - best) / np.linalg.norm(best)
        print(f"{name}: {distance:.1%} from the model that pooled tables would give")
    federated = folder / "server" / "model.json"
    if federated.exists():
        simulated = task.model(fs.run(problem, task.method(config), **options).theta[0])
        there, here = fs.Model.load(federated).equations[0], simulated.equations[0]
        differences = [abs(a - b) for a, b in zip(there.coefficients, here.coefficients, strict=True)]
        print(f"The federation's coefficients differ from Scaffold's by at most {max(differences):.1g}")

"""
Who gains from the federation?
==============================

Each of eight clients could train on its own few digits instead of taking part. Accuracy on images that no client
has: alone, with FedAvg, with Scaffold, and with pooled data. Labels are split unevenly, so a client alone knows
few digits well.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import fedscaffold as fs

digits = load_digits()
x = np.hstack([digits.data.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16) / 8 - 1, np.ones((1797, 1))])
test = np.arange(1797) % 4 == 3
client = fs.data.partition.dirichlet(digits.target, n_clients=8, alpha=0.3, seed=2)
rows = [(client == c) & ~test for c in range(8)]


def problem_of(parts):
    """Return multinomial regression on these parts of the rows, one client each, weighted by their sizes."""
    return fs.problems.Multinomial(
        [x[r] for r in parts], [digits.target[r] for r in parts], l2=0.002, n_classes=10,
        weights=[r.sum() for r in parts],
    )  # fmt: skip


def accuracy(theta):
    """Return the share of the test images that the coefficients classify correctly."""
    return np.mean((x[test] @ theta.reshape(10, -1).T).argmax(axis=1) == digits.target[test])


# %%
# Thirty rounds of both methods with the same effort, and the optimum of each client's own records.

together = problem_of(rows)
alone = [accuracy(problem_of([r]).optimum()) for r in rows]
fedavg, scaffold = (
    accuracy(fs.run(together, make(step_size=0.3, local_steps=100), rounds=30, record=()).theta[0])
    for make in (fs.FedAvg, fs.Scaffold)
)
pooled = accuracy(together.optimum())

figure, axis = plt.subplots(figsize=(8, 4.2), layout="constrained")
axis.bar(np.arange(8), alone, color="0.8", label="alone")
for value, colour, name in ((fedavg, "tab:red", "FedAvg"), (scaffold, "tab:blue", "Scaffold")):
    axis.axhline(value, color=colour, lw=2, label=f"{name}, {value:.1%}")
axis.axhline(pooled, color="k", ls="--", lw=1, label=f"pooled data, {pooled:.1%}")
axis.set_xticks(np.arange(8), [f"client {c + 1}\n{r.sum()} rows" for c, r in enumerate(rows)], fontsize=8)
axis.set(title="each client alone, and all together", ylabel="accuracy on new images")
axis.legend(loc="lower right", fontsize=8)
plt.show()

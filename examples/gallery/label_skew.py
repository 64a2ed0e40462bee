"""
How unevenly are labels split?
==============================

A benchmark table has no clients; `fs.data.partition` distributes its rows. The Dirichlet parameter α says how
unevenly: with a large α every client sees every digit, with a small one few of them. Top: the 1,797 handwritten
digits on twenty clients. Bottom: how far FedAvg and Scaffold are from the pooled model after the same 30 rounds.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import fedscaffold as fs

digits = load_digits()
pixels = digits.data.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)) / 16 - 0.5  # 4 × 4 pixels are enough here
alphas = (100.0, 1.0, 0.1)

figure, axes = plt.subplots(2, 3, figsize=(10, 6), sharey="row", layout="constrained")
for (top, bottom), alpha in zip(axes.T, alphas, strict=True):
    client = fs.data.partition.dirichlet(digits.target, n_clients=20, alpha=alpha, seed=0)
    split = fs.data.partition.summary(client, digits.target)
    base = np.zeros(20)
    for digit, counts in enumerate(split.counts.T):
        top.bar(np.arange(20), counts, bottom=base, color=plt.cm.tab10(digit), width=0.9)
        base += counts
    top.set(title=f"α = {alpha:g}, label skew {split.skew:.2f}", xlabel="client")
    rows = [client == c for c in range(20)]
    problem = fs.problems.Multinomial(
        [pixels.reshape(-1, 16)[r] for r in rows], [digits.target[r] for r in rows], l2=0.05,
        weights=[r.sum() for r in rows],
    )  # fmt: skip
    for method, colour in (
        (fs.FedAvg(step_size=0.5, local_steps=20), "tab:red"),
        (fs.Scaffold(step_size=0.5, local_steps=20), "tab:blue"),
    ):
        trace = fs.run(problem, method, rounds=30)
        bottom.semilogy(trace.mse[0], color=colour, label=type(method).__name__)
    bottom.set(xlabel="round")
axes[0, 0].set_ylabel("rows by digit")
axes[1, 0].set_ylabel("squared distance\nto the pooled model")
axes[1, 0].legend()
plt.show()

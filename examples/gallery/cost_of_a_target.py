"""
Gradients to reach a target
===========================

`fs.benchmarking.compare` runs every candidate of a grid with the same draws and reports the cheapest one of each
method that reaches a squared error. With twice the clients each client needs half the gradients, for Scaffold and
for FedAvg; they differ in the rounds that this takes, and Scaffold can do with very few.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import LogFormatter

import fedscaffold as fs
from fedscaffold.benchmarking import compare, fit_line

# %%
# The paper's classification problem on 80 clients, and on some of them, so that the optimum is nearly the same.

whole = fs.problems.paper("classification", n_clients=80, l2=0.1)
problems = [whole.subset([*range(n // 2), *range(40, 40 + n // 2)]) for n in (10, 20, 40, 80)]
grid = [(step_size, local_steps) for step_size in (0.8, 0.4, 0.2, 0.1, 0.05) for local_steps in (1, 4, 16, 64)]
methods = {kind.__name__: [kind(step_size=g, local_steps=h) for g, h in grid] for kind in (fs.Scaffold, fs.FedAvg)}
TARGET = 0.003
found = compare(problems, methods, rounds=200, gradients=4000, targets=[TARGET], batch_size=10, repetitions=5)
print(found)

# %%
# Left, the fewest gradients per client with the slope of a fitted power law; right, the fewest rounds.

figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for name, marker, colour in (("Scaffold", "o", "tab:blue"), ("FedAvg", "s", "tab:red")):
    for axis, measure in zip(axes, ("gradients", "rounds"), strict=True):
        costs = [cost for cost in found.costs if (cost.name, cost.cheapest_in) == (name, measure) and cost.rounds]
        n, spent = np.array([(cost.n_clients, getattr(cost, measure)) for cost in costs], dtype=float).T
        label = name
        if measure == "gradients":
            fit = fit_line(np.log(n), np.log(spent))
            label = f"{name}: N to the {fit.slope:.2f}, 95 % [{fit.low:.2f}, {fit.high:.2f}]"
        axis.loglog(n, spent, marker + "-", color=colour, label=label)
        axis.set(xlabel="number of clients N", ylabel=f"fewest {measure} to reach {TARGET:g}")
        axis.set_xticks(n, [f"{each:.0f}" for each in n])
        axis.set_xticks([], minor=True)
        for set_formatter in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
            set_formatter(LogFormatter(minor_thresholds=(2.0, 0.5)))  # 30, not 3 × 10¹
        axis.legend(fontsize=8)
plt.show()

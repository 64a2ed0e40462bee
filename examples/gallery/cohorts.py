"""
When only some clients take part
================================

In each round a cohort of the clients takes part, drawn from the run's seed. The other clients keep their control
variate. Scaffold still reaches the optimum, more slowly the smaller the cohort; FedAvg also moves with whom it
happens to draw. Thirty cellars with a few wines each.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine

import fedscaffold as fs

wine = load_wine()
x = (wine.data - wine.data.mean(axis=0)) / wine.data.std(axis=0)
client = fs.data.partition.dirichlet(wine.target, n_clients=30, alpha=0.3, seed=0, min_rows=2)
rows = [client == c for c in range(30)]
problem = fs.problems.Multinomial([x[r] for r in rows], [wine.target[r] for r in rows], l2=0.1)

figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.2), sharey=True, layout="constrained")
colours = plt.cm.viridis(np.linspace(0.1, 0.85, 4))
for axis, make in zip(axes, (fs.Scaffold, fs.FedAvg), strict=True):
    for cohort, colour in zip((30, 15, 6, 3), colours, strict=True):
        method = make(step_size=0.2, local_steps=10, cohort=cohort)
        trace = fs.run(problem, method, rounds=400, repetitions=3)
        axis.semilogy(trace.mse.mean(axis=0), color=colour, label=f"{cohort} of 30")
    axis.set(title=make.__name__, xlabel="round", ylim=(1e-12, None))
axes[0].set_ylabel("squared distance to the pooled model")
axes[1].legend(title="clients in a round", fontsize=8)
plt.show()

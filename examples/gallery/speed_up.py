"""
Linear speed-up: more clients, less noise
=========================================

With stochastic gradients a run ends on a plateau. The paper proves that Scaffold's plateau falls as 1/N in the
number of clients, which FedAvg's cannot where clients differ: its bias does not average out. Here clients hold
the diabetes records of four kinds of patients, and more clients of the same four kinds join.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

import fedscaffold as fs

x, y = load_diabetes(return_X_y=True)
x, y = x[:, :5] / x[:, :5].std(axis=0), (y - y.mean()) / y.std()
kind = fs.data.partition.feature_shift(x, n_clients=4, strength=1.0, seed=0, column=2)


def problem_of(n_clients):
    """Return a federation in which a quarter of the clients holds the records of each kind of patient."""
    rows = [kind == c % 4 for c in range(n_clients)]
    return fs.problems.Ridge([x[r] for r in rows], [y[r] for r in rows], l2=0.1)


# %%
# Measure the plateau from the stationary part of each run and compare it with what `fs.theory.predict` says
# beforehand.

numbers = [4, 16, 64, 256]
figure, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
for make, colour in ((fs.Scaffold, "tab:blue"), (fs.FedAvg, "tab:red")):
    method = make(step_size=0.02, local_steps=50)
    predicted = [fs.theory.predict(problem_of(n), method, batch_size=4).mse for n in numbers]
    measured = []
    for n in numbers:
        problem = problem_of(n)
        trace = fs.run(problem, method, rounds=120, batch_size=4, repetitions=4, theta0=problem.optimum())
        measured.append(trace.mse[:, 40:].mean())
    axis.loglog(numbers, predicted, "-", color=colour, lw=1, label=f"{make.__name__}, predicted")
    axis.loglog(numbers, measured, "o", color=colour, label=f"{make.__name__}, measured")
guide = np.array(numbers, dtype=float)
axis.loglog(guide, 1.6 * predicted[0] * guide[0] / guide, ":", color="0.5", label="1/N")
axis.set_xlabel("number of clients")
axis.set_ylabel("squared error on the plateau")
axis.legend(fontsize=8)
plt.show()

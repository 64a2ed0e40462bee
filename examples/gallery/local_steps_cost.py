"""
What more local steps cost FedAvg
=================================

Ridge regression on scikit-learn's diabetes records, split among eight clinics by body-mass index. Without noise
FedAvg ends at a fixed point that lies further from the optimum the more local steps are taken; Scaffold's fixed
point is the optimum, whatever the number of steps.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

import fedscaffold as fs

x, y = load_diabetes(return_X_y=True)
x, y = x / x.std(axis=0), (y - y.mean()) / y.std()
clinic = fs.data.partition.feature_shift(x, n_clients=8, strength=1.0, seed=0, column=2)
rows = [clinic == c for c in range(8)]
problem = fs.problems.Ridge([x[r] for r in rows], [y[r] for r in rows], l2=0.1, weights=[r.sum() for r in rows])
optimum = problem.optimum()

# %%
# Run both for long enough to be at their fixed points, for several numbers of local steps.

steps = np.array([1, 2, 4, 8, 16, 32, 64])
distance = {"FedAvg": [], "Scaffold": []}
for local_steps in steps:
    for method in (
        fs.FedAvg(step_size=0.2, local_steps=int(local_steps)),
        fs.Scaffold(step_size=0.2, local_steps=int(local_steps)),
    ):
        end = fs.run(problem, method, rounds=max(3000 // int(local_steps), 600), record=()).theta[0]
        distance[type(method).__name__].append(np.linalg.norm(end - optimum) / np.linalg.norm(optimum))

figure, axis = plt.subplots(figsize=(7, 4.2), layout="constrained")
axis.plot(steps, 100 * np.array(distance["FedAvg"]), "o-", color="tab:red", label="FedAvg")
axis.plot(steps, 100 * np.array(distance["Scaffold"]), "s-", color="tab:blue", label="Scaffold")
axis.set_xscale("log", base=2)
axis.set_xlabel("local steps between two communications")
axis.set_ylabel("distance to the pooled model, % of its length")
axis.legend()
plt.show()

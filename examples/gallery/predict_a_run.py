"""
Predict a run before running it
===============================

`fs.theory.predict` gives the expected squared error after every round: exact for quadratic losses, otherwise the
mean of as many runs as its standard error needs. Below: prediction and forty simulated runs on breast-cancer
records of six clinics, and how the plateau divides into noise, which falls as 1/N, and bias, which does not.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_breast_cancer

import fedscaffold as fs

data = load_breast_cancer()
x = data.data[:, :4]
x = (x - x.mean(axis=0)) / x.std(axis=0)
clinic = fs.data.partition.feature_shift(x, n_clients=6, strength=1.0, seed=0)
rows = [clinic == c for c in range(6)]
problem = fs.problems.Logistic([x[r] for r in rows], [data.target[r] for r in rows], l2=0.05)

# %%
# The prediction, then the runs.

figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.2), layout="constrained", width_ratios=(2, 1))
for k, method in enumerate((fs.Scaffold(step_size=0.2, local_steps=40), fs.FedAvg(step_size=0.2, local_steps=40))):
    name, colour = type(method).__name__, ("tab:blue", "tab:red")[k]
    prediction = fs.theory.predict(problem, method, batch_size=8, rounds=60)
    trace = fs.run(problem, method, rounds=60, batch_size=8, repetitions=40)
    axes[0].semilogy(trace.mse.T, color=colour, lw=0.4, alpha=0.25)
    axes[0].semilogy(trace.mse.mean(axis=0), color=colour, lw=2, label=f"{name}, mean of 40 runs")
    axes[0].semilogy(prediction.curve, "k--", lw=1.2, label="predicted" if k else None)
    noise, bias, measured = prediction.variance, prediction.squared_bias, trace.mse[:, 20:].mean()
    axes[1].bar(k, noise, color=colour)
    axes[1].bar(k, bias, bottom=noise, color=colour, hatch="///", ec="w")
    axes[1].text(k, prediction.mse, f"measured\n{measured:.1e}", ha="center", va="bottom", fontsize=8)
axes[0].set(xlabel="round", ylabel="squared distance to the optimum")
axes[0].legend(fontsize=8)
axes[1].set_xticks((0, 1), ("Scaffold", "FedAvg"))
axes[1].set(title="predicted plateau:\nnoise (plain), bias (hatched)")
axes[1].margins(y=0.2)
plt.show()

"""
Client drift: where local steps lead
====================================

Two hospitals hold breast-cancer records and fit one logistic regression with two coefficients. Dots are single
local steps, without noise, in the first four rounds; the black line joins the server's models. With FedAvg each
hospital walks towards the model that suits its own records, and the mean of the two end points stays away from
the optimum of their mean loss however many rounds follow. Scaffold learns in its first rounds how each hospital's
gradients differ from the common ones and corrects them: from then on both walk towards the common optimum.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer

import fedscaffold as fs

# %%
# Two features of the tumours, standardised. One hospital has the tumours of fine texture, the other the
# tumours of coarse texture.

data = load_breast_cancer()
x = data.data[:, [1, 8]]
x = (x - x.mean(axis=0)) / x.std(axis=0)
order = np.argsort(x[:, 0])
hospitals = order[:380], order[380:]
problem = fs.problems.Logistic([x[h] for h in hospitals], [data.target[h] for h in hospitals], l2=0.02)
optimum = problem.optimum()

# %%
# A trace has the server's model and the control variates after its last round. From these we take the local steps
# of the next round by hand, with the problem's own gradients.

STEPS, STEP_SIZE = 60, 0.3


def next_round(theta, control_variates):
    """Return every local model of both clients in the next round, shape (steps + 1, clients, 2)."""
    models = [np.tile(theta, (2, 1))]
    for _ in range(STEPS):
        gradients = np.stack([problem.client_gradients(model)[c] for c, model in enumerate(models[-1])])
        models.append(models[-1] - STEP_SIZE * (gradients + control_variates))
    return np.array(models)


# %%
# Four rounds of each method, and the distance that is left after 300. Behind them: lines of equal mean loss.

figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.4), sharex=True, sharey=True, layout="constrained")
for axis, make in zip(axes, (fs.FedAvg, fs.Scaffold), strict=True):
    method = make(step_size=STEP_SIZE, local_steps=STEPS)
    theta, variates, server = np.zeros(2), np.zeros((2, 2)), [np.zeros(2)]
    for rounds in range(1, 5):
        models = next_round(theta, variates)
        for client, colour in enumerate(("tab:orange", "tab:blue")):
            label = f"hospital {client + 1}" if rounds == 1 else None
            axis.plot(*models[:, client].T, ".-", ms=3, lw=0.8, color=colour, label=label)
        trace = fs.run(problem, method, rounds=rounds)
        theta = trace.theta[0]
        variates = np.zeros((2, 2)) if trace.control_variates is None else trace.control_variates[0]
        server.append(theta)
    axis.plot(*np.transpose(server), "ko-", ms=5, lw=1.5, label="server")
    axis.plot(*optimum, "*", ms=15, mfc="gold", mec="k", label="common optimum", zorder=5)
    left = np.linalg.norm(fs.run(problem, method, rounds=300).theta[0] - optimum) / np.linalg.norm(optimum)
    axis.set(title=f"{make.__name__}: {left:.0%} off after 300 rounds", xlabel="coefficient of the texture")

grid = np.meshgrid(np.linspace(*axes[0].get_xlim(), 40), np.linspace(*axes[0].get_ylim(), 40))
losses = np.array([problem.loss(np.array(point)) for point in zip(*map(np.ravel, grid), strict=True)])
for axis in axes:
    axis.contour(*grid, losses.reshape(40, 40), levels=20, colors="0.85", linewidths=0.8, zorder=0)
axes[0].set_ylabel("coefficient of the symmetry")
axes[1].legend(fontsize=8)
plt.show()

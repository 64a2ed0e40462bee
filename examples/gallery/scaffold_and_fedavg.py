"""
Scaffold and FedAvg, round by round
===================================

Ten clinics hold breast-cancer records that differ in kind: rows are sorted along their main direction and shared
out in that order. Both methods send one vector up and one down in a round and take the same local steps. FedAvg
stops at a point of its own; Scaffold goes on to the model that pooled records would give.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_breast_cancer

import fedscaffold as fs

frame = load_breast_cancer(as_frame=True).frame
features = frame.columns[:10].tolist()
frame["clinic"] = fs.data.partition.feature_shift(frame[features].to_numpy(), n_clients=10, strength=0.9, seed=0)
problem = fs.data.from_frame(
    frame[[*features, "target", "clinic"]], target="target", client="clinic", kind="logistic", l2=0.05,
    standardize=True, intercept=True,
)  # fmt: skip
print(problem)

# %%
# Three numbers of local steps each, full gradients.

figure, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
for local_steps, style in ((5, ":"), (20, "--"), (80, "-")):
    for method, colour in (
        (fs.FedAvg(step_size=0.1, local_steps=local_steps), "tab:red"),
        (fs.Scaffold(step_size=0.1, local_steps=local_steps), "tab:blue"),
    ):
        trace = fs.run(problem, method, rounds=120)
        axis.semilogy(
            trace.mse[0], style, color=colour, label=f"{type(method).__name__}, {local_steps} local steps"
        )
axis.set_xlabel("round")
axis.set_ylabel("squared distance to the pooled model")
axis.set_ylim(1e-9, None)
axis.legend(fontsize=8)
plt.show()

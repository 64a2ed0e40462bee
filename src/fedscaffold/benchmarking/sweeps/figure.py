"""Plateaus of a sweep against the number of clients, as panels that `reports.plateaus` draws."""

from typing import TYPE_CHECKING, Any

import numpy as np

from fedscaffold.benchmarking.sweeps import saturation
from fedscaffold.core.errors import InvalidInput
from fedscaffold.reports.plateaus import PlateauSeries

if TYPE_CHECKING:
    import pandas as pd

SETTINGS = ["settings", "batch_size"]


def panels(frame: "pd.DataFrame") -> dict[str, dict[str, PlateauSeries]]:
    """One panel per problem, a series for each method, setting and batch size; rows that diverged are left out."""
    kept = frame[frame["outcome"] != "diverged"]
    if kept.empty:
        raise InvalidInput("nothing to draw: every cell diverged; take a smaller step size")
    found = {}
    for problem, rows in kept.groupby("problem", sort=False):
        groups = rows.groupby(SETTINGS, sort=False, dropna=False)
        found[str(problem)] = {label(part.iloc[0]): series(part) for _, part in groups}
    return found


def label(row: Any) -> str:
    """Label of a row's setting: method, γ, H and B."""
    import pandas as pd

    batch = "all" if pd.isna(row["batch_size"]) else row["batch_size"]
    return f"{row['method']} γ={row['step_size']:g} H={row['local_steps']:g} B={batch}"


def series(rows: "pd.DataFrame") -> PlateauSeries:
    """Plateaus of one setting by N, measured and predicted, and where both saturate."""
    names = ["n_clients", "plateau", "standard_error", "predicted", "predicted_variance", "predicted_bias"]
    ordered = rows.sort_values("n_clients")[names]
    clients, plateau, error, predicted, variance, bias = ordered.to_numpy(dtype=np.float64, na_value=np.nan).T
    fit = saturation.fit_saturation(clients, plateau, error)
    measured = None if fit is None else fit.n_clients
    return PlateauSeries(
        clients=clients,
        plateau=plateau,
        error=error,
        predicted=predicted,
        saturation=(measured, saturation.predict_saturation(clients, variance, bias)),
    )

"""Figure 1: the paper's claims about it, on fewer clients unless asked for all."""

import tempfile
from pathlib import Path

from fedscaffold.paper import figure1
from fedscaffold.paper.verify.rows import StatementRow
from fedscaffold.paper.verify.settings import Budget


def rows(budget: Budget) -> list[StatementRow]:
    """One row per claim of Section 6."""
    settings = figure1.Figure1Settings(clients=budget.figure_clients)
    with tempfile.TemporaryDirectory() as scratch:
        curves = figure1.simulate(settings, scratch=Path(scratch))
    clients = ", ".join(f"{n:,}" for n in budget.figure_clients)
    gamma, H, B = figure1.STEP_SIZE, figure1.LOCAL_STEPS, figure1.BATCH_SIZE
    return [
        StatementRow(
            statement="Figure 1",
            claim=claim.claim,
            setting=f"ridge and logistic, γ = {gamma}, H = {H}, B = {B}, N = {clients}",
            relation="is",
            holds=claim.holds,
            finding=claim.measured,
        )
        for claim in figure1.claims(curves)
    ]

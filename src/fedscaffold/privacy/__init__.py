"""Differential privacy: clipping and noise, the (ε, δ) that they give, and budgets.

`RecordLevel` and `ClientLevel` set the noise of a run or a federation; `epsilon` and `noise_for` convert between
noise and (ε, δ).
"""

from fedscaffold.core.privacy import ClientLevel, RecordLevel
from fedscaffold.privacy.accounting import NoisySteps, client_epsilons, composed_epsilon, epsilon, noise_for
from fedscaffold.privacy.budget import BudgetSpent, PrivacyBudget

__all__ = [
    "BudgetSpent", "ClientLevel", "NoisySteps", "PrivacyBudget", "RecordLevel", "client_epsilons",
    "composed_epsilon", "epsilon", "noise_for",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__

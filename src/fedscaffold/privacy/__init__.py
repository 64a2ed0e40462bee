"""Differential privacy: clipping and noise, what they protect, and what is left of a budget.

`RecordLevel` and `ClientLevel` say what a run or a federation does; `epsilon` and `noise_for` say what that
protects.
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

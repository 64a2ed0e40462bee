"""Differential privacy: clipping and noise, what they protect, and what is left of a budget.

`RecordLevel` and `ClientLevel` say what a run or a federation does; `epsilon` and `noise_for` say what that
protects.
"""

from fedscaffold.core.privacy import ClientLevel, RecordLevel
from fedscaffold.privacy.accounting import client_epsilons, epsilon, noise_for
from fedscaffold.privacy.budget import BudgetSpent, PrivacyBudget

__all__ = ["BudgetSpent", "ClientLevel", "PrivacyBudget", "RecordLevel", "client_epsilons", "epsilon", "noise_for"]


def __dir__() -> list[str]:
    return __all__

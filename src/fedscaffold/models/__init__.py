"""From a table with a client column to a model: its problem, a plan, a run, a file."""

from fedscaffold.data.open import open_problem
from fedscaffold.models.fit import Fit, Settings, fit
from fedscaffold.models.model import Model

__all__ = ["Fit", "Model", "Settings", "fit", "open_problem"]

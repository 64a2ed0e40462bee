"""From a table with a client column to a model: its problem, a plan, a run, a file."""

from fedscaffold.models.fit import Fit, Settings, fit
from fedscaffold.models.model import Model
from fedscaffold.models.tables import open_problem

__all__ = ["Fit", "Model", "Settings", "fit", "open_problem"]

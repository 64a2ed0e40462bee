"""What a run leaves."""

from fedscaffold.traces.observers import Loss, Mse, TailAverage
from fedscaffold.traces.stationarity import Plateau
from fedscaffold.traces.trace import Trace

__all__ = ["Loss", "Mse", "Plateau", "TailAverage", "Trace"]

"""What a run leaves."""

from fedscaffold.traces.observers import Loss, Mse, TailAverage
from fedscaffold.traces.trace import Trace

__all__ = ["Loss", "Mse", "TailAverage", "Trace"]

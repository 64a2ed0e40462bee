"""One short file per method, all the same shape (`fedscaffold.core.types.Method`)."""

from fedscaffold.methods.fedavg import FedAvg
from fedscaffold.methods.scaffold import Scaffold

__all__ = ["FedAvg", "Scaffold"]

"""What is minimised: f = Σ_c w_c f_c, one f_c per client."""

from fedscaffold.problems.linear_sa import LinearSA
from fedscaffold.problems.logistic import Logistic
from fedscaffold.problems.paper import paper
from fedscaffold.problems.ridge import Ridge
from fedscaffold.problems.td import GarnetTD

__all__ = ["GarnetTD", "LinearSA", "Logistic", "Ridge", "paper"]

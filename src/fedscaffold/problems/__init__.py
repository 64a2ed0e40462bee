"""What is minimised: f = Σ_c w_c f_c, one f_c per client."""

from fedscaffold.problems.logistic import Logistic
from fedscaffold.problems.multinomial import Multinomial
from fedscaffold.problems.paper import paper
from fedscaffold.problems.ridge import Ridge

__all__ = ["Logistic", "Multinomial", "Ridge", "paper"]

"""Numbers in, numbers out: what the paper and its refinements say about a run before it is run.

The paper is "Scaffold with Stochastic Gradients: New Analysis with Linear Speed-Up", Mangold, Durmus, Dieuleveut,
Moulines, ICML 2025.
"""

from fedscaffold.theory.constants import Constants, constants
from fedscaffold.theory.expansion import Expansion, expansion
from fedscaffold.theory.predict import Prediction, predict, predict_at_scale

__all__ = ["Constants", "Expansion", "Prediction", "constants", "expansion", "predict", "predict_at_scale"]

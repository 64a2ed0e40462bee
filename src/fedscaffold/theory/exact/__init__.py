"""The exact law of linear methods on quadratic losses: mean, covariance, and the error of every round."""

from fedscaffold.theory.exact.law import ExactLaw, error_interval, exact_law, is_exact

__all__ = ["ExactLaw", "error_interval", "exact_law", "is_exact"]

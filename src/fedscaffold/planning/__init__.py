"""Predict what a run will reach and plan how to reach a target: above theory and simulation."""

from fedscaffold.planning.prediction import Prediction, predict

__all__ = ["Prediction", "predict"]

"""Predict what a run will reach and plan how to reach a target: above theory and simulation."""

from fedscaffold.planning.planner import METHODS, plan
from fedscaffold.planning.plans import Plan, Plans
from fedscaffold.planning.prediction import Prediction, predict

__all__ = ["METHODS", "Plan", "Plans", "Prediction", "plan", "predict"]

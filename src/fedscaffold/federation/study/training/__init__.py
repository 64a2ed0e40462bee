"""Training on autopilot: settings come from what sites told and what rounds achieved, none from the optimum."""

from fedscaffold.federation.study.training.training import StudyTraining, TrainingResult

__all__ = ["StudyTraining", "TrainingResult"]

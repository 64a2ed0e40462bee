"""Errors that fedscaffold raises, each with a message that says what to do about it."""


class FedScaffoldError(Exception):
    """Any error that fedscaffold raises on purpose."""


class InvalidInput(FedScaffoldError, ValueError):
    """An argument that cannot be used; raised before any work starts."""


class MissingDependency(FedScaffoldError, ImportError):
    """An optional package is needed and not installed."""


class CheckpointMismatch(FedScaffoldError):
    """The checkpoint belongs to another run, or is not a checkpoint."""


class InUse(FedScaffoldError):
    """A file or folder that another process is using."""


class NotStationary(FedScaffoldError):
    """A run was too short: it has not reached its stationary regime, so its limit cannot be estimated."""


class Diverged(FedScaffoldError, ArithmeticError):
    """A run whose model grew beyond all bounds, or became NaN, and was stopped.

    Attributes
    ----------
    round
        Number of the round in which it was noticed.
    client
        The client whose local model was largest.
    safe_step_size
        A step size with which the method does not diverge; 0 if none is known.
    """

    def __init__(self, message: str, *, round: int, client: int, safe_step_size: float) -> None:
        super().__init__(message)
        self.round = round
        self.client = client
        self.safe_step_size = safe_step_size


class UnreliablePrediction(UserWarning):
    """A prediction that leaves out more than a few percent; see `theory.Prediction.reliability`."""

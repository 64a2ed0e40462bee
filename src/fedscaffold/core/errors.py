"""What can go wrong, each with a message that says what to do about it."""


class FedScaffoldError(Exception):
    """Any error that fedscaffold raises on purpose."""


class InvalidInput(FedScaffoldError, ValueError):
    """Refused before any work started."""


class MissingDependency(FedScaffoldError, ImportError):
    """An optional package is needed and not installed."""


class CheckpointMismatch(FedScaffoldError):
    """The checkpoint belongs to another run, or is not a checkpoint."""


class NotStationary(FedScaffoldError):
    """A run was too short: it still moves, so that nothing can be said about where it ends."""


class Diverged(FedScaffoldError, ArithmeticError):
    """A run left every bound; `safe_step_size` would have kept it."""

    def __init__(self, message: str, *, round: int, client: int, safe_step_size: float) -> None:
        super().__init__(message)
        self.round = round
        self.client = client
        self.safe_step_size = safe_step_size

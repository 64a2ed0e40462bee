"""The part that all adapters share: which tasks a library takes, and what it reports."""

from typing import Any, ClassVar

from fedscaffold.conformance.task import Array, NotSupported, Task


class Adapter:
    """A library's Scaffold on a task; subclasses define what is declared here.

    The class attributes give the reason why a library takes clients of equal weight, or with equally many local
    steps, alone; they are empty if it takes others.
    """

    equal_weights: ClassVar[str] = "its clients have equal weights"
    equal_local_steps: ClassVar[str] = "its clients take the same number of local steps"
    _begin: Any  # (task): build server and clients
    _round: Any  # (cohort), or (cohort, lost) of a library with replies that get lost
    _model: Any  # (): the server's model θ
    _variates: Any  # (client): c and c_i

    def __init__(self, task: Task) -> None:
        for reason, fits in (
            (self.equal_weights, task.has_equal_weights),
            (self.equal_local_steps, task.has_equal_local_steps),
        ):
            if reason and not fits:
                raise NotSupported(reason)
        self.task = task
        self._begin(task)

    def round(self, cohort: tuple[int, ...]) -> None:
        """Run one communication round with these clients."""
        self._round(cohort)

    def model(self) -> Array:
        """Return the server's model θ."""
        return self._model()

    def correction(self, client: int) -> Array:
        """Return the correction c − c_i."""
        server, own = self._variates(client)
        return server - own


class LossyAdapter(Adapter):
    """A library with replies that may get lost."""

    def round(self, cohort: tuple[int, ...]) -> None:
        """Run one communication round with these clients."""
        self._round(cohort, ())

    def round_with_lost_replies(self, cohort: tuple[int, ...], lost: tuple[int, ...]) -> None:
        """Run one round in which the clients of `lost` train, but their replies do not reach the server."""
        self._round(cohort, lost)


class LoopAdapter(LossyAdapter):
    """A library without a training loop, which the adapter writes, so that settings may change too."""

    def reconfigure(self, task: Task) -> None:
        """Take the step size and the local steps of another task."""
        self.task = task

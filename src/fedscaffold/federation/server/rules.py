"""Rules of a round: the least number of updates, the limit of their lengths, and the error for too few."""

from dataclasses import dataclass

from fedscaffold.core.checks import positive, whole_number
from fedscaffold.core.errors import FedScaffoldError, InvalidInput


class TooFewClients(FedScaffoldError):
    """A round could not be closed; the server's files are as after the round before.

    Examples
    --------
    >>> from fedscaffold.core.errors import FedScaffoldError
    >>> from fedscaffold.federation import TooFewClients
    >>> issubclass(TooFewClients, FedScaffoldError)
    True
    """


@dataclass(frozen=True, kw_only=True)
class RoundRules:
    """The conditions for closing a round, and the limit of the lengths of updates.

    Parameters
    ----------
    min_clients
        Number of updates that a round needs. The round waits for them; beyond them it is closed without the
        clients that do not answer. At most the size of the cohort counts, so that a large number means all of
        them.
    attempts
        How often clients that did not answer are asked in a round before the run stops. It can be continued later.
    outlier_factor
        The largest distance ‖sent − θ‖ in multiples of the usual one, a weighted median of the round. A longer
        update counts shortened to that; one of more than 1000 times is rejected. A client is measured by length
        times weight if that allows it more. If the server keeps a backup of client states, their distances from
        the mean of the others' are limited too, since a client could otherwise push θ a little in every round: to
        1.75·outlier_factor times the usual one, times 1 + 2/(n − 1) for n others. None for no limit, for
        federations whose members trust each other.

    Examples
    --------
    >>> from fedscaffold.federation import RoundRules
    >>> RoundRules(min_clients=3)
    RoundRules(min_clients=3, attempts=5, outlier_factor=1.75)
    """

    min_clients: int = 2
    attempts: int = 5
    outlier_factor: float | None = 1.75

    def __post_init__(self) -> None:
        whole_number("min_clients", self.min_clients, least=1)
        whole_number("attempts", self.attempts, least=1)
        if self.outlier_factor is not None and positive("outlier_factor", self.outlier_factor) <= 1.0:
            raise InvalidInput(f"outlier_factor must be more than 1, got {self.outlier_factor!r}")

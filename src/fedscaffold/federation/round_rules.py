"""When the server may close a round, which updates it refuses, and the error when too few are left."""

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
    """When the server may close a round, and which updates it refuses.

    Parameters
    ----------
    min_clients
        Number of updates that a round needs. The round waits for them; beyond them it is closed without the
        clients that do not answer. At most the size of the cohort counts, so that a large number means all of
        them.
    attempts
        How often clients that did not answer are asked in a round before the run stops. It can be continued later.
    outlier_factor
        An update is refused when ‖sent − θ‖ is more than so many times the usual distance. Clients differ by their
        data, but seldom by a factor of 1000; an update that is accepted moves θ by at most the client's weight
        times this factor times the usual distance.

    Examples
    --------
    >>> from fedscaffold.federation import RoundRules
    >>> RoundRules(min_clients=3)
    RoundRules(min_clients=3, attempts=5, outlier_factor=1000.0)
    """

    min_clients: int = 2
    attempts: int = 5
    outlier_factor: float = 1000.0

    def __post_init__(self) -> None:
        whole_number("min_clients", self.min_clients, least=1)
        whole_number("attempts", self.attempts, least=1)
        if positive("outlier_factor", self.outlier_factor) <= 1.0:
            raise InvalidInput(f"outlier_factor must be more than 1, got {self.outlier_factor!r}")

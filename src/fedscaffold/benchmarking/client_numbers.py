"""Checks of numbers of clients that a study is run with."""

from collections.abc import Sequence

from fedscaffold.core.checks import whole_number
from fedscaffold.core.errors import InvalidInput


def check_client_numbers(clients: Sequence[int], *, multiple_of: int = 1, fewest: int = 1) -> None:
    """Refuse numbers of clients that are repeated, too few, or not whole multiples of `multiple_of`.

    Parameters
    ----------
    clients
        Numbers of clients, one for each problem of the study.
    multiple_of
        Clients come in groups of this size, such as the two halves of the paper's data.
    fewest
        How many different numbers the study needs, for example three for a fitted slope.
    """
    for n_clients in clients:
        if whole_number("clients", n_clients, least=multiple_of) % multiple_of:
            wanted = "even" if multiple_of == 2 else f"a multiple of {multiple_of}"
            raise InvalidInput(f"each number of clients must be {wanted}, got {n_clients}")
    if len(set(clients)) < max(fewest, len(clients)):
        many = "" if fewest == 1 else f"{fewest} or more "
        raise InvalidInput(f"clients must be {many}different numbers, got {list(clients)}")

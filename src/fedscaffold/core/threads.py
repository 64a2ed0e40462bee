"""Linear algebra on one thread, where clients are already spread over threads.

Where blocks of clients run on all cores, each with small matrices, a BLAS that starts threads for every product
slows everything down several times: it is kept to one thread there.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from threadpoolctl import threadpool_limits

P = ParamSpec("P")
R = TypeVar("R")


def one_blas_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator that keeps linear algebra to one thread while the function runs."""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with threadpool_limits(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited

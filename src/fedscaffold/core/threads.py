"""Linear algebra on one thread.

If blocks of clients run on all cores, each with small matrices, a BLAS that starts threads for every product slows
everything down several times. And its sums depend in the last bits on the number of threads.
"""

import sys
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

P = ParamSpec("P")
R = TypeVar("R")


def one_blas_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that keeps linear algebra to one thread while the function runs."""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with _libraries("scipy.linalg" in sys.modules).limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited


@cache
def _libraries(with_scipy: bool) -> Any:
    """Return the libraries of NumPy and, once loaded, of SciPy, found once each, since that takes milliseconds."""
    return ThreadpoolController()

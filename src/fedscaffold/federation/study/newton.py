"""Newton's method on sums over sites: a few exchanges of d² numbers, where sites allow Hessians and d is small."""

from collections.abc import Callable, Iterator

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.federation.study.certificate import Certificate

ENOUGH_DECREASE = 0.1  # of what the quadratic model promises
MOST_HALVINGS = 30

Certify = Callable[[Array], Certificate]


def newton_certificates(certify: Certify, theta: Array) -> Iterator[Certificate]:
    """Certificates of models that come closer and closer to the optimum, one exchange with all sites each.

    Each step is halved until the loss decreases as much as a tenth of what the quadratic model promises, so that
    the method converges from any start. The caller stops when a certificate is good enough.
    """
    current = certify(theta)
    while True:
        yield current
        share = 1.0
        for _ in range(MOST_HALVINGS):
            found = certify(current.theta - share * current.step)
            promised = 2.0 * share * current.decrement
            rounding = 1e-13 * abs(current.loss)
            if found.loss <= current.loss - ENOUGH_DECREASE * promised + rounding:
                break
            share *= 0.5
        else:
            raise InvalidInput("Newton's method found no smaller loss; the sites' sums contradict each other")
        current = found

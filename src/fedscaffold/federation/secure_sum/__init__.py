"""Sums of clients' vectors of which the server learns nothing but the sum.

The protocol is that of Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning"
(2017), with signatures: masks between pairs of clients cancel in the sum, each client adds a mask of its own, and
shares of the secrets behind both let the others finish when a client falls silent. Nothing here knows how messages
travel: `SecureSumClient` and `SecureSumServer` take and return plain values, and `secure_sum` runs both in one
process. Ciphers, key exchange and signatures are those of the package cryptography.
"""

from fedscaffold.core.imports import missing_extra

try:
    from fedscaffold.federation.secure_sum.client import SecureSumClient
    from fedscaffold.federation.secure_sum.fixed_point import FixedPoint
    from fedscaffold.federation.secure_sum.in_process import secure_sum
    from fedscaffold.federation.secure_sum.messages import Announcement, SumSettings
    from fedscaffold.federation.secure_sum.server import SecureSumServer, SumFailed, conduct_sum
except ModuleNotFoundError as error:
    if error.name is None or error.name.split(".")[0] != "cryptography":
        raise
    raise missing_extra("secure sums need cryptography", extra="secure") from error

__all__ = [
    "Announcement",
    "FixedPoint",
    "SecureSumClient",
    "SecureSumServer",
    "SumFailed",
    "SumSettings",
    "conduct_sum",
    "secure_sum",
]


def __dir__() -> list[str]:
    return __all__

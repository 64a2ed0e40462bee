"""How the server shortens an update that is too long, computed by server and client alike, to the same bits."""

from fedscaffold.core.types import Array

RESTATED = 0.0  # in place of a scale: another vector counted, and the server tells the client its new state


def shorten(sent: Array, theta: Array, scale: float) -> Array:
    """θ + scale·(sent − θ); the update itself for a scale of 1."""
    return sent if scale == 1.0 else theta + scale * (sent - theta)

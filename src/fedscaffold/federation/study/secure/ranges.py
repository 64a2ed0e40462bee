"""Ranges of fixed point for messages with noise in parts, chosen from what everybody knows."""

import math

from fedscaffold.core.privacy import ClientLevel

FARTHEST = 9.0  # standard deviations: `secret_normals` end at 8.7
FINEST = 2.0**-30  # of a part's standard deviation: last bits of floating-point numbers never leave a site
SUM_BITS = 62


def largest_part(privacy: ClientLevel, n_sites: int) -> float:
    """The largest number that a site may have to add to a mean over sites, noise included."""
    return (privacy.clip + FARTHEST * _deviation(privacy, n_sites)) / n_sites


def range_of(privacy: ClientLevel, n_sites: int) -> float:
    """A range so wide that no site's numbers are beyond it, and that they are rounded to `FINEST` at least."""
    coarse = FINEST * _deviation(privacy, n_sites) / n_sites * 2.0**SUM_BITS / n_sites
    return max(2.0 * largest_part(privacy, n_sites), coarse)


def _deviation(privacy: ClientLevel, n_sites: int) -> float:
    """Standard deviation of a site's part of the noise in the sum over sites."""
    noise = privacy.noise_multiplier * privacy.clip
    return noise / math.sqrt(privacy.honest_clients or n_sites) if privacy.summed else noise

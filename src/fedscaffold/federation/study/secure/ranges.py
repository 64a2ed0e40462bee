"""Ranges of fixed point for messages with noise in parts, chosen from what everybody knows."""

import numpy as np

from fedscaffold.core.privacy import ClientLevel
from fedscaffold.federation.secure_sum.fixed_point import SUM_BITS

FARTHEST = 9.0  # standard deviations: `secret_normals` end at 8.7
FINEST = 2.0**-30  # of a part's standard deviation: last bits of floating-point numbers never leave a site


def largest_part(privacy: ClientLevel, n_sites: int) -> float:
    """The largest number that a site may have to add to a mean over sites, noise included."""
    return (privacy.clip + FARTHEST * _deviation(privacy, n_sites)) / n_sites


def range_of(privacy: ClientLevel, n_sites: int) -> float:
    """A range so wide that no site's numbers are beyond it, and that they are rounded to `FINEST` at least."""
    coarse = FINEST * _deviation(privacy, n_sites) / n_sites * 2.0**SUM_BITS / n_sites
    return max(2.0 * largest_part(privacy, n_sites), coarse)


def _deviation(privacy: ClientLevel, n_sites: int) -> float:
    """Standard deviation of the noise that a site adds to its change."""
    alike = np.full(1, 1.0 / n_sites)
    return float(privacy.noise_scales(alike, 1.0 / n_sites, n_sites)[0])

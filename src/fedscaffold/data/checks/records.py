"""What is refused about the targets, offsets and weights of one client's rows."""

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data.encoding import Encoding
from fedscaffold.problems.record_weights import OFFSET, TARGET, WEIGHT


def check_records(y: Array, encoding: Encoding) -> None:
    """Refuse targets, offsets and weights that the kind of model cannot have; no value of the table is told."""
    family, name = encoding.family, encoding.target
    targets = y if y.ndim == 1 else y[:, TARGET]
    problems = []
    if not np.isfinite(targets).all():
        problems.append(f"the target {name!r} has missing or infinite values; drop those rows first")
    elif family.out_of_range(float(targets.min())) is not None:
        problems.append(f"the target {name!r} must {family.out_of_range(float(targets.min()))} for {family.kind}")
    elif family.whole and (targets != np.floor(targets)).any():
        problems.append(f"the target {name!r} must hold whole numbers for {family.kind}")
    if y.ndim > 1 and not np.isfinite(y[:, OFFSET]).all():
        what = "positive numbers" if encoding.exposure is not None else "finite numbers"
        problems.append(f"column {encoding.exposure or encoding.offset!r} must hold {what}")
    if y.ndim > 1 and not (np.isfinite(y[:, WEIGHT]) & (y[:, WEIGHT] > 0.0)).all():
        problems.append(f"column {encoding.weight!r} must hold positive weights")
    if problems:
        raise InvalidInput("; ".join(problems))

"""What a check of `conformance.check` finds."""

from collections.abc import Callable
from dataclasses import dataclass

from fedscaffold.conformance.recording import Bench

LOCAL_STEP = "θ ← θ − γ(g + ξ_c), with ξ_c = c − c_i where there is a server variate"


@dataclass(frozen=True)
class Finding:
    """The worst value that a check measured over its tasks, whether it is acceptable, and a likely cause."""

    measured: float
    expected: str
    ok: bool
    hint: str


Check = Callable[[Bench, float], Finding]

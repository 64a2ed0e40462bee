"""The memory that this process may use."""

import os
from collections.abc import Sequence
from pathlib import Path

from fedscaffold.core.errors import InvalidInput

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of a container
LARGEST = 2**62  # bytes; no machine has more


def memory_limit(container_limits: Sequence[str] = LIMITS) -> int | None:
    """Return the bytes of memory that machine, container and process limit allow; None if no limit is known.

    The container's limit is the number in any of these files.
    """
    found = [limit for limit in (_machine(), _process(), *map(_container, container_limits)) if limit is not None]
    return min(found, default=None)


def check_memory(what: str, nbytes: int) -> None:
    """Raise if memory cannot hold a size, before allocating it; `what` needs it: "1,000 clients"."""
    if nbytes < 1 << 26:  # 64 MiB are always there
        return
    limit = memory_limit()
    if nbytes > (LARGEST if limit is None else limit):
        have = "" if limit is None else f", and there are {limit / 2**30:,.1f} GiB"
        size = f"{nbytes / 2**30:,.1f}" if nbytes < LARGEST else "far too many"
        raise InvalidInput(f"{what} would take {size} GiB of memory{have}")


def _machine() -> int | None:
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" not in names or "SC_PAGE_SIZE" not in names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _process() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    given = [resource.getrlimit(which)[0] for which in (resource.RLIMIT_DATA, resource.RLIMIT_AS)]
    return min((limit for limit in given if limit != resource.RLIM_INFINITY), default=None)


def _container(path: str) -> int | None:
    try:
        text = Path(path).read_text().strip()
    except OSError:  # another system, or no container
        return None
    return int(text) if text.isdigit() else None

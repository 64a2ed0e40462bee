"""How much memory this process may use."""

import os
from collections.abc import Sequence
from pathlib import Path

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of a container


def memory_limit(container_limits: Sequence[str] = LIMITS) -> int | None:
    """Bytes of memory that the machine, its container and the process's own limit allow; None if none is known.

    The container's limit is the number in any of these files.
    """
    found = [limit for limit in (_machine(), _process(), *map(_container, container_limits)) if limit is not None]
    return min(found, default=None)


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

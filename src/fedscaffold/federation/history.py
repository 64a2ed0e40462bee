"""A run's identity and its history, so that two runs, or two histories of one run, are never mixed up.

A run gets a random identity before its first round. Its history is a chain of SHA-256 digests: the first covers
the identity, the configuration and the initial model, every further one the digest before it and the server state
that a round ended with. Requests, replies, client states, checkpoints and backups carry both. A server or a client
that was set back to an earlier copy of its files, and went on differently, has another digest for the same round.
"""

import hashlib
import secrets
from collections.abc import Sequence

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.federation.run_config import RunConfig

RUN_PATTERN, HISTORY_PATTERN = "[0-9a-f]{32}", "[0-9a-f]{64}"


def new_run_id() -> str:
    """Return a random identity, 128 bits in hexadecimal."""
    return secrets.token_hex(16)


def initial_history(run: str, config: RunConfig, theta: Array) -> str:
    """Return the digest before the first round."""
    return _digest("run", run, config.digest, [theta])


def extend_history(history: str, round: int, server: Sequence[Array]) -> str:
    """Return the digest after a round, from the one before it and the server state that the round ended with."""
    return _digest("round", history, str(round), server)


def reset_history(history: str, resets: int) -> str:
    """Return the digest after all client states were reset for the `resets`-th time."""
    return _digest("reset", history, str(resets), [])


def _digest(event: str, before: str, text: str, arrays: Sequence[Array]) -> str:
    found = hashlib.sha256(f"{event}\n{before}\n{len(text)}\n{text}\n".encode())
    for array in arrays:
        found.update(np.ascontiguousarray(array, dtype="<f8").data)
    return found.hexdigest()

"""Masks: words that look uniform to whoever lacks the key, by AES-256 in counter mode."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from fedscaffold.federation.secure_sum.fixed_point import Words

WORDS_AT_ONCE = 16_384  # 128 kilobytes, which stay in cache
Mask = tuple[bytes, int]  # a key that is used for one sum only, and +1 or −1


def total_mask(length: int, masks: Sequence[Mask]) -> Words:
    """Σ sign · (words of the key) modulo 2⁶⁴, (length,); on all cores."""
    cores = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, max(1, len(masks)))
    with ThreadPoolExecutor(cores) as pool:
        parts = list(pool.map(lambda k: _sum(length, masks[k::cores]), range(cores)))
    return np.sum(parts, axis=0, dtype=np.uint64)


def _sum(length: int, masks: Sequence[Mask]) -> Words:
    total = np.zeros(length, np.uint64)
    streams = [(Cipher(AES256(key), CTR(bytes(16))).encryptor(), sign) for key, sign in masks]
    zeros, buffer = bytes(8 * WORDS_AT_ONCE), bytearray(8 * WORDS_AT_ONCE + 15)
    for begin in range(0, length, WORDS_AT_ONCE):
        part = total[begin : begin + WORDS_AT_ONCE]
        for stream, sign in streams:
            stream.update_into(memoryview(zeros)[: 8 * part.size], buffer)
            words = np.frombuffer(buffer, dtype="<u8", count=part.size)
            if sign > 0:
                part += words
            else:
                part -= words
    return total

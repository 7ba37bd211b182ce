"""Random numbers by index: any number of a stream, without drawing the numbers before it."""

import hashlib

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def stream_key(*parts: object) -> np.uint64:
    """The key of a stream, a hash of the parts of its name."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def scramble(x: np.ndarray) -> np.ndarray:
    """Spread every bit of uint64 values over all bits: the finaliser of splitmix64."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def numbers_at(key: np.uint64, rows: np.ndarray, num: int) -> np.ndarray:
    """`num` uint64 for each row number: [rows, num]."""
    starts = scramble(rows.astype(np.uint64) ^ key)
    return scramble(starts[:, None] + np.arange(num, dtype=np.uint64)[None, :] * _GOLDEN)

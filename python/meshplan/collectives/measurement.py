"""One measured collective, and what the definitions of nccl-tests say of it."""

from __future__ import annotations

from dataclasses import dataclass

OPERATIONS = {
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "alltoallv": "all_to_all",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "send_recv",
    "send_recv": "send_recv",
}
"""Spelling in logs and tables → our name."""

MOST_RANKS = 1 << 20
"""Ranks above which a number of ranks makes no sense."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One size of one run.

    ``time_s`` is the out-of-place time where the log has one, else the in-place time. Algorithm
    bandwidth (bytes / time) and bus bandwidth (that times a factor of the operation and the ranks)
    are different quantities and are never mixed.
    """

    operation: str
    """One of the values of `OPERATIONS`."""
    size_bytes: float
    """Bytes as nccl-tests counts them."""
    time_s: float
    """Time of one collective."""
    bus_bytes_per_s: float
    """Bus bandwidth."""
    ranks: int
    """Ranks, as the log lists them or as its two bandwidths imply; 0: unknown."""
    nodes: int
    """Hosts; 0: unknown."""
    gpu: str
    """Device name of the log, or empty."""
    where: str
    """File and line."""


def factor(operation: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, by the definition of nccl-tests.

    >>> factor("all_reduce", 8), factor("all_gather", 8), factor("broadcast", 8)
    (1.75, 0.875, 1.0)
    """
    if operation == "all_reduce":
        return 2.0 * (ranks - 1) / ranks
    if operation in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0


def ranks_of(operation: str, bus: float, algorithm: float) -> int:
    """Number of ranks that the two bandwidths of one line imply; 0 where they cannot tell.

    Both are printed with two decimals, so only large bandwidths tell; beyond some ranks the factor
    no longer changes in print, and powers of two are preferred.

    >>> ranks_of("all_reduce", 466.33, 266.48), ranks_of("all_gather", 188.54, 201.11)
    (8, 16)
    >>> ranks_of("broadcast", 10.0, 10.0), ranks_of("all_reduce", 0.03, 0.02)
    (0, 0)
    """
    if algorithm < 1.0 or (factor(operation, 2) == 1.0 and operation != "all_reduce"):
        return 0
    spread = 0.006 * (1.0 / algorithm + bus / algorithm**2)
    ratio = bus / algorithm
    likely = [n for n in range(2, 2049) if abs(factor(operation, n) - ratio) <= spread]
    if not likely:
        return 0
    powers = [n for n in likely if n & (n - 1) == 0]
    eights = [n for n in likely if n % 8 == 0]
    return next((group[0] for group in (powers, eights, likely) if group), 0)

"""Fit fabrics to measured collectives.

The table has one measurement a row: ``op, ranks, domains, bytes, time_s`` with ``op`` one of
`OPERATIONS` and ``bytes`` as nccl-tests counts them. `meshplan.collectives.logs` makes such rows
from the output of nccl-tests and RCCL-tests. The equations are those of the core
(``rust/planner-core/src/collectives/time.rs``); a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshplan.calibrate.robust import Fit, Parameter, fit

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "send_recv",
)
"""Names of the operations."""

OVERLAP = 8.0
PEERS_AT_ONCE = 8.0

INSIDE = (
    Parameter("base_s", 5e-6, 1e-6, 1e-4),
    Parameter("ring_hop_s", 1e-6, 1e-7, 2e-5),
    Parameter("ramp_s", 3e-6, 1e-8, 1e-4),
    Parameter("all_reduce_efficiency", 0.75, 0.01, 1.2),
    Parameter("gather_efficiency", 0.75, 0.01, 1.2),
    Parameter("all_to_all_efficiency", 0.75, 0.005, 1.2),
    Parameter("all_reduce_copy_ratio", 0.1, 1e-3, 2.0),
    Parameter("gather_copy_ratio", 0.4, 1e-3, 2.0),
    Parameter("all_to_all_copy_ratio", 0.2, 1e-3, 2.0),
)
SWITCH = (
    Parameter("in_switch_efficiency", 0.55, 0.1, 1.0),
    Parameter("in_switch_s", 2e-5, 1e-6, 2e-4),
)
CONTENTION = (Parameter("contention", 1.0, 1e-2, 4.0),)
OUTSIDE = (
    Parameter("base_s", 2e-5, 1e-7, 2e-3),
    Parameter("ramp_s", 2e-5, 1e-7, 1e-2),
    Parameter("all_reduce_efficiency", 0.9, 0.02, 1.0),
    Parameter("gather_efficiency", 0.9, 0.02, 1.0),
    Parameter("all_to_all_efficiency", 0.9, 0.02, 1.0),
)
HOPS = {"ring_hop_s": 4e-6, "tree_hop_s": 8e-6}
"""Hops between domains: a log over one number of nodes cannot tell them from the fixed time."""


@dataclass(frozen=True)
class Rows:
    """Columns of a table of collectives."""

    op: npt.NDArray[np.int64]
    """Index into `OPERATIONS`."""
    ranks: Array
    domains: Array
    size: Array
    """Bytes."""

    def rows(self, mask: Any) -> Rows:
        """The rows of a mask."""
        return Rows(self.op[mask], self.ranks[mask], self.domains[mask], self.size[mask])


@dataclass(frozen=True)
class Wires:
    """Datasheet bandwidths that efficiencies are relative to."""

    inside: float
    """Scale-up links of one GPU, bytes/s each way."""
    nic: float
    """A GPU's share of the NICs, bytes/s each way."""
    switch: bool
    """The scale-up switch can reduce."""


def _class(op: npt.NDArray[np.int64], fabric: dict[str, float], what: str) -> Array:
    """Efficiency or own-share ratio of each row's operation."""
    import numpy as np

    point = fabric["p2p_efficiency"] if what == "efficiency" else 0.0
    names = ("all_reduce", "gather", "gather", "all_to_all")
    table = [fabric[f"{name}_{what}"] for name in names] + [point] * 3
    values: Array = np.array(table)[op]
    return values


def _pipelined(ramp: float, stream: Array) -> Array:
    import numpy as np

    out: Array = (np.sqrt(ramp) + np.sqrt(stream)) ** 2
    return out


def stream_inside(op: Any, size: Array, n: Array, fabric: dict[str, float], peak: float) -> Array:
    """Streaming time of an operation over n ranks of a domain, s."""
    import numpy as np

    share = (n - 1.0 + _class(op, fabric, "copy_ratio")) / n
    volume = np.select([op == 0, op <= 3], [2.0 * share * size, share * size], size)
    bandwidth = peak * (2.0 / n) ** fabric["contention"]
    out: Array = volume / (_class(op, fabric, "efficiency") * bandwidth)
    return out


def _switch(size: Array, n: Array, fabric: dict[str, float], wires: Wires) -> Array:
    import numpy as np

    if not wires.switch or fabric["in_switch_efficiency"] <= 0.0:
        return np.full(len(size), np.inf)
    out: Array = np.where(n < 3.0, np.inf, size / (fabric["in_switch_efficiency"] * wires.inside))
    return out


def predict_inside(fabric: dict[str, float], rows: Rows, wires: Wires) -> Array:
    """Time of collectives inside one domain, s."""
    import numpy as np

    n = rows.ranks
    hops = np.select([rows.op == 0, rows.op == 3], [2.0 * (n - 1.0), np.ones(len(n))], n - 1.0)
    ring = hops * fabric["ring_hop_s"]
    ring = ring + _pipelined(
        fabric["ramp_s"], stream_inside(rows.op, rows.size, n, fabric, wires.inside)
    )
    switched = _switch(rows.size, n, fabric, wires)
    switch = fabric["in_switch_s"] + _pipelined(fabric["ramp_s"], switched)
    best = np.where(rows.op == 0, np.minimum(ring, switch), ring)
    out: Array = fabric["base_s"] + best
    return out


def predict_across(
    inside: dict[str, float], outside: dict[str, float], rows: Rows, wires: Wires
) -> Array:
    """Time of collectives across domains on a non-blocking network, s."""
    import numpy as np

    op, n, domains, size = rows.op, rows.ranks, rows.domains, rows.size
    local = n / domains
    remote = (n - 1.0) / n
    nic = wires.nic * _class(op, outside, "efficiency")
    w_in = np.where(
        local > 1.0,
        stream_inside(op, size, np.maximum(local, 1.0 + 1e-9), inside, wires.inside),
        0.0,
    )
    depth = np.ceil(np.log2(domains))
    in_hops = np.maximum(local - 1.0, 0.0) * inside["ring_hop_s"]
    ring_hops = (domains - 1.0) * outside["ring_hop_s"] + (n - domains) * inside["ring_hop_s"]
    tree_hops = depth * outside["tree_hop_s"]

    def join(own: Array, wire: Array) -> Array:
        w = (own**OVERLAP + wire**OVERLAP) ** (1.0 / OVERLAP)
        return inside["base_s"] + outside["base_s"] + _pipelined(outside["ramp_s"], w)

    per_gpu = size / (local * nic)
    reduce_in = np.minimum(w_in, _switch(size, local, inside, wires))
    ring = join(reduce_in, 2.0 * remote * per_gpu) + 2.0 * ring_hops
    tree_volume = np.where(domains == 2.0, 1.0, 2.0)
    tree = join(reduce_in, tree_volume * per_gpu) + 2.0 * (tree_hops + in_hops)
    latency = np.where(local > 1.0, ring_hops, np.minimum(ring_hops, tree_hops))
    gather = join(w_in, remote * per_gpu) + latency
    rounds = np.ceil((n - local) / PEERS_AT_ONCE)
    every = join(w_in * local / n, (1.0 - 1.0 / domains) * size / nic)
    every = every + rounds * outside["ring_hop_s"]
    rooted = join(w_in, per_gpu) + tree_hops + in_hops
    point = join(np.zeros(len(n)), size / nic) + outside["ring_hop_s"]
    out: Array = np.select(
        [op == 0, op <= 2, op == 3, op <= 5],
        [np.minimum(ring, tree), gather, every, rooted],
        point,
    )
    return out


def complete(values: dict[str, float]) -> dict[str, float]:
    """A fabric with every field of the core: what a fit left free, what it implies, what is off."""
    fabric = {
        "tree_hop_s": values.get("ring_hop_s", 0.0),
        "p2p_efficiency": values.get("gather_efficiency", 0.0),
        "all_reduce_copy_ratio": 0.0,
        "gather_copy_ratio": 0.0,
        "all_to_all_copy_ratio": 0.0,
        "in_switch_efficiency": 0.0,
        "in_switch_s": 0.0,
        "contention": 0.0,
    } | values
    fabric.setdefault("ring_hop_s", fabric["tree_hop_s"])
    return fabric


def fit_inside(rows: Rows, measured: Array, wires: Wires, *, shared_bus: bool = False) -> Fit:
    """Fit the fabric of one domain.

    Parameters
    ----------
    rows, measured
        Collectives over 2 … domain ranks, and their times in seconds.
    wires
        Datasheet bandwidths.
    shared_bus
        Ranks share a bus (PCIe): bandwidth falls with their number.
    """
    free = [*INSIDE, *(SWITCH if wires.switch else ()), *(CONTENTION if shared_bus else ())]
    names = [p.name for p in free]

    def model(values: Array, mask: Any) -> Array:
        fabric = complete(dict(zip(names, map(float, values), strict=True)))
        return predict_inside(fabric, rows.rows(mask), wires)

    return fit(model, free, measured, scale=0.1)


def fit_across(rows: Rows, measured: Array, wires: Wires, inside: dict[str, float]) -> Fit:
    """Fit the fabric between domains, with the one inside them given.

    Efficiencies of operations that the rows lack take the value of one that they have; hops are
    those of `HOPS`. The shipped fabrics used rows from 256 KiB up.
    """
    import numpy as np

    classes = {
        "all_reduce_efficiency": [0],
        "gather_efficiency": [1, 2],
        "all_to_all_efficiency": [3],
    }
    has = {name for name, ops in classes.items() if np.isin(rows.op, ops).any()}
    free = [p for p in OUTSIDE if p.name not in classes or p.name in has]
    names = [p.name for p in free]
    fallback = next((name for name in classes if name in has), "all_reduce_efficiency")

    def model(values: Array, mask: Any) -> Array:
        found = dict(zip(names, map(float, values), strict=True))
        fabric = complete(HOPS | dict.fromkeys(classes, found[fallback]) | found)
        return predict_across(inside, fabric, rows.rows(mask), wires)

    return fit(model, free, measured, scale=0.1)

"""Training jobs to export: grids, shardings, recomputation and schedules."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from export_jobs import cluster, job, model, moe_model, training
from meshplan.export import Job, NotExpressible, export

if TYPE_CHECKING:
    from collections.abc import Iterator

WORK = [
    {},
    {"compute_dtype": "fp8", "grad_dtype": "bf16", "overlap": {"tp": True, "ep": True}},
    {"compute_dtype": "fp8_block", "pipeline_outermost": False, "cp_comm": "all_gather"},
    {"compute_dtype": "nvfp4", "attention_kernel": "flash2", "overlap": {"dp": False}},
    {"compute_dtype": "fp16", "grad_dtype": "fp16", "attention_kernel": "unfused",
     "cp_comm": "all_to_all"},
]  # fmt: skip
SHARDINGS = ["none", "zero1", "zero2", "zero3", "hsdp"]


def jobs(*, ulysses: bool = False) -> Iterator[Job]:
    """Grids, shardings, recomputation and schedules, under changing workloads."""
    works = itertools.cycle(WORK)
    devices = itertools.cycle(("hopper", "blackwell", "ampere"))
    grids = itertools.product((1, 8), (1, 4), (1, 2), (1, 5), (False, True))
    for tp, pp, cp, vpp, moe in grids:
        for sharding, recompute in itertools.product(
            SHARDINGS, ("none", "selective", "full", "block")
        ):
            if vpp > 1 and pp == 1:
                continue
            group = {"none": 1, "hsdp": 16 * cp // 2}.get(sharding, 16 * cp)
            work = dict(next(works)) | ({"cp_comm": "all_to_all"} if ulysses else {})
            yield job(
                of=moe_model() if moe else model(), work=training(**work),
                on=cluster(next(devices)), tp=tp, pp=pp, cp=cp, dp=16, vpp=vpp,
                ep=8 if moe else 1, sharding=sharding, shard_group=group, recompute=recompute,
                recompute_layers=vpp if recompute == "block" else 0,
                schedule="interleaved" if vpp > 1 else "1f1b",
                sequence_parallel=tp > 1 and not ulysses,
            )  # fmt: skip


def written(target: str, **asked: bool) -> list[tuple[Job, dict[str, str]]]:
    found = []
    for of in jobs(**asked):
        try:
            found.append((of, dict(export(of, target).files)))
        except NotExpressible:
            continue
    assert len(found) > 15
    return found

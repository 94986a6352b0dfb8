"""A Slurm batch script around a command that runs once per node."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshplan.export.job import Job

TORCHRUN = (
    'srun torchrun --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node {gpus} '
    '--rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$HEAD:29500"'
)


def batch_script(job: Job, command: str, environment: Mapping[str, str | None]) -> str:
    """Write a batch script; ``{torchrun}`` in the command stands for the launcher."""
    directives = "\n".join(f"#SBATCH {line}" for line in header(job))
    exports = "\n".join(
        f"unset {name}" if value is None else f"export {name}={value}"
        for name, value in environment.items()
    )
    head = 'HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    launcher = TORCHRUN.replace("{gpus}", str(job.gpus_per_node))
    parts = [
        f"#!/usr/bin/env bash\n{directives}\nset -euo pipefail",
        exports,
        head,
        command.replace("{torchrun}", launcher),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def header(job: Job) -> list[str]:
    """Options of ``sbatch`` that the layout needs.

    Where an NVLink domain spans nodes, ``--segment`` asks for whole domains; it needs Slurm's
    block topology and excludes ``--nodelist``.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", job.name).strip("-")[:64] or "job"
    lines = [
        f"--job-name={name}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        f"--gpus-per-node={job.gpus_per_node}",
        "--exclusive",
    ]
    domain_nodes = int(job.cluster["scale_up"]["domain_gpus"]) // int(job.cluster["gpus_per_node"])
    if domain_nodes > 1 and job.nodes % domain_nodes == 0:
        lines.append(f"--segment={domain_nodes}")
    return lines

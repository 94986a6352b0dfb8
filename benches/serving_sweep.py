"""Time of serving sweeps: python benches/serving_sweep.py [THREADS].

DeepSeek-V3 on 1,024 H200 under SGLang, aggregated and disaggregated, and what users ask more often.
Wall time and CPU time of the core, the better of two runs.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from meshplan.serving.api import sweep

DEEPSEEK: dict[str, Any] = {"model": "deepseek-v3", "cluster": "h200", "isl": 4096, "osl": 1024}
JOBS: dict[str, dict[str, Any]] = {
    "1,024 H200, SGLang, agg + disagg": {**DEEPSEEK, "gpus": 1024, "backend": "sglang"},
    "the same, TTFT 2 s, TPOT 50 ms": {
        **DEEPSEEK, "gpus": 1024, "backend": "sglang", "ttft": 2, "tpot": 0.05,
    },
    "64 H200, all backends, TTFT 2 s, TPOT 50 ms": {
        **DEEPSEEK, "gpus": 64, "ttft": 2, "tpot": 0.05,
    },
    "1,024 H200, SGLang, 200 requests/s": {
        **DEEPSEEK, "gpus": 1024, "backend": "sglang", "rate": 200, "objective": "gpus",
    },
}  # fmt: skip


def main() -> None:
    """Print a line a job."""
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    for name, job in JOBS.items():
        runs = []
        for _ in range(2):
            cpu = time.process_time()
            result = sweep(**job, threads=threads)
            runs.append((result.elapsed_s, time.process_time() - cpu, result))
        wall, used, result = min(runs, key=lambda run: run[0])
        proof = result.proof
        print(
            f"{name}: {wall:.2f} s ({used:.2f} s of CPU), {proof.total:.3g} deployments, "
            f"{proof.evaluated:,} estimated, {result.replayed:,} replayed"
        )


if __name__ == "__main__":
    main()

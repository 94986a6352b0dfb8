"""Collective times over the devices of this host (NCCL) or processes of it (gloo)."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

from meshplan.collectives.measurement import factor

if TYPE_CHECKING:
    from collections.abc import Callable

Row = dict[str, Any]

SIZES = {"nccl": tuple(1 << p for p in range(12, 31, 2)), "gloo": (1 << 12, 1 << 16, 1 << 20)}
"""Bytes as nccl-tests counts them."""

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def collectives(backend: str, ranks: int, each_s: float) -> list[Row]:
    """Rows ``op,size_bytes,gpus,nodes,gpu,busbw,algbw`` (GB/s), as tables of bus bandwidth have.

    Parameters
    ----------
    backend
        ``nccl``: one rank a GPU; ``gloo``: one rank a process.
    ranks
        Ranks.
    each_s
        Budget of one size of one operation, s.
    """
    import torch.multiprocessing as multiprocessing

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    workers = [
        context.Process(target=_worker, args=(rank, ranks, port, backend, each_s, queue))
        for rank in range(ranks)
    ]
    for worker in workers:
        worker.start()
    rows: list[Row] = queue.get()
    for worker in workers:
        worker.join()
    return rows


def _worker(rank: int, ranks: int, port: int, backend: str, each_s: float, queue: Any) -> None:
    import torch
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, rank=rank, world_size=ranks)
    name = torch.cuda.get_device_name(device) if backend == "nccl" else "cpu"
    rows: list[Row] = []
    for operation in OPERATIONS:
        if backend == "gloo" and operation in ("reduce_scatter", "all_to_all"):
            continue  # gloo has neither on every version
        for size in SIZES[backend]:
            work = _work(operation, size, ranks, device)
            time = _time(work, each_s, device)
            algorithm = size / time * 1e-9
            rows.append(
                {
                    "op": operation,
                    "size_bytes": size,
                    "gpus": ranks,
                    "nodes": 1,
                    "gpu": name,
                    "busbw": algorithm * factor(operation, ranks),
                    "algbw": algorithm,
                }
            )
    if rank == 0:
        queue.put(rows)
    dist.destroy_process_group()


def _work(operation: str, size: int, ranks: int, device: Any) -> Callable[[], Any]:
    import torch
    import torch.distributed as dist

    whole = torch.ones(size // 4, device=device)
    part = torch.ones(size // 4 // ranks, device=device)
    whole = whole[: part.numel() * ranks]
    if operation == "all_reduce":
        return lambda: dist.all_reduce(whole)
    if operation == "all_gather":
        parts = list(whole.chunk(ranks))
        return lambda: dist.all_gather(parts, part)
    if operation == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, whole)
    out = torch.empty_like(whole)
    return lambda: dist.all_to_all_single(out, whole)


def _time(work: Callable[[], Any], each_s: float, device: Any) -> float:
    """Time of one collective, s: every rank runs the same number, agreed on beforehand."""
    import time

    import torch
    import torch.distributed as dist

    def run(count: int) -> float:
        dist.barrier()
        start = time.perf_counter()
        for _ in range(count):
            work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / count

    run(3)
    guess = torch.tensor([run(5)], device=device)
    dist.all_reduce(guess, op=dist.ReduceOp.MAX)
    return run(int(min(200, max(5, each_s / float(guess)))))

"""The terms of a row: what each is, by which formula, and where its equation is told in full."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """A term of the step time or of the memory."""

    name: str
    formula: str
    source: str
    anchor: str


STEP = (
    Term("gemm_s", "m · Σ GEMMs, forward + 2 backward: the device's curve · gemm_ratio",
         "fitted to kernel tables and runs", "time-of-a-pass-over-a-layer"),
    Term("attention_s", "m · Σ 3.5 · 2·T·K·(h/t)·(d_k + d_v) / (efficiency · 16-bit peak)",
         "Dao 2023; fitted efficiency", "work-of-a-layer"),
    Term("memory_bound_s", "m · Σ passes · 2·rows·width · memory_bound_ratio / HBM bandwidth",
         "Korthikanti 2022; fitted ratio", "work-of-a-layer"),
    Term("recompute_s", "m · forward time of what is recomputed, its communication included",
         "Korthikanti 2022", "time-of-a-pass-over-a-layer"),
    Term("launch_s", "m · ((gpu^n + cpu^n)^(1/n) − gpu), cpu = kernels · launch time",
         "fitted", "time-of-a-pass-over-a-layer"),
    Term("tp_comm_s", "m · Σ (2(t−1)/t · 2·T·H / bus bandwidth + latency·√(t/4)) · exposed",
         "Shoeybi 2019; Korthikanti 2022", "time-of-a-pass-over-a-layer"),
    Term("cp_comm_s", "m · Σ 3 · ((c−1) steps of 2·T·(KV width)), less what the core hides",
         "Liu 2023", "time-of-a-pass-over-a-layer"),
    Term("ep_comm_s", "m · Σ (dispatch + combine): the slower of domain links and NIC · exposed",
         "DeepSeek-V3 report 2024", "time-of-a-pass-over-a-layer"),
    Term("imbalance_s", "m · Σ (fullest expert rank − balanced): rows, passes, permutation",
         "routing model or stated ratio", "time-of-a-pass-over-a-layer"),
    Term("micro_batch_overhead_s", "m · micro_batch_s",
         "fitted", "stages-and-schedule"),
    Term("pp_comm_s", "2(m·v + p − 1) · (latency + 2·T̂·H / bandwidth · exposed)",
         "Narayanan 2021", "stages-and-schedule"),
    Term("bubble_s", "β · (Σ stages − slowest)/v; ZB-H1 less 2·Σ W; DualPipe (p/2 − 1)(τ + B − 3W)",
         "Narayanan 2021; Qi 2024", "stages-and-schedule"),
    Term("dp_comm_s", "reduction and gathering, less what forward and backward hide",
         "Rajbhandari 2020; Zhao 2023", "data-parallelism"),
    Term("optimizer_s", "optimizer_ratio · (30·P/shard + 6·P) / HBM bandwidth",
         "bytes counted; fitted ratio", "data-parallelism"),
    Term("step_overhead_s", "step_s",
         "fitted", "data-parallelism"),
    Term("straggler_s", "barriers · (σ·√(2 ln N) + (1 − (1 − q)^N) · D)",
         "order statistics", "data-parallelism"),
)  # fmt: skip
"""Terms that add up to ``step_time_s``, with the anchors of their equations in `PAGE`."""

MEMORY = (
    Term("weights_bytes", "2·P; under ZeRO-3 2·P/shard and two gathered layers",
         "Rajbhandari 2020", "memory"),
    Term("gradients_bytes", "g·P; sharded from ZeRO-2",
         "Rajbhandari 2020", "memory"),
    Term("optimizer_bytes", "o·P/shard, o = 12 for Adam with an fp32 master copy",
         "Rajbhandari 2020", "memory"),
    Term("activations_bytes", "saved bytes of a micro-batch · micro-batches in flight",
         "Korthikanti 2022", "memory"),
    Term("logits_bytes", "T·V/t · logits_bytes_per_entry on the last stage",
         "fitted", "memory"),
    Term("buffers_bytes", "buffers of the framework and two pipeline messages",
         "fitted", "memory"),
    Term("fragmentation_bytes", "fragmentation_ratio · allocated, as far as there is room",
         "fitted", "memory"),
    Term("context_bytes", "CUDA, NCCL and libraries",
         "fitted", "memory"),
)  # fmt: skip
"""Terms that add up to ``peak_memory_bytes``."""

PAGE = "docs/training-model.md"
"""The page that has every equation and its symbols."""

STATUS = {
    "topology": "degrees do not multiply to the number of GPUs",
    "heads": "heads do not divide",
    "width": "feed-forward widths do not divide",
    "layers": "layers do not spread over the stages",
    "experts": "experts do not divide, or their grid does not fit the world",
    "sequence": "the sequence does not divide over cp and tp",
    "batch": "the batch does not divide over dp and micro-batches",
    "schedule": "the schedule does not allow these stages, chunks or micro-batches",
    "sharding": "the sharding does not go with the rest",
    "recompute": "the recomputation does not go with the rest",
    "framework": "a rule of the framework forbids it",
    "memory": "peak memory exceeds the device",
}
"""What each status of a layout means."""

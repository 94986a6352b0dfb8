"""The terms of a row: what each is, by which formula, and which page tells more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """A term of the step time or of the memory."""

    name: str
    formula: str
    source: str
    page: str


STEP = (
    Term("gemm_s", "m · Σ layers, GEMMs: max over tiles and memory of FLOPs/rate, fwd + bwd",
         "fitted GEMM curve", "kernels.md"),
    Term("attention_s", "m · 4·b·s²·heads·d/2 · 3.5 / (efficiency · peak) per layer",
         "Dao 2023; fitted efficiency", "kernels.md"),
    Term("memory_bound_s", "m · bytes of norms, activations, residuals, loss / HBM bandwidth",
         "fitted pass ratio", "kernels.md"),
    Term("recompute_s", "m · forward time of what is recomputed",
         "Korthikanti 2022", "memory.md"),
    Term("launch_s", "(gpu^n + cpu^n)^(1/n) − gpu, cpu = kernels · launch time",
         "fitted launch time", "kernels.md"),
    Term("tp_comm_s", "m · layers · (2(t−1)/t · b·s·H·2 B / bus bandwidth + latency) · exposed",
         "Shoeybi 2019; Korthikanti 2022", "collectives.md"),
    Term("cp_comm_s", "m · (K and V bytes over the ring − attention that hides them)",
         "Liu 2023, ring attention", "collectives.md"),
    Term("ep_comm_s", "m · 2 · dispatch: T·k·H·b (1 − 1/EP) over links, once per domain over NICs",
         "DeepSeek-V3 report 2024", "collectives.md"),
    Term("micro_batch_overhead_s", "m · fixed time per micro-batch",
         "fitted", "pipeline.md"),
    Term("pp_comm_s", "2(m·v + p − 1) · (latency + b·s·H·2 B / bandwidth · exposed)",
         "Narayanan 2021", "pipeline.md"),
    Term("bubble_s", "(p − 1)/v · (F + B) for equal stages; Σ other stages for uneven ones",
         "Narayanan 2021; Qi 2023", "pipeline.md"),
    Term("dp_comm_s", "reduce-scatter + all-gather (or all-reduce) − what compute hides",
         "Rajbhandari 2020", "collectives.md"),
    Term("optimizer_s", "(30 B · Φ/shards + 6 B · Φ) / HBM bandwidth",
         "Kingma 2015; bytes counted", "memory.md"),
    Term("step_overhead_s", "fixed time per step",
         "fitted", "accuracy.md"),
    Term("straggler_s", "barriers · (σ·√(2 ln N) + (1 − (1 − q)^N) · D)",
         "order statistics", "collectives.md"),
)  # fmt: skip
"""Terms that add up to ``step_time_s``."""

MEMORY = (
    Term("weights_bytes", "bytes per weight · Φ on the rank (/ shards: ZeRO-3) + gathered layers",
         "Rajbhandari 2020", "memory.md"),
    Term("gradients_bytes", "bytes per gradient · Φ on the rank (/ shards from ZeRO-2)",
         "Rajbhandari 2020", "memory.md"),
    Term("optimizer_bytes", "state and master bytes · Φ / shards",
         "Rajbhandari 2020", "memory.md"),
    Term("activations_bytes", "saved bytes per micro-batch · micro-batches in flight",
         "Korthikanti 2022", "memory.md"),
    Term("logits_bytes", "bytes per entry · tokens · V/t on the last stage",
         "fitted", "memory.md"),
    Term("buffers_bytes", "framework buffers and pipeline messages",
         "fitted", "memory.md"),
    Term("fragmentation_bytes", "allocator ratio · allocated, at most what is left",
         "fitted", "memory.md"),
    Term("context_bytes", "CUDA context, NCCL and libraries",
         "fitted", "memory.md"),
)  # fmt: skip
"""Terms that add up to ``peak_memory_bytes``."""

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

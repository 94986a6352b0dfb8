"""The terms of a deployment's row: what each is."""

from __future__ import annotations

STEP = {
    "step_projections_s": "projections of attention: weights read, or FLOPs",
    "step_core_s": "keys, values and states read, or FLOPs",
    "step_dense_s": "dense MLPs",
    "step_experts_s": "routed experts: those that the batch wakes, of a rank with an even share",
    "step_imbalance_s": "the fullest expert rank beyond that",
    "step_shared_s": "shared experts",
    "step_head_s": "LM head",
    "step_exchange_s": "collectives and pipeline sends",
    "step_operators_s": "latency floor of the operators",
    "step_host_s": "host: step and sequences",
    "step_draft_s": "draft tokens",
}
"""Terms that add up to ``step_s``."""

PASS = {
    "pass_projections_s": "projections of attention",
    "pass_core_s": "causal attention and states",
    "pass_dense_s": "dense MLPs",
    "pass_experts_s": "routed experts of a rank with an even share",
    "pass_imbalance_s": "the fullest expert rank beyond that",
    "pass_shared_s": "shared experts",
    "pass_head_s": "LM head",
    "pass_exchange_s": "collectives",
    "pass_elementwise_s": "norms, activations, residuals",
    "pass_launch_s": "launches that the GPU waits for",
    "pass_host_s": "host",
}
"""Terms that add up to ``pass_s``."""

MEMORY = {
    "weights_bytes": "weights, copies of experts, draft heads",
    "activation_bytes": "peak of a full pass (SGLang: outside the share)",
    "graph_bytes": "CUDA graphs",
    "context_bytes": "context, buffers of collectives",
    "kv_bytes": "left for keys and values",
}
"""Terms of ``memory_usable_bytes``."""

STATUS = {
    "topology": "degrees do not multiply, or do not fit nodes and GPUs",
    "heads": "heads do not divide",
    "width": "widths do not divide",
    "layers": "layers do not spread over the stages",
    "experts": "experts do not divide",
    "drafts": "draft tokens without a head that makes them",
    "backend": "the backend does not run it",
    "batch": "slots and token budget contradict each other",
    "memory": "weights and buffers leave no memory for the cache",
    "context": "the cache does not hold one request",
    "rate": "more arrives than it serves",
    "ttft": "the time to first token is above its limit",
    "tpot": "the time per output token is above its limit",
}
"""What each status of a deployment means."""

"""Small jobs to export: canonical model, workload and cluster, and rows that vary."""

from __future__ import annotations

from typing import Any

from meshplan.export import Job, Layout

DENSE = {
    "mixer": {"kind": "attention", "heads": 64, "kv_heads": 8},
    "feed_forward": {"kind": "dense"},
}
MOE = {"mixer": {"kind": "mla", "heads": 128}, "feed_forward": {"kind": "moe", "experts": 256}}


def model(**changes: Any) -> dict[str, Any]:
    llama = {"name": "llama-3.1-70b", "kinds": [DENSE], "layers": [0] * 80, "mtp": []}
    return {**llama, "max_positions": 131072, **changes}


def moe_model(**changes: Any) -> dict[str, Any]:
    deepseek = {"name": "deepseek-v3", "kinds": [DENSE, MOE], "layers": [0] * 3 + [1] * 58}
    return {**deepseek, "mtp": [{"kind": 1}], "max_positions": 163840, **changes}


def training(**changes: Any) -> dict[str, Any]:
    overlap = {"tp": False, "dp": True, "cp": True, "ep": False}
    return {
        "seq_len": 8192,
        "global_batch": 1024,
        "compute_dtype": "bf16",
        "grad_dtype": "fp32",
        "attention_kernel": "flash3",
        "dropout": False,
        "mtp": True,
        "pipeline_outermost": True,
        "cp_comm": "p2p",
        "vocab_multiple": 128,
        "overlap": {**overlap, **changes.pop("overlap", {})},
        **changes,
    }


def cluster(architecture: str = "hopper", per_node: int = 8, domain: int = 8) -> dict[str, Any]:
    return {
        "gpus_per_node": per_node,
        "device": {"architecture": architecture},
        "scale_up": {"domain_gpus": domain},
    }


def layout(**changes: Any) -> Layout:
    row: dict[str, Any] = {
        "dp": 32, "tp": 8, "pp": 4, "cp": 1, "ep": 1, "etp": 1, "vpp": 1, "micro_batch": 1,
        "sequence_parallel": True, "recompute": "none", "recompute_layers": 0,
        "sharding": "zero1", "schedule": "1f1b", **changes,
    }  # fmt: skip
    row.setdefault("shard_group", row["dp"] * row["cp"])
    return Layout.of(row)


def job(
    *,
    of: dict[str, Any] | None = None,
    work: dict[str, Any] | None = None,
    on: dict[str, Any] | None = None,
    **changes: Any,
) -> Job:
    return Job(layout(**changes), of or model(), work or training(), on or cluster())

"""Random models, clusters, workloads, frameworks and layouts, as canonical JSON."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]


def one_of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


def share(low: float = 0.0, high: float = 1.0) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda x: float(f"{x:.6g}"))


flag = st.booleans()
size = st.integers(1, 64).map(lambda n: 64 * n)
small = st.integers(0, 10_000)
heads = one_of(8, 16, 32, 64)
span = one_of(
    {"kind": "full"},
    {"kind": "window", "tokens": 1024},
    {"kind": "chunk", "tokens": 2048},
    {"kind": "top_k", "tokens": 512},
)
indexer = st.none() | st.fixed_dictionaries(
    {"heads": one_of(8, 64), "head_dim": one_of(64, 128), "params": small}
)
compress = st.none() | st.fixed_dictionaries(
    {"ratio": one_of(4, 128), "top_k": one_of(0, 512), "params": small}
)
attention = st.fixed_dictionaries(
    {
        "kind": st.just("attention"),
        "heads": heads,
        "kv_heads": one_of(1, 2, 4, 8),
        "head_dim": one_of(64, 80, 128, 256),
        "v_head_dim": one_of(64, 128),
        "span": span,
        "bias_params": small,
        "head_params": small,
        "output_gate": flag,
        "shares_kv": flag,
        "shares_k_and_v": flag,
        "indexer": indexer,
        "q_lora_rank": one_of(0, 0, 512),
        "o_lora_rank": one_of(0, 0, 256),
        "o_groups": one_of(0, 8),
        "compress": compress,
    }
)
mla = st.fixed_dictionaries(
    {
        "kind": st.just("mla"),
        "heads": heads,
        "q_lora_rank": one_of(0, 1536),
        "kv_lora_rank": one_of(256, 512),
        "qk_nope_head_dim": one_of(64, 128),
        "qk_rope_head_dim": one_of(32, 64),
        "v_head_dim": one_of(64, 128),
        "span": span,
        "bias_params": small,
        "head_params": small,
        "output_gate": flag,
        "indexer": indexer,
    }
)
linear = st.fixed_dictionaries(
    {
        "kind": st.just("linear"),
        "k_heads": one_of(8, 16),
        "v_heads": one_of(16, 32),
        "k_head_dim": one_of(64, 128),
        "v_head_dim": one_of(64, 128),
        "conv_kernel": one_of(0, 4),
        "in_params": st.integers(1_000, 50_000_000),
        "out_params": st.integers(1_000, 50_000_000),
        "other_params": small,
        "state_bytes": st.just(4.0),
    }
)
mamba2 = st.fixed_dictionaries(
    {
        "kind": st.just("mamba2"),
        "heads": heads,
        "head_dim": st.just(64),
        "state": one_of(64, 128),
        "groups": one_of(1, 8),
        "conv_kernel": st.just(4),
        "other_params": small,
        "state_bytes": st.just(4.0),
    }
)
dense = st.fixed_dictionaries(
    {"kind": st.just("dense"), "intermediate": size, "gated": flag, "bias_params": small}
)
moe = st.fixed_dictionaries(
    {
        "kind": st.just("moe"),
        "experts": one_of(16, 64, 256),
        "top_k": one_of(1, 2, 8),
        "intermediate": size,
        "expert_hidden": size,
        "gated": flag,
        "expert_bias_params": small,
        "shared_intermediate": one_of(0, 512, 2048),
        "latent_params": one_of(0, 1_000_000),
        "router_params": small,
        "groups": st.just(1),
        "top_groups": st.just(1),
    }
)
layer_kind = st.fixed_dictionaries(
    {
        "name": st.just("kind"),
        "mixer": st.none() | attention | attention | mla | linear | mamba2,
        "feed_forward": st.none() | dense | dense | moe | moe,
        "norms": st.integers(0, 4),
        "norm_params": small,
        "extra_params": small,
    }
)


@st.composite
def models(draw: st.DrawFn) -> Json:
    kinds = draw(st.lists(layer_kind, min_size=1, max_size=3))
    index = st.integers(0, len(kinds) - 1)
    mtp = st.fixed_dictionaries({"kind": index, "projection_params": small})
    return {
        "name": "random",
        "model_type": "random",
        "hidden": draw(size),
        "vocab": draw(st.integers(1_000, 200_000)),
        "embedding_width": draw(one_of(0, 0, 0, 512)),
        "tied_embeddings": draw(flag),
        "learned_positions": draw(one_of(0, 2048)),
        "max_positions": None,
        "embedding_extra_params": draw(small),
        "final_norm_params": draw(small),
        "head_extra_params": draw(small),
        "kinds": kinds,
        "layers": draw(st.lists(index, min_size=1, max_size=40)),
        "mtp": draw(st.lists(mtp, max_size=2)),
        "towers": [],
        "residual_streams": draw(one_of(1, 1, 4)),
        "weight_dtype": "bf16",
    }


FORMATS = ("bf16", "fp16", "fp8", "fp8_block", "nvfp4")
KERNELS = ("unfused", "flash2", "flash3")


@st.composite
def devices(draw: st.DrawFn, curve: Json) -> Json:
    """A device; `curve` gives every field of a GEMM curve, some of which are drawn again."""
    drawn = st.fixed_dictionaries(
        {
            "efficiency": share(0.3, 0.95),
            "k_half": share(0, 400),
            "wave": share(0, 1),
            "tile_half": share(0, 100),
            "tile_min": one_of(64.0 * 64, 128.0 * 128),
            "tile_max": one_of(128.0 * 256, 256.0 * 256),
            "split_k": share(256, 5000),
            "throttle": share(0, 0.5),
            "memory_efficiency": share(0.5, 1),
            "base_s": share(0, 1e-5),
            "cast_bytes": one_of(0.0, 4.0),
        }
    )
    return {
        "name": "random",
        "architecture": "hopper",
        "peak_flops": {f: draw(share(1e14, 5e15)) for f in FORMATS},
        "memory_bytes": draw(share(2e10, 3e11)),
        "memory_bytes_per_s": draw(share(1e12, 8e12)),
        "sms": draw(st.integers(80, 160)),
        "l2_bytes": 5e7,
        "gemm": {f: curve | draw(drawn) for f in FORMATS},
        "training": {
            "gemm_ratio": {f: draw(share(0.5, 2)) for f in FORMATS},
            "attention_efficiency": {k: draw(share(0.1, 0.8)) for k in KERNELS},
            "memory_bound_ratio": draw(share(0.8, 2)),
        },
    }


def fabrics(fabric: Json) -> st.SearchStrategy[Json]:
    """Costs of a fabric: shares of the peak, ratios and times, by the suffix of each name."""
    drawn = {}
    for name in fabric:
        if name == "in_switch_efficiency":
            drawn[name] = one_of(0.0, 0.8)
        elif name.endswith("_efficiency"):
            drawn[name] = share(0.1, 1)
        elif name.endswith("_s"):
            drawn[name] = share(0, 1e-4)
        elif name == "training_ratio":
            drawn[name] = share(0.5, 4)
        else:
            drawn[name] = share(0, 1)
    return st.fixed_dictionaries(drawn)


@st.composite
def clusters(draw: st.DrawFn, curve: Json, fabric: Json) -> Json:
    node = draw(one_of(4, 8))
    tier = st.fixed_dictionaries(
        {
            "name": st.just("tier"),
            "gpus": one_of(16, 64, 256),
            "oversubscription": one_of(1.0, 2.0, 3.5),
            "latency_s": share(0, 1e-5),
        }
    )
    return {
        "name": "random",
        "device": draw(devices(curve)),
        "gpus_per_node": node,
        "scale_up": {
            "domain_gpus": draw(one_of(node, 8 * node)),
            "bytes_per_s": draw(share(5e10, 9e11)),
            "in_switch_reduction": draw(flag),
            "fabric": draw(fabrics(fabric)),
        },
        "scale_out": {
            "nics_per_node": draw(one_of(1, node)),
            "nic_bytes_per_s": draw(one_of(12.5e9, 50e9)),
            "tiers": draw(st.lists(tier, max_size=2)),
            "fabric": draw(fabrics(fabric)),
        },
        "price_per_gpu_hour": draw(one_of(None, 2.5)),
        "jitter_s": draw(one_of(0.0, 1e-4)),
        "delay_probability": draw(one_of(0.0, 1e-6)),
        "delay_s": draw(one_of(0.0, 0.5)),
    }


@st.composite
def software(draw: st.DrawFn, names: Json) -> Json:
    """Costs of a framework, every field drawn in a range that its unit suggests."""
    costs: Json = {"name": "random"}
    for name, known in names.items():
        if name == "tp_sync_s":
            costs[name] = [draw(share(0, 4e-4)) for _ in range(3)]
        elif isinstance(known, bool):
            costs[name] = draw(flag)
        elif name == "launch_exponent":
            costs[name] = draw(share(1.5, 6))
        elif name == "selective_kept_ratio":
            costs[name] = draw(one_of(1.0, 0.43))
        elif name.endswith("_s"):
            costs[name] = draw(one_of(0.0, 1e-5, 1e-3))
        elif name.endswith("_bytes"):
            costs[name] = draw(share(0, 4e9))
        else:
            costs[name] = draw(share(0.05, 2.5))
    return costs


@st.composite
def layouts(draw: st.DrawFn) -> Json:
    degree = one_of(1, 1, 2, 4, 8)
    lay: Json = {name: draw(degree) for name in ("tp", "cp", "pp", "dp")}
    world = lay["tp"] * lay["cp"] * lay["dp"]
    lay["etp"] = draw(one_of(*[d for d in (1, 2, lay["tp"]) if world % d == 0]))
    ways = [d for d in (1, 2, 4, 8, 16) if world % (lay["etp"] * d) == 0]
    lay["ep"] = draw(one_of(*ways))
    lay["schedule"] = draw(one_of("gpipe", "1f1b", "1f1b", "interleaved", "zb-h1", "dualpipe"))
    lay["vpp"] = draw(one_of(1, 2, 3)) if lay["schedule"] == "interleaved" else 1
    lay["micro_batch"] = draw(one_of(1, 2, 3, 4))
    lay["sequence_parallel"] = draw(flag)
    lay["recompute"] = draw(one_of("none", "selective", "block", "full"))
    lay["recompute_layers"] = draw(st.integers(1, 5)) if lay["recompute"] == "block" else 0
    lay["sharding"] = draw(one_of("none", "zero1", "zero2", "zero3", "hsdp"))
    ranks = lay["dp"] * lay["cp"]
    group = draw(one_of(*[d for d in (1, 2, 4, 8) if ranks % d == 0]))
    lay["shard_group"] = {"none": 1, "hsdp": group}.get(lay["sharding"], ranks)
    return lay


@st.composite
def trainings(draw: st.DrawFn, lay: Json) -> Json:
    passes = lay["micro_batch"] * lay["dp"]
    return {
        "seq_len": draw(one_of(512, 4096, 8192, 131_072)),
        "global_batch": passes * draw(st.integers(1, 64)),
        "compute_dtype": draw(one_of("bf16", "fp16", "fp8", "fp8_block", "nvfp4")),
        "param_dtype": draw(one_of("bf16", "fp16")),
        "grad_dtype": draw(one_of("bf16", "fp32")),
        "optimizer_bytes_per_param": draw(one_of(4.0, 12.0)),
        "attention_kernel": draw(one_of(*KERNELS)),
        "dropout": draw(flag),
        "cuda_graphs": draw(flag),
        "moe_imbalance": draw(one_of(1.0, 1.3)),
        "mtp": draw(flag),
        "pipeline_outermost": draw(flag),
        "cp_comm": draw(one_of("p2p", "all_gather", "all_to_all")),
        "vocab_multiple": draw(one_of(0, 1, 128)),
        "overlap": {name: draw(flag) for name in ("tp", "dp", "cp", "ep")},
    }


@st.composite
def jobs(draw: st.DrawFn, *, curve: Json, fabric: Json, costs: Json) -> Json:
    """A whole job."""
    lay = draw(layouts())
    return {
        "model": draw(models()),
        "cluster": draw(clusters(curve, fabric)),
        "software": draw(software(costs)),
        "training": draw(trainings(lay)),
        "layout": lay,
        "gpus": lay["tp"] * lay["cp"] * lay["pp"] * lay["dp"],
    }

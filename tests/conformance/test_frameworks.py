"""Exported layouts, read by the frameworks' own classes, on a fake process group."""

from __future__ import annotations

import importlib
import json
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from export_jobs import job, model, moe_model, training
from meshplan.export import Job, export
from meshplan.export.megatron import settings
from meshplan.export.torchtitan import RECOMPUTE, batch, parallelism

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.conformance, pytest.mark.filterwarnings("ignore")]

DEEP = {"of": moe_model(), "tp": 1, "pp": 16, "dp": 64, "ep": 64, "sequence_parallel": False}
JOBS = {
    "dense": job(),
    "dense, context": job(tp=4, cp=4, dp=16),
    "dense, interleaved": job(vpp=5, schedule="interleaved"),
    "dense, uneven": job(of=model(layers=[0] * 126), tp=8, pp=16, dp=8),
    "dense, full recompute": job(recompute="full"),
    "dense, selective recompute": job(recompute="selective"),
    "experts, uneven": job(**DEEP),
    "experts fold over tensor parallelism": job(**{**DEEP, "tp": 2, "dp": 32, "ep": 32, "etp": 1}),
    "experts, tensor-parallel": job(**{**DEEP, "tp": 2, "dp": 32, "ep": 8, "etp": 2}),
    "experts, data outermost": job(**{**DEEP, "ep": 1}, work=training(pipeline_outermost=False)),
}
SHARDED = {
    "zero3": job(sharding="zero3"),
    "zero2, context": job(sharding="zero2", cp=2, dp=16),
    "hsdp": job(sharding="hsdp", shard_group=8),
    "hsdp, context": job(sharding="hsdp", shard_group=8, cp=2, dp=16),
    "experts": job(**DEEP, sharding="zero3"),
    "no pipeline": job(sharding="zero3", pp=1, dp=128, micro_batch=2),
    "interleaved": job(sharding="zero3", vpp=5, schedule="interleaved"),
}


def framework(name: str) -> Any:
    """Module of a framework, or skip with the reason."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reason = f"{name} is not installed: make conformance"
        return pytest.importorskip(name, reason=reason, exc_type=ImportError)


@pytest.fixture
def ranks() -> Iterator[Any]:
    """Start a fake process group of as many ranks as asked for."""
    framework("torch")
    dist = importlib.import_module("torch.distributed")
    store = importlib.import_module("torch.testing._internal.distributed.fake_pg").FakeStore

    def start(world: int) -> None:
        dist.init_process_group("fake", store=store(), rank=0, world_size=world)

    yield start
    if dist.is_initialized():
        dist.destroy_process_group()


def chosen(of: Job, prefix: str) -> dict[str, Any]:
    """Fields of one configuration object that an export sets."""
    start = prefix + "."
    found = (setting for setting in settings(of) if setting.field.startswith(start))
    return {setting.field.removeprefix(start): setting.value for setting in found}


@pytest.mark.parametrize("name", JOBS)
def test_megatron_builds_the_groups(name: str, ranks: Any) -> None:
    state = framework("megatron.core.parallel_state")
    of, fields = JOBS[name], chosen(JOBS[name], "model")
    ranks(of.gpus)
    sizes = {key: value for key, value in fields.items() if key.endswith("parallel_size")}
    chunks = sizes.pop("virtual_pipeline_model_parallel_size", None)
    try:
        state.initialize_model_parallel(
            **sizes,
            virtual_pipeline_model_parallel_size=chunks,
            order="tp-cp-ep-dp-pp" if of.training["pipeline_outermost"] else "tp-cp-ep-pp-dp",
            create_gloo_process_groups=False,
        )
        assert state.get_data_parallel_world_size() == of.layout.dp
        assert state.get_context_parallel_world_size() == of.layout.cp
        assert state.get_pipeline_model_parallel_world_size() == of.layout.pp
        if of.experts:
            at = of.layout
            assert state.get_expert_tensor_parallel_world_size() == at.etp
            expert_dp = of.gpus // (at.etp * at.ep * at.pp)
            assert state.get_expert_data_parallel_world_size() == expert_dp
    finally:
        state.destroy_model_parallel()


@pytest.mark.parametrize("name", JOBS)
def test_megatron_accepts_the_model_configuration(name: str) -> None:
    config = framework("megatron.core.transformer.transformer_config").TransformerConfig
    of, fields = JOBS[name], chosen(JOBS[name], "model")
    known = set(config.__dataclass_fields__)
    elsewhere = {"seq_length", "make_vocab_size_divisible_by"}  # of the model provider
    assert set(fields) - known <= elsewhere
    torch = framework("torch")
    made = config(
        num_layers=of.layers,
        hidden_size=8192,
        num_attention_heads=64,
        num_query_groups=8,
        num_moe_experts=of.experts or None,
        add_bias_linear=False,
        bf16=True,
        pipeline_dtype=torch.bfloat16,
        params_dtype=torch.bfloat16,
        **{key: value for key, value in fields.items() if key in known},
    )
    layout = made.pipeline_model_parallel_layout
    if layout is not None:
        layout.validate_layer_layout(of.layers, of.mtp_layers or None)
        counts = [len([x for x in row[0] if x.name == "decoder"]) for row in layout.layout]
        assert counts == of.chunk_sizes()


@pytest.mark.parametrize("sharding", ["zero1", "zero2", "zero3", "hsdp"])
def test_megatron_knows_the_data_parallel_fields(sharding: str) -> None:
    config = framework("megatron.core.distributed").DistributedDataParallelConfig
    of = job(sharding=sharding, shard_group=8 if sharding == "hsdp" else 32)
    config(**chosen(of, "ddp"))


@pytest.mark.parametrize("name", SHARDED)
def test_torchtitan_builds_the_mesh(name: str, ranks: Any) -> None:
    configs = framework("torchtitan.config.configs")
    dims = framework("torchtitan.distributed.parallel_dims").ParallelDims
    of = SHARDED[name]
    ranks(of.gpus)
    made = dims.from_config(configs.ParallelismConfig(**parallelism(of)), of.gpus)
    made.build_mesh()
    work = configs.TrainingConfig(**batch(of))
    replicas = made.dp_replicate * made.dp_shard
    assert replicas == of.layout.dp
    assert work.global_batch_size % (work.local_batch_size * replicas) == 0
    assert work.seq_len % (2 * made.tp * made.cp) == 0


def test_torchtitan_has_the_checkpoint_policies() -> None:
    policies = framework("torchtitan.distributed.activation_checkpoint")
    for policy in filter(None, RECOMPUTE.values()):
        assert hasattr(policies, policy)


ALL = {"tp": 1, "pp": 1, "dp": 256, "sequence_parallel": False}
PLAIN = {
    "zero3": job(**ALL, sharding="zero3", micro_batch=2),
    "zero2": job(**ALL, sharding="zero2"),
    "tensor-parallel": job(**{**ALL, "tp": 4, "dp": 64}, sharding="zero1"),
    "pipeline": job(**{**ALL, "pp": 4, "dp": 64}, sharding="zero1"),
    "Ulysses": job(
        **{**ALL, "cp": 4, "dp": 64}, sharding="zero3", work=training(cp_comm="all_to_all")
    ),
    "fp16": job(**ALL, work=training(compute_dtype="fp16", grad_dtype="fp16")),
}


@pytest.mark.parametrize("name", PLAIN)
def test_deepspeed_reads_the_configuration(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = framework("deepspeed.runtime.config")
    of = PLAIN[name]
    written = json.loads(export(of, "deepspeed").files["ds_config.json"])

    class Grid:
        """The part of a process grid that the configuration asks."""

        def get_data_parallel_world_size(self) -> int:
            return of.layout.dp

    monkeypatch.setattr(module.dist, "get_rank", lambda: 0)
    made = module.DeepSpeedConfig(written, mpu=Grid())
    assert made.train_batch_size == of.training["global_batch"]
    assert made.gradient_accumulation_steps == of.micro_batches
    assert made.zero_optimization_stage == int(of.layout.sharding[-1])

"""Clusters in human units, and the canonical form that the core reads.

A description is flat: what people know of their cluster. Facts (peaks, capacities, bandwidths) and
fitted numbers (curves, fabrics) never share a key. A description may start from a preset and
override any key of it; so may its device.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from meshplan.specs.base import Spec
from meshplan.specs.fields import (
    Bytes,
    BytesPerSecond,
    Count,
    Flops,
    Ratio,
    Seconds,
    Share,
    Switch,
    refuse,
)

Format = Literal[
    "fp32", "tf32", "fp16", "bf16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int8", "int4"
]


def _finite(value: dict[str, Any]) -> dict[str, Any]:
    pending: list[tuple[Any, int]] = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        if depth > 4:
            raise refuse("is nested too deeply")
        if isinstance(item, dict):
            pending += [(inner, depth + 1) for inner in item.values()]
        elif isinstance(item, list):
            pending += [(inner, depth + 1) for inner in item]
        elif isinstance(item, float) and not math.isfinite(item):
            raise refuse("must hold finite numbers only")
    return value


Fitted = Annotated[dict[str, Any], AfterValidator(_finite)]
"""Fitted numbers, in SI units and under the names of the core, which checks them."""


class Device(Spec):
    """An accelerator."""

    name: str
    """Name, such as ``H100 SXM 80 GB``."""
    architecture: str
    """Architecture: ``hopper``, ``blackwell``, ``cdna3``, …"""
    peak: dict[Format, Flops] = Field(min_length=1)
    """Dense peak per format, from the datasheet."""
    memory: Bytes
    """HBM capacity."""
    memory_bandwidth: BytesPerSecond
    """HBM bandwidth."""
    sms: Count
    """Streaming multiprocessors or compute units."""
    l2: Bytes
    """L2 cache."""
    gemm: Fitted
    """GEMM curve per format."""
    prefill: Fitted = Field(default_factory=dict)
    """Prefill attention curve per kernel library."""
    decode: Fitted = Field(default_factory=dict)
    """Decode attention curve per kernel library."""
    mla_prefill: Fitted = Field(default_factory=dict)
    """Prefill attention curve of latent layers."""
    mla_decode: Fitted = Field(default_factory=dict)
    """Decode attention curve of latent layers."""
    training: Fitted
    """How kernels inside a training job differ from a short benchmark of them."""
    source: str = ""
    """Where the facts come from."""
    date: str = ""
    """When they were published or read."""
    fit: str = ""
    """What the curves were fitted to."""

    def canonical(self) -> dict[str, Any]:
        """Device of the core."""
        return {
            "name": self.name,
            "architecture": self.architecture,
            "peak_flops": dict(self.peak),
            "memory_bytes": self.memory,
            "memory_bytes_per_s": self.memory_bandwidth,
            "sms": self.sms,
            "l2_bytes": self.l2,
            "gemm": self.gemm,
            "prefill": self.prefill,
            "decode": self.decode,
            "mla_prefill": self.mla_prefill,
            "mla_decode": self.mla_decode,
            "training": self.training,
        }

    @property
    def training_kernels(self) -> tuple[str, ...]:
        """Attention kernels that a training job can use on it."""
        return tuple(self.training.get("attention_efficiency", ()))


class Tier(Spec):
    """A switch tier above the nodes."""

    name: str = "tier"
    """Name, such as ``leaf`` or ``spine``."""
    gpus: Count
    """GPUs below one switch or pod of the tier."""
    oversubscription: Annotated[Ratio, Field(ge=1, le=1000)] = 1.0
    """Down-links over up-links."""
    latency: Seconds = 0.0
    """Latency that crossing the tier adds."""


class Cluster(Spec):
    """A cluster: one kind of device, one scale-up domain size, one scale-out network."""

    name: str = "cluster"
    """Display name."""
    device: Device
    """The accelerator."""
    gpus_per_node: Annotated[Count, Field(le=4096)]
    """GPUs in a node."""
    nvlink: BytesPerSecond
    """Scale-up links of one GPU, each way (NVLink, Infinity Fabric, PCIe)."""
    nvlink_domain: Annotated[Count, Field(le=65536)]
    """GPUs in one scale-up domain."""
    in_switch_reduction: Switch = False
    """The scale-up switch can reduce (NVLS)."""
    nics_per_node: Annotated[Count, Field(le=4096)]
    """NICs in a node."""
    nic: BytesPerSecond
    """One NIC, each way."""
    tiers: tuple[Tier, ...] = Field(default=(), max_length=8)
    """Switch tiers from the leaf upwards; none: one non-blocking network."""
    scale_up_fabric: Fitted
    """Costs of collectives inside a domain."""
    scale_out_fabric: Fitted
    """Costs of collectives between domains."""
    software: dict[str, Fitted] = Field(default_factory=dict)
    """Costs of framework generations as calibrated on this cluster, over those of their presets."""
    price_per_gpu_hour: Annotated[Ratio, Field(le=1e6)] | None = None
    """Price of a GPU-hour."""
    jitter: Seconds = 0.0
    """Standard deviation of a rank's arrival at a collective."""
    delay_probability: Share = 0.0
    """Probability that a rank is delayed in one collective."""
    delay: Seconds = 0.0
    """Length of such a delay."""
    source: str = ""
    """Where the facts come from."""
    date: str = ""
    """When they were published or read."""

    @field_validator("nvlink_domain")
    @classmethod
    def _whole_domains(cls, value: int, info: ValidationInfo) -> int:
        node = info.data.get("gpus_per_node", value)
        if value % node and node % value:
            rule = f"must divide the node's {node} GPUs, or be a multiple of them"
            raise refuse(rule, f"use {node} where the whole node is one domain")
        return value

    def canonical(self) -> dict[str, Any]:
        """Cluster of the core."""
        tiers = [
            {
                "name": tier.name,
                "gpus": tier.gpus,
                "oversubscription": tier.oversubscription,
                "latency_s": tier.latency,
            }
            for tier in self.tiers
        ]
        return {
            "name": self.name,
            "device": self.device.canonical(),
            "gpus_per_node": self.gpus_per_node,
            "scale_up": {
                "domain_gpus": self.nvlink_domain,
                "bytes_per_s": self.nvlink,
                "in_switch_reduction": self.in_switch_reduction,
                "fabric": self.scale_up_fabric,
            },
            "scale_out": {
                "nics_per_node": self.nics_per_node,
                "nic_bytes_per_s": self.nic,
                "tiers": tiers,
                "fabric": self.scale_out_fabric,
            },
            "price_per_gpu_hour": self.price_per_gpu_hour,
            "jitter_s": self.jitter,
            "delay_probability": self.delay_probability,
            "delay_s": self.delay,
        }

"""One engine of a deployment: its layout, and the rates that its GPU, links and software reach."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from ..hardware import ELEMENT_BYTES

Json = dict[str, Any]

SCALE_BYTES = {  # per element
    "fp8_block": 4 / (128 * 128),
    "nvfp4": 1 / 16,
    "mxfp4": 1 / 32,
    "int4": 2 / 128,
}


def stored_bytes(dtype: str) -> float:
    """Bytes of a stored element, its part of the scales included."""
    return ELEMENT_BYTES[dtype] + SCALE_BYTES.get(dtype, 0.0)


def join(a: float, b: float) -> float:
    """Smooth maximum of two times that overlap, p = 3."""
    return float((a**3 + b**3) ** (1 / 3))


@dataclass(frozen=True)
class Side:
    """An engine with a role: `both`, `prefill` or `decode`."""

    job: Json
    engine: Json
    role: str

    @property
    def software(self) -> Json:
        return self.job["software"]

    @property
    def hardware(self) -> Json:
        return self.job["hardware"]

    @property
    def precision(self) -> Json:
        return self.job["deployment"]["precision"]

    @property
    def backend(self) -> str:
        return self.job["deployment"]["backend"]

    @property
    def replicas(self) -> int:
        """Attention replicas of a stage."""
        return self.engine["attention_dp"]

    @property
    def parts(self) -> int:
        """Prefill context ranks: GPUs of a replica that each take a part of a prompt."""
        return self.engine["pcp"]

    @property
    def t(self) -> int:
        """GPUs over which attention, dense MLPs and tables are cut."""
        return self.engine["tp"] // (self.replicas * self.parts)

    @property
    def gpus(self) -> int:
        return self.engine["tp"] * self.engine["pp"]

    @property
    def hbm(self) -> float:
        return self.job["cluster"]["device"]["memory_bytes_per_s"]

    def with_engine(self, **changes: Any) -> Side:
        return replace(self, engine=self.engine | changes)

    def native(self, dtype: str) -> bool:
        """The device multiplies operands of this format."""
        return dtype != "int4" and dtype in self.job["cluster"]["device"]["peak_flops"]

    def peak(self, dtype: str) -> float:
        """FLOP/s of the operands that weights of a format are multiplied with.

        MXFP4 meets 8-bit activations; weights that are only stored in their format, 16-bit ones.
        """
        peaks: dict[str, float] = self.job["cluster"]["device"]["peak_flops"]
        if ELEMENT_BYTES[dtype] < 1 and not self.native(dtype):
            return float(peaks["bf16"] * self.hardware["weight_only_rate"])
        operands = {"int8": "bf16", "mxfp4": "fp8"}.get(dtype, dtype)
        return peaks[operands if operands in peaks else "bf16"]

    def weight_bandwidth(self, dtype: str) -> float:
        ratio = {2.0: "weight_read_16_bit", 0.5: "weight_read_4_bit"}.get(ELEMENT_BYTES[dtype])
        share = self.hardware["weight_read"] * self.software["weight_read"]
        return self.hbm * share * (self.hardware[ratio] if ratio else 1.0)

    def expert_bandwidth(self, dtype: str) -> float:
        h = self.hardware
        if ELEMENT_BYTES[dtype] >= 1:
            share = h["expert_read"]
        elif self.native(dtype):
            share = h["expert_read"] * h["expert_read_4_bit"]
        else:
            share = h["expert_read_weight_only"]
        return self.hbm * share * self.software["expert_read"]

    @property
    def kv_bandwidth(self) -> float:
        return self.hbm * self.hardware["kv_read"] * self.software["kv_read"]

    def decode_flops(self, dtype: str, name: str = "gemm") -> float:
        """FLOP/s of a step; `name` says of what: `gemm` or `expert`."""
        return self.peak(dtype) * self.hardware[f"{name}_rate"]

    def prefill_flops(self, dtype: str, name: str) -> float:
        """FLOP/s of a pass; `name` says of what: `gemm`, `expert` or `attention`."""
        rate = self.hardware[f"prefill_{name}_rate"] * self.software["prefill_rate"]
        if self.role == "prefill":
            rate *= self.software["disaggregated_prefill_rate"]
        if name == "gemm" and ELEMENT_BYTES[dtype] < 1:
            rate *= self.hardware["prefill_4_bit"]
        if name == "expert" and dtype in ("fp8", "fp8_block"):
            rate *= self.hardware["prefill_expert_8_bit"]
        return self.peak(dtype) * rate

    def expert_row_s(self, width: float) -> float:
        """An expert's input gathered and its result added up, a token and layer, 16-bit passes."""
        return float(self.hardware["expert_row_passes"] * 2 * width / self.hbm)

    def casts(self, dtype: str) -> float:
        """Operators that quantise the input of one GEMM group."""
        operators = self.hardware["operators"]
        if dtype == "fp8_block":
            return operators["cast_fp8_block"]
        if ELEMENT_BYTES[dtype] < 1 and self.native(dtype):
            return operators["cast_fp4"]
        return 0.0

    def link(self, ranks: int) -> tuple[float, float]:
        """Bytes/s of a GPU in a group of so many, and the latency that leaving the domain adds."""
        cluster, share = self.job["cluster"], self.hardware["link_rate"]
        up, out = cluster["scale_up"], cluster["scale_out"]
        if ranks <= up["domain_gpus"]:
            return share * up["bytes_per_s"], 0.0
        fabric = out["fabric"]
        nics = out["nics_per_node"] / cluster["gpus_per_node"]
        share = max(share, fabric["p2p_efficiency"])
        return share * nics * out["nic_bytes_per_s"], fabric["base_s"]

    @property
    def all_reduce_s(self) -> float:
        """Latency of a small all-reduce of two GPUs."""
        return self.hardware["all_reduce_s"] * self.software["all_reduce_ratio"]

    def latency_s(self, base_s: float, ranks: int) -> float:
        """Latency of a small collective: it grows with each doubling of the ranks."""
        if ranks == 1:
            return 0.0
        return base_s * (1 + self.hardware["latency_per_doubling"] * math.log2(ranks))

"""A small set of presets, so that tests of reading do not depend on the shipped numbers."""

from __future__ import annotations

import pytest

from meshplan.specs import presets
from meshplan.specs.toml import parse

TINY = """
[devices.h100-sxm]
name = "H100"
architecture = "hopper"
peak = {bf16 = "989.4 TFLOP/s", fp8 = "1979 TFLOP/s"}
memory = "80 GB"
memory_bandwidth = "3.35 TB/s"
sms = 132
l2 = "50 MB"
gemm = {bf16 = {efficiency = 0.8}}
training = {attention_efficiency = {flash3 = 0.7}, memory_bound_ratio = 1.0}
[fabrics.nvlink4]
base_s = 1e-6
source = "measured"
[fabrics.ndr]
base_s = 1e-5
[clusters.h100]
name = "H100 NDR"
device = "h100-sxm"
gpus_per_node = 8
nvlink = "450 GB/s"
nvlink_domain = 8
nics_per_node = 8
nic = "400 Gb/s"
scale_up_fabric = "nvlink4"
scale_out_fabric = "ndr"
[clusters.h200]
name = "H200 NDR"
device = {preset = "h100-sxm", memory = "141 GB"}
gpus_per_node = 8
nvlink = "450 GB/s"
nvlink_domain = 8
nics_per_node = 8
nic = "400 Gb/s"
scale_up_fabric = "nvlink4"
scale_out_fabric = "ndr"
"""


@pytest.fixture(autouse=True)
def tiny_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "_read", lambda: parse(TINY)[0])

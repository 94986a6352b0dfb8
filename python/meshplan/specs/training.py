"""What is trained: sequence, batch, precision, optimizer, attention, overlap."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from meshplan import units
from meshplan.moe.api import read_routing
from meshplan.specs.base import Spec
from meshplan.specs.fields import Count, Ratio, Switch, refuse

Precision = Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4"]
Optimizer = Literal["adam", "adam8bit", "muon", "sgd"]
Attention = Literal["flash", "flash2", "flash3", "unfused"]
Exchange = Literal["p2p", "all_gather", "all_to_all"]
RankOrder = Literal["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]

COMPUTE_DTYPE = {
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8",
    "mxfp8": "fp8_block",
    "nvfp4": "nvfp4",
}
"""Format in which linear layers multiply, per recipe."""

MASTER_BYTES = {"fp32": 4.0, "bf16": 2.0, "none": 0.0}

STATE_BYTES = {"adam": 8.0, "adam8bit": 2.0 + 2 * 4 / 256, "muon": 4.0, "sgd": 4.0}
"""Optimizer state per parameter without the master copy: two fp32 moments for Adam; two 8-bit
moments with an fp32 scale per 256 values for 8-bit Adam; one fp32 momentum for Muon and SGD."""

APPROXIMATE = 0.05
"""How far a batch given in tokens may be from a whole number of sequences."""


def sequences(tokens: int, seq_len: int) -> int:
    """Sequences in a batch of about so many tokens.

    An exact multiple of `seq_len` is taken as it is. Otherwise the number is how people speak
    ("4M tokens"): of the counts within 5 %, the one that halves most often is meant, the nearest
    of these if several do.

    Examples
    --------
    >>> sequences(4_000_000, 8192), sequences(8192 * 488, 8192)
    (512, 488)
    """
    exact, rest = divmod(tokens, seq_len)
    if rest == 0 and exact:
        return exact
    low = -(-tokens * (1 - APPROXIMATE) // seq_len)
    first, last = max(1, int(low)), int(tokens * (1 + APPROXIMATE) // seq_len)
    if first > last:
        return max(1, round(tokens / seq_len))
    power = 1
    while -(-first // (2 * power)) * 2 * power <= last:
        power *= 2
    target = tokens / seq_len
    return min(range(-(-first // power) * power, last + 1, power), key=lambda n: abs(n - target))


def _batch(value: Any) -> Any:
    """Keep a number of sequences, or read text that ends in ``tokens``."""
    if isinstance(value, str) and value.strip().lower().endswith("tokens"):
        text = value.strip()[: -len("tokens")].strip()
        try:
            return {"tokens": units.parse_count(text)}
        except units.UnitError as error:
            raise refuse(error.rule, "write '4M tokens' or a number of sequences") from None
    return value


class Overlap(Spec):
    """Which communication the framework is asked to hide behind compute."""

    tp: Switch = False
    """Tensor-parallel collectives behind the GEMMs."""
    dp: Switch = True
    """Gradient reduction and parameter gathering behind compute."""
    cp: Switch = True
    """Context-parallel exchange behind the attention core."""
    ep: Switch = False
    """Expert dispatch and combine behind another micro-batch."""


class Training(Spec):
    """A training job.

    Examples
    --------
    >>> Training(seq_len=8192, global_batch="4M tokens").global_batch
    512
    """

    seq_len: Count = 8192
    """Tokens in a sequence."""
    global_batch: Annotated[Any, BeforeValidator(_batch)] = 1024
    """Sequences in a step; text such as ``"4M tokens"`` is converted."""
    precision: Precision = "bf16"
    """Recipe: the format in which linear layers multiply."""
    grad_dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Format in which gradients are reduced; ``auto``: fp16 for the fp16 recipe, else fp32."""
    master_dtype: Literal["fp32", "bf16", "none"] = "fp32"
    """Format of the optimizer's own copy of the weights."""
    optimizer: Optimizer = "adam"
    """Optimizer: how much state a parameter carries."""
    attention: Attention = "flash"
    """Attention kernel; ``flash`` is the best generation that the device has a curve for."""
    dropout: Switch = False
    """Dropout masks are drawn and kept."""
    cuda_graphs: Switch = False
    """Layers are launched as CUDA graphs."""
    moe_imbalance: Annotated[Ratio, Field(ge=1, le=1e4)] = 1.0
    """Rows of the hottest expert-parallel rank over the mean."""
    routing: str = ""
    """Routing model that sets it instead: ``uniform``, ``dirichlet:1.3``, a file of counts."""
    mtp: Switch = True
    """Train the multi-token-prediction heads, where the model has them."""
    rank_order: RankOrder = "tp-cp-ep-dp-pp"
    """Rank order, fastest to slowest varying."""
    cp_comm: Exchange = "p2p"
    """How context parallelism exchanges keys and values."""
    vocab_multiple: Count = 128
    """The vocabulary is padded to a multiple of this times tp."""
    overlap: Overlap = Overlap()
    """Overlap switches."""

    @field_validator("seq_len")
    @classmethod
    def _sane_length(cls, value: int) -> int:
        if value > 2**27:
            raise refuse("must be at most 134217728 tokens")
        return value

    @field_validator("global_batch")
    @classmethod
    def _whole_batch(cls, value: Any, info: ValidationInfo) -> int:
        hint = "write a number of sequences, or '4M tokens'"
        if isinstance(value, dict) and set(value) == {"tokens"}:
            seq_len = info.data.get("seq_len", 1)
            tokens = value["tokens"]
            if tokens < seq_len:
                raise refuse(f"must hold at least one sequence of {seq_len} tokens", hint)
            value = sequences(tokens, seq_len)
        if isinstance(value, str):
            try:
                value = units.parse_count(value)
            except units.UnitError as error:
                raise refuse(error.rule, hint) from None
        if isinstance(value, bool) or not isinstance(value, int):
            raise refuse("must be a whole number of sequences", hint)
        if not 1 <= value <= 2**31:
            raise refuse("must be between 1 and 2147483648 sequences", hint)
        return value

    def _grad_dtype(self) -> str:
        if self.grad_dtype != "auto":
            return self.grad_dtype
        return "fp16" if self.precision == "fp16" else "fp32"

    def canonical(self, kernels: tuple[str, ...]) -> dict[str, Any]:
        """Spec of the core.

        Parameters
        ----------
        kernels
            Attention kernels that the device has a curve for.
        """
        kernel: str = self.attention
        if kernel == "flash":
            kernel = "flash3" if "flash3" in kernels else "flash2"
        routing = {"routing": read_routing(self.routing)} if self.routing else {}
        return {
            "seq_len": self.seq_len,
            "global_batch": self.global_batch,
            "compute_dtype": COMPUTE_DTYPE[self.precision],
            "param_dtype": "fp16" if self.precision == "fp16" else "bf16",
            "grad_dtype": self._grad_dtype(),
            "optimizer_bytes_per_param": MASTER_BYTES[self.master_dtype]
            + STATE_BYTES[self.optimizer],
            "attention_kernel": kernel,
            "dropout": self.dropout,
            "cuda_graphs": self.cuda_graphs,
            "moe_imbalance": self.moe_imbalance,
            **routing,
            "mtp": self.mtp,
            "pipeline_outermost": self.rank_order.endswith("pp"),
            "cp_comm": self.cp_comm,
            "vocab_multiple": self.vocab_multiple,
            "overlap": self.overlap.model_dump(),
        }

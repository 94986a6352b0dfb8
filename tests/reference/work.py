"""What one micro-batch makes a rank do in one layer, forward.

Symbols: b sequences of a micro-batch, s sequence length, c context parallel, t tensor parallel,
T = b·s/c tokens on a rank, T_n the tokens that a norm sees (T/t with sequence parallelism).
16-bit elements are 2 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Split:
    """One layer's share of a rank."""

    tp: int
    cp: int
    ep: int
    etp: int
    b: int
    s: int
    sp: bool
    unfused: bool
    dropout: bool
    saved: float
    """Bytes of a saved GEMM input: 1 where the recipe keeps the quantised copy, else 2."""
    imbalance: float
    cp_comm: str
    act_saved: float
    """Bytes of a saved input of the activation function."""

    @property
    def tokens(self) -> float:
        return self.b * self.s / self.cp

    @property
    def norm_tokens(self) -> float:
        return self.tokens / self.tp if self.sp else self.tokens


@dataclass
class Gemm:
    """`groups` products of m × k by k × n."""

    m: float
    n: float
    k: float
    groups: float = 1.0
    recipe: bool = True
    """Runs in the compute format of the recipe; routers and heads do not."""
    expert: bool = False

    @property
    def flops(self) -> float:
        return 2 * self.m * self.n * self.k * self.groups

    def input_gradient(self) -> Gemm:
        return Gemm(self.m, self.k, self.n, self.groups, self.recipe, self.expert)

    def weight_gradient(self) -> Gemm:
        return Gemm(self.n, self.k, self.m, self.groups, self.recipe, self.expert)


@dataclass
class Work:
    """Sums over the operators of a layer."""

    gemms: list[Gemm] = field(default_factory=list)
    core_flops: float = 0.0
    head_dim: float = 128.0
    score_elements: float = 0.0
    bytes: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Of memory-bound operators: forward, backward."""
    scan_bytes: list[float] = field(default_factory=lambda: [0.0, 0.0])
    permute_bytes: float = 0.0
    kernels: list[float] = field(default_factory=lambda: [0.0, 0.0])
    tp_messages: float = 0.0
    tp_message_bytes: float = 0.0
    etp_message_bytes: float = 0.0
    cp_bytes: float = 0.0
    dispatch: tuple[float, float, int, int] | None = None
    """Tokens, width, experts per token, experts."""
    input_bytes: float = 0.0
    saved_bytes: float = 0.0
    core_bytes: float = 0.0
    """The part of `saved_bytes` that selective recomputation drops."""

    def move(self, forward: float, backward: float) -> None:
        self.bytes[0] += forward
        self.bytes[1] += backward

    def launch(self, forward: float, backward: float) -> None:
        self.kernels[0] += forward
        self.kernels[1] += backward


def mean_keys(span: dict[str, Any], s: int) -> float:
    """Keys that a query of a causal sequence sees on average."""
    kind, tokens = span["kind"], span.get("tokens", 0)
    if kind == "full":
        return s / 2
    width = min(tokens, s)
    if kind == "chunk":
        return width / 2
    return width - width**2 / (2 * s)


def layer_work(kind: dict[str, Any], h: int, x: Split) -> Work:
    """All work of one decoder layer."""
    w = Work(tp_message_bytes=x.tokens * h * 2)
    parts = [part for part in (kind["mixer"], kind["feed_forward"]) if part]
    ahead, back = (5.5, 8.5) if x.dropout else (5.0, 6.0)
    hidden_bytes = x.norm_tokens * h * 2
    w.move(kind["norms"] * ahead * hidden_bytes, kind["norms"] * back * hidden_bytes)
    w.input_bytes = hidden_bytes
    # A block keeps its norm's input (2 B), output as the next GEMM saves it, a mask with dropout.
    w.saved_bytes += len(parts) * x.norm_tokens * h * (2 + x.saved + (1 if x.dropout else 0))
    for part in parts:
        PARTS[part["kind"]](w, part, h, x)
    return w


def core(w: Work, heads: int, d_k: int, d_v: int, span: dict[str, Any], x: Split) -> None:
    """Attention core, 2·T·keys·heads/t·(d_k + d_v); a tile of 128 straddles the diagonal."""
    keys = x.s if x.unfused else mean_keys(span, x.s) * (1 + 128 / x.s)
    w.core_flops += 2 * x.tokens * keys * heads / x.tp * (d_k + d_v)
    w.head_dim = (d_k + d_v) / 2
    if x.unfused:
        scores = x.b * heads / x.tp * x.s * x.s / x.cp
        w.score_elements += scores
        w.core_bytes += scores * (5 if x.dropout else 4)
    else:
        w.core_bytes += 4 * x.tokens * heads / x.tp
    w.saved_bytes += w.core_bytes


def exchange(w: Work, kv_width: float, q_width: float, x: Split) -> None:
    """Keys and values over context-parallel ranks."""
    if x.cp_comm == "all_to_all":
        w.cp_bytes += (x.cp - 1) / x.cp * x.tokens * (kv_width + 2 * q_width) * 2
    else:
        w.cp_bytes += (x.cp - 1) * x.tokens * kv_width * 2


def indexer(w: Work, part: dict[str, Any] | None, x: Split) -> None:
    if part:
        w.core_flops += 2 * x.tokens * x.s / 2 * part["heads"] * part["head_dim"] / x.tp
        w.launch(8, 12)


def attention(w: Work, a: dict[str, Any], h: int, x: Split) -> None:
    heads, d_k, d_v = a["heads"] / x.tp, a["head_dim"], a["v_head_dim"]
    kv_heads = 0 if a["shares_kv"] else max(a["kv_heads"] / x.tp, 1)
    kv = kv_heads * d_k if a["shares_k_and_v"] else kv_heads * (d_k + d_v)
    gate = heads * d_v if a["output_gate"] else 0
    if a["q_lora_rank"]:
        w.gemms.append(Gemm(x.tokens, a["q_lora_rank"] + kv + gate, h))
        w.gemms.append(Gemm(x.tokens, heads * d_k, a["q_lora_rank"]))
    else:
        w.gemms.append(Gemm(x.tokens, heads * d_k + kv + gate, h))
    if a["o_lora_rank"]:
        groups, rank = max(max(a["o_groups"], 1) / x.tp, 1), a["o_lora_rank"]
        w.gemms.append(Gemm(x.tokens, rank, heads * d_v / groups, groups))
        w.gemms.append(Gemm(x.tokens, h, groups * rank))
    else:
        w.gemms.append(Gemm(x.tokens, h, heads * d_v))
    core(w, a["heads"], d_k, d_v, a["span"], x)
    if a["compress"]:
        pooled = x.s / 2 / a["compress"]["ratio"]
        top = a["compress"]["top_k"]
        keys = min(pooled, top) if top else pooled
        w.core_flops += 2 * x.tokens * keys * heads * (d_k + d_v)
        w.gemms.append(Gemm(x.tokens, 2 * d_k, h))
        w.launch(8, 12)
    indexer(w, a["indexer"], x)
    w.saved_bytes += x.tokens * 2 * (heads * d_k + kv + gate) + x.tokens * 2 * heads * d_v
    if x.saved < 2:
        w.saved_bytes += x.tokens * heads * d_v * x.saved
    exchange(w, kv, heads * d_k, x)
    w.launch(*((26, 36) if x.unfused else (20, 30)))
    w.tp_messages += 1


def mla(w: Work, a: dict[str, Any], h: int, x: Split) -> None:
    heads, q_rank, rank = a["heads"] / x.tp, a["q_lora_rank"], a["kv_lora_rank"]
    nope, rope, v = a["qk_nope_head_dim"], a["qk_rope_head_dim"], a["v_head_dim"]
    q = heads * (nope + rope)
    if q_rank:
        w.gemms += [Gemm(x.tokens, q_rank, h), Gemm(x.tokens, q, q_rank)]
    else:
        w.gemms.append(Gemm(x.tokens, q, h))
    w.gemms += [Gemm(x.tokens, rank + rope, h), Gemm(x.tokens, heads * (nope + v), rank)]
    gate = heads * v if a["output_gate"] else 0
    if gate:
        w.gemms.append(Gemm(x.tokens, gate, h))
    w.gemms.append(Gemm(x.tokens, h, heads * v))
    core(w, a["heads"], nope + rope, v, a["span"], x)
    indexer(w, a["indexer"], x)
    compressed = 2 * (q_rank + rank + rope + gate) + x.saved * (q_rank + rank)
    expanded = 2 * heads * (2 * (nope + rope) + v) + 2 * heads * v
    w.saved_bytes += x.tokens * (compressed + expanded)
    if x.saved < 2:
        w.saved_bytes += x.tokens * heads * v * x.saved
    moved = x.tokens * 2 * (2 * (q_rank + rank) + 4 * q + 2 * heads * v)
    w.move(moved, 1.5 * moved)
    exchange(w, heads * (nope + rope + v), q, x)
    w.launch(30, 45)
    w.tp_messages += 1


def linear(w: Work, a: dict[str, Any], h: int, x: Split) -> None:
    width_in, width_out = a["in_params"] / h / x.tp, a["out_params"] / h / x.tp
    heads, d_k, d_v = a["v_heads"] / x.tp, a["k_head_dim"], a["v_head_dim"]
    w.gemms += [Gemm(x.tokens, width_in, h), Gemm(x.tokens, h, width_out)]
    w.core_flops += x.tokens * heads * (6 * d_k * d_v + 2 * 64 * (2 * d_k + d_v))
    scan(w, x.tokens * heads * d_v * 2)
    w.saved_bytes += x.tokens * (2 * 2 * width_in + 3 * 2 * width_out)
    w.launch(30, 45)
    w.tp_messages += 1


def mamba2(w: Work, a: dict[str, Any], h: int, x: Split) -> None:
    inner, heads = a["heads"] * a["head_dim"] / x.tp, a["heads"] / x.tp
    groups, state = max(a["groups"] / x.tp, 1), a["state"]
    width_in = 2 * inner + 2 * groups * state + heads
    w.gemms += [Gemm(x.tokens, width_in, h), Gemm(x.tokens, h, inner)]
    w.core_flops += x.tokens * (4 * inner * state + 256 * (groups * state + inner))
    scan(w, x.tokens * inner * 2)
    w.saved_bytes += x.tokens * (2 * 2 * width_in + 3 * 2 * inner)
    w.launch(25, 40)
    w.tp_messages += 1


def scan(w: Work, one_pass: float) -> None:
    w.scan_bytes[0] += 10 * one_pass
    w.scan_bytes[1] += 20 * one_pass


def mlp(w: Work, rows: float, width: float, gated: bool, h: int, x: Split) -> None:
    ups = 2 if gated else 1
    w.gemms += [Gemm(rows, ups * width, h), Gemm(rows, h, width)]
    activation(w, rows * width, ups, x)


def activation(w: Work, elements: float, ups: int, x: Split) -> None:
    """GELU reads and writes 2F forward, 3F backward; SwiGLU 3F and 5F."""
    w.move((ups + 1) * elements * 2, (2 * ups + 1) * elements * 2)
    w.saved_bytes += elements * (x.act_saved * ups + x.saved)


def dense(w: Work, f: dict[str, Any], h: int, x: Split) -> None:
    mlp(w, x.tokens, f["intermediate"] / x.tp, f["gated"], h, x)
    w.launch(14, 24)
    w.tp_messages += 1


def moe(w: Work, f: dict[str, Any], h: int, x: Split) -> None:
    local, width = x.tokens / x.tp, f["expert_hidden"]
    w.gemms.append(Gemm(local, f["experts"], h, recipe=False))
    if f["latent_params"]:
        w.gemms += [Gemm(local, width, h), Gemm(local, h, width)]
    rows = local * f["top_k"] * x.etp * x.imbalance
    experts, inner = f["experts"] / x.ep, f["intermediate"] / x.etp
    ups = 2 if f["gated"] else 1
    w.gemms.append(Gemm(rows / experts, ups * inner, width, experts, expert=True))
    w.gemms.append(Gemm(rows / experts, width, inner, experts, expert=True))
    activation(w, rows * inner, ups, x)
    w.permute_bytes += 6 * rows * width * 2
    w.saved_bytes += rows * width * (x.saved + 2) + local * f["experts"] * 4
    if x.etp > 1:
        w.etp_message_bytes += 2 * rows * width * 2
    w.dispatch = (local, width, f["top_k"], f["experts"])
    w.launch(64, 94)
    if f["shared_intermediate"]:
        mlp(w, x.tokens, f["shared_intermediate"] / x.tp, f["gated"], h, x)
        w.launch(10, 16)
        w.tp_messages += 1


PARTS = {
    "attention": attention,
    "mla": mla,
    "linear": linear,
    "mamba2": mamba2,
    "dense": dense,
    "moe": moe,
}


def embedding_work(h: int, x: Split) -> Work:
    """Lookup forward, scatter-add backward; half a message for the vocabulary shards."""
    table = x.tokens * h * 2
    w = Work(tp_messages=0.5, tp_message_bytes=table)
    w.move(2 * table, 3 * table)
    w.launch(4, 4)
    return w


def head_work(h: int, columns: float, x: Split) -> Work:
    """Final norm, LM head, cross-entropy: 14 B forward and 8 B backward per logit."""
    w = Work(tp_messages=0.5, tp_message_bytes=x.tokens * h * 2, head_dim=0.0)
    w.gemms.append(Gemm(x.tokens, columns, h, recipe=False))
    logits, norm = x.tokens * columns, x.norm_tokens * h * 2
    w.move(14 * logits + 5 * norm, 8 * logits + 6 * norm)
    w.launch(12, 8)
    return w


def mtp_work(h: int, columns: float, x: Split) -> Work:
    """A second pass over the head, and the projection of [hidden; embedding] to hidden."""
    w = head_work(h, columns, x)
    w.gemms.append(Gemm(x.tokens, h / x.tp, 2 * h))
    return w

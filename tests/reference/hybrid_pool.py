"""A slow pool for several groups of layers: a free queue, block by block, as vLLM keeps it.

Nothing is shared with the core: blocks are taken one at a time from the head of the queue and lose
their hash then; what a request holds is out of the queue; every block it gives back goes to the end.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from math import lcm
from typing import Any

Key = tuple[int, Any]


def first_needed(group: dict[str, Any], computed: int) -> int:
    """First block that a group needs once `computed` tokens are done."""
    block = group["block_tokens"]
    if group["kind"] == "window":
        return max(0, computed - group["window"] + 1) // block
    if group["kind"] == "chunk":
        return computed // group["chunk"] * group["chunk"] // block
    if group["kind"] == "state":
        return max(0, computed // block - 1)
    return 0


def accepts(group: dict[str, Any], cached: list[bool], tokens: int) -> bool:
    """Whether a group can go on behind `tokens` tokens with what it has."""
    blocks = tokens // group["block_tokens"]
    if blocks > len(cached):
        return False
    return all(cached[first_needed(group, tokens) : blocks]) if blocks else True


@dataclass
class Pool:
    """The pool of one capacity; `free` holds hashed blocks, oldest first."""

    capacity: int
    groups: list[dict[str, Any]]
    chunk: int
    free: OrderedDict[Key, None] = field(default_factory=OrderedDict)
    held: set[Key] = field(default_factory=set)
    evicted: int = 0

    def take(self, key: Key) -> None:
        """Get a block: the cached one, or an empty or the oldest free one."""
        if key in self.free:
            del self.free[key]
        elif key not in self.held and len(self.free) + len(self.held) >= self.capacity:
            self.free.popitem(last=False)
            self.evicted += 1
        self.held.add(key)

    def give(self, key: Key) -> None:
        """Put a block at the end of the queue; it keeps its hash."""
        if key in self.held:
            self.held.remove(key)
            self.free[key] = None

    def request(self, tokens: list[int]) -> int:
        """Tokens of a prompt that are found; the prompt is then computed."""
        names = [
            [
                (g, tuple(tokens[: (i + 1) * group["block_tokens"]]))
                for i in range(len(tokens) // group["block_tokens"])
            ]
            for g, group in enumerate(self.groups)
        ]
        cached = [[key in self.free for key in keys] for keys in names]
        step = lcm(*(group["block_tokens"] for group in self.groups))
        hit = (len(tokens) - 1) // step * step
        pairs = list(zip(self.groups, cached, strict=True))
        while not all(accepts(group, known, hit) for group, known in pairs):
            hit -= step
        # Found blocks are held first, so that nothing that is computed takes them.
        for group, keys in zip(self.groups, names, strict=True):
            for key in keys[first_needed(group, hit) : hit // group["block_tokens"]]:
                self.take(key)
        computed = hit
        while computed < len(tokens):
            computed = self.compute(names, computed, len(tokens))
        for keys in names:
            for key in reversed(keys):
                self.give(key)
        return hit

    def compute(self, names: list[list[Key]], computed: int, prompt: int) -> int:
        """One chunk: blocks are taken, hashed, and those behind the window given back."""
        after = min(computed + self.chunk, prompt)
        states = [g["block_tokens"] for g in self.groups if g["kind"] == "state"]
        if states:
            block = states[0]
            after = min(computed + self.chunk // block * block, prompt)
            last = prompt // block * block
            if computed < last < after:
                after = last
        for group, keys in zip(self.groups, names, strict=True):
            block = group["block_tokens"]
            if group["kind"] == "state":
                if after % block == 0:
                    self.take(keys[after // block - 1])
            else:
                for key in keys[computed // block : after // block]:
                    self.take(key)
        for group, keys in zip(self.groups, names, strict=True):
            for key in reversed(keys[: first_needed(group, after)]):
                self.give(key)
        return after


def need(groups: list[dict[str, Any]], chunk: int, prompt: int) -> int:
    """Blocks that a prompt holds at once, at most."""
    total = 0
    for group in groups:
        block, blocks = group["block_tokens"], -(-prompt // group["block_tokens"])
        keeps = {"window": group.get("window", 0), "chunk": group.get("chunk", 0)}
        if group["kind"] in keeps:
            blocks = min(blocks, -(-(keeps[group["kind"]] + chunk) // block) + 1)
        total += 2 if group["kind"] == "state" else blocks
    return total

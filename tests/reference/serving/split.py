"""Prefill and decode on engines of their own, event by event and token by token."""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from .estimate import Link
from .policy import Policy
from .replay import TIE, Engine, PrefillTime, Request, seen_s, that_fit


@dataclass
class Worker:
    """A prefill worker: first in, first out."""

    queue: deque[Request] = field(default_factory=deque)
    now: list[Request] = field(default_factory=list)
    span_s: float = 0.0
    busy_s: float = 0.0
    link_free_s: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(r.input for r in (*self.queue, *self.now))


class Split:
    """The two pools and the events between them."""

    def __init__(
        self,
        policy: Policy,
        prefill_s: PrefillTime,
        workers: int,
        engines: list[Engine],
        link: Link,
    ) -> None:
        self.policy, self.prefill_s, self.link = policy, prefill_s, link
        self.workers = [Worker() for _ in range(workers)]
        self.engines = engines
        self.coming = [0] * len(engines)
        self.link_free_s = [0.0] * len(engines)
        self.events: list[tuple[float, int, str, Any]] = []
        self.count = 0
        self.close_call = False

    def at(self, time_s: float, what: str, of: Any) -> None:
        self.count += 1
        heapq.heappush(self.events, (time_s, self.count, what, of))

    def play(self, requests: list[Request], clients: int | None) -> float:
        """Plays requests of so many clients, or at their own times; busy share of the prefill."""
        rules = self.engines[0].policy
        todo = deque(that_fit(rules, requests))

        def send(now_s: float | None) -> None:
            if todo:
                r = todo.popleft()
                r.send_s = r.send_s if now_s is None else now_s
                self.at(seen_s(rules, r), "arrive", r)

        for _ in range(len(todo) if clients is None else clients):
            send(None if clients is None else 0.0)
        before = (-1.0, "")
        while True:
            ends = [engine.prepare() for engine in self.engines]
            first = min(ends)
            if self.events and self.events[0][0] <= first:
                time_s, _, what, of = heapq.heappop(self.events)
                near = abs(time_s - before[0]) < TIE * time_s
                self.close_call |= near and before != (time_s, what)
                self.close_call |= abs(time_s - first) < TIE * time_s
                before = (time_s, what)
                getattr(self, what)(time_s, of)
            elif math.isfinite(first):
                engine = self.engines[ends.index(first)]
                for _ in engine.step():
                    if clients is not None:
                        send(engine.clock)
            else:
                break
        last = max((r.finish_s for r in requests if r.finish_s > 0), default=0.0)
        return sum(w.busy_s for w in self.workers) / (last * len(self.workers)) if last else 0.0

    def arrive(self, now_s: float, r: Request) -> None:
        worker = min(self.workers, key=lambda w: w.tokens)
        worker.queue.append(r)
        if not worker.now:
            self.begin(now_s, worker)

    def begin(self, now_s: float, worker: Worker) -> None:
        """Whole prompts, within the budget of tokens and slots; one at least."""
        tokens, past = 0, 0
        while worker.queue:
            new = worker.queue[0].input - worker.queue[0].hit
            over = tokens + new > self.policy.max_batched_tokens
            if worker.now and (over or len(worker.now) == self.policy.max_batch):
                break
            r = worker.queue.popleft()
            r.start_s = now_s
            worker.now.append(r)
            tokens, past = tokens + new, past + new * r.hit
        if worker.now:
            worker.span_s = self.prefill_s(tokens, len(worker.now), past / max(tokens, 1))
            worker.busy_s += worker.span_s
            self.at(now_s + worker.span_s, "passed", worker)

    def passed(self, now_s: float, worker: Worker) -> None:
        """Caches move to the decode engines, one at a time over the links of either side."""
        done, worker.now = worker.now, []
        for r in done:
            load = [e.load + more for e, more in zip(self.engines, self.coming, strict=True)]
            to = load.index(min(load))
            span = self.link.seconds(r.input)
            end = max(now_s, worker.link_free_s, self.link_free_s[to]) + span
            worker.link_free_s = end - span * (1 - 1 / self.link.sources)
            self.link_free_s[to] = end - span * (1 - 1 / self.link.sinks)
            self.coming[to] += 1
            self.at(end + self.link.fixed_s, "land", (r, to))
        self.begin(now_s, worker)

    def land(self, now_s: float, of: tuple[Request, int]) -> None:
        r, to = of
        self.coming[to] -= 1
        self.engines[to].offer(r, now_s)

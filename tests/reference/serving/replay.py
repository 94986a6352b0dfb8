"""One engine, token by token: one Python loop, one step of the engine at a time.

A step is a pass over prompts (vLLM and TensorRT-LLM: with the decoding requests beside it), or each
decoding request gets its tokens. Nothing is skipped and nothing is summed up in between.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .policy import Policy

DecodeTime = Callable[[int, float], float]
"""Seconds of a step of so many requests with this mean context."""
PrefillTime = Callable[[int, int, float], float]
"""Seconds of a pass: tokens, prompts, and tokens computed before, mean over the new ones."""

MOST_ANSWER = 4096
"""SGLang counts no more of an answer when it admits."""
GRANTED_STEPS = 20
"""Steps that SGLang grants those who stay after a retraction."""
TIE = 1e-9
"""Times that are as near as this, relative, are one moment."""
EXPECTED = (0.7, 0.098, 600)
"""SGLang's share of answers that it expects to be used: at first, at least, after so many steps."""


@dataclass(eq=False)
class Request:
    """What a request asks, and what became of it."""

    number: int
    input: int
    hit: int
    output: int
    send_s: float = math.nan
    start_s: float = math.nan
    first_s: float = math.nan
    finish_s: float = math.nan
    preemptions: int = 0
    seen_s: float = 0.0
    done: float = 0.0
    """Tokens of the answer."""
    began: int = 0
    """Decode step at which it began to decode."""
    steps_left: int = 0
    prompt_left: int = 0

    @property
    def owed(self) -> float:
        return self.output - self.done


@dataclass
class Engine:
    """A scheduler with its clock."""

    policy: Policy
    decode_s: DecodeTime
    prefill_s: PrefillTime
    decode_only: bool = False
    clock: float = 0.0
    steps: int = 0
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    ready: list[Request] = field(default_factory=list)
    partial: Request | None = None
    polled_s: float = 0.0
    since_poll: int = 0
    waited: int = 0
    """Decode steps since the first waiting request was seen."""
    expected: tuple[float, int] = (EXPECTED[0], 0)
    barred: int | None = None
    """Step before which one was preempted: who stays comes first, so none is admitted."""
    batch: list[tuple[Request, int, int]] = field(default_factory=list)
    """Of the next pass: request, its new tokens, its tokens that were computed before."""
    ended: list[Request] = field(default_factory=list)
    woken_s: float = -1.0
    close_call: bool = False
    """Something hung on the last digit of a time: another order of sums may decide otherwise."""
    area_s: float = 0.0
    blocked_s: float = 0.0
    peak_running: int = 0
    peak_held: float = 0.0
    preempted: int = 0
    prompt_tokens: int = 0

    def offer(self, request: Request, seen_s: float) -> None:
        """A request arrives; nobody overtakes."""
        before = self.waiting[-1].seen_s if self.waiting else 0.0
        request.seen_s = max(seen_s, before)
        self.waiting.append(request)

    @property
    def load(self) -> int:
        """Requests that were offered and have not ended."""
        return len(self.waiting) + len(self.running) + (self.partial is not None)

    # What is held

    def held_by(self, r: Request) -> float:
        """Tokens of the pool that an admitted request takes."""
        answer = r.output if self.policy.reserve == "whole" else r.done
        return self.policy.waste + r.input + answer

    @property
    def admitted(self) -> list[Request]:
        return self.running + self.ready + ([self.partial] if self.partial else [])

    @property
    def held(self) -> float:
        return sum(map(self.held_by, self.admitted))

    def sees(self, r: Request) -> bool:
        looked_s = self.polled_s if self.policy.backend == "sglang" else self.clock
        nearly = abs(r.seen_s - looked_s) < TIE * looked_s
        self.close_call |= nearly and looked_s != self.woken_s and self.may_tie
        return r.seen_s <= looked_s

    @property
    def may_tie(self) -> bool:
        """Requests can come at the end of a step by chance, not because they are sent then."""
        return self.decode_only or self.policy.latency_s > 0 or self.policy.token_latency_s > 0

    def has_room(self, r: Request) -> bool:
        """Whether slots and pool allow a request in; alone it always may."""
        inside = self.admitted
        if len(inside) >= self.policy.max_batch:
            return False
        if inside and self.barred == self.steps:
            return False
        need = self.held_by(r)
        if self.policy.reserve == "expected":
            first, least, steps = EXPECTED
            share, since = self.expected
            share = max(share - (first - least) / steps * (self.steps - since), least)
            need += min(r.owed, MOST_ANSWER) + share * sum(other.owed for other in self.running)
        return not inside or self.held + need <= self.policy.kv_tokens

    def next_admitted(self) -> Request | None:
        """The first waiting request, if it may come in now."""
        if self.waiting and self.sees(self.waiting[0]) and self.has_room(self.waiting[0]):
            return self.waiting[0]
        return None

    def admit(self) -> Request:
        r = self.waiting.popleft()
        if math.isnan(r.start_s):
            r.start_s = self.clock
        return r

    # One step

    def prepare(self) -> float:
        """End of the next step, by what is known now; infinite if there is none."""
        if self.ended:
            return self.clock
        if not self.running and not self.partial:
            if not self.waiting:
                return math.inf
            self.clock = max(self.clock, self.waiting[0].seen_s)
            self.polled_s, self.since_poll, self.woken_s = self.clock, 0, self.clock
        if self.decode_only:
            while self.next_admitted():
                self.ready.append(self.admit())
                self.first_tokens()
            if self.ended:
                return self.clock
        else:
            self.gather()
            if self.batch:
                return self.clock + self.pass_s()
        if not self.running:
            return math.inf
        if self.policy.reserve != "whole":
            self.make_room()
        return self.clock + self.step_s()

    def step(self) -> list[Request]:
        """Plays it; the requests that ended."""
        if not self.ended:
            end_s = self.prepare()
            if math.isfinite(end_s) and not self.ended:
                self.finish_pass(end_s) if self.batch else self.finish_step(end_s)
        ended, self.ended = self.ended, []
        return ended

    def step_s(self) -> float:
        n = len(self.running)
        return self.decode_s(n, sum(r.input + r.done for r in self.running) / n)

    def pass_s(self) -> float:
        tokens = sum(new for _, new, _ in self.batch)
        past = sum(new * before for _, new, before in self.batch) / tokens
        span = self.prefill_s(tokens, len(self.batch), past)
        if self.mixes and self.running:
            span += self.policy.decode_share * self.step_s()
        return span

    @property
    def mixes(self) -> bool:
        """Decoding goes on beside prompts."""
        return self.policy.backend != "sglang"

    def gather(self) -> None:
        """Prompts of the next pass, within the budget of tokens."""
        policy = self.policy
        budget = policy.max_batched_tokens
        if self.mixes:
            budget -= len(self.running) * policy.step_tokens
        whole = policy.backend == "trtllm"
        self.batch = []
        if self.partial:
            r, self.partial = self.partial, None
            if not self.take(r, min(r.prompt_left, max(budget, 0))):
                return
        if self.replicas_wait():
            return
        while (room := budget - sum(new for _, new, _ in self.batch)) > 0:
            r = self.next_admitted()
            if r is None:
                return
            before = r.hit if r.done == 0 else 0
            left = max(r.input + int(r.done) - before, 1)
            if whole and left > room and self.batch:
                return
            self.admit().prompt_left = left
            if not self.take(r, left if whole else min(left, room)):
                return

    def take(self, r: Request, new: int) -> bool:
        """Puts tokens of a prompt into the pass; whether that is all of it."""
        if new:
            self.batch.append((r, new, r.input + int(r.done) - r.prompt_left))
        r.prompt_left -= new
        if r.prompt_left:
            self.partial = r
            return False
        self.ready.append(r)
        return True

    def replicas_wait(self) -> bool:
        """Attention replicas of TensorRT-LLM wait until each has a prompt, or long enough."""
        policy = self.policy
        if policy.backend != "trtllm" or policy.attention_dp == 1 or not self.running:
            return False
        seen = sum(self.sees(r) for r in self.waiting)
        return seen < policy.attention_dp and self.waited < policy.dp_wait_steps

    def finish_pass(self, end_s: float) -> None:
        running = len(self.running)
        self.area_s += (running + len(self.batch)) * (end_s - self.clock)
        self.prompt_tokens += sum(new for _, new, _ in self.batch)
        self.clock, self.waited, self.batch = end_s, 0, []
        if not self.mixes:
            self.polled_s, self.since_poll = end_s, 0
        elif running:
            self.each_gets_tokens()
        self.peak_held = max(self.peak_held, self.held)
        self.first_tokens()

    def finish_step(self, end_s: float) -> None:
        front = self.waiting[0] if self.waiting else None
        if front and self.sees(front) and not self.has_room(front):
            self.blocked_s += end_s - self.clock
        self.area_s += len(self.running) * (end_s - self.clock)
        self.waited += bool(front and front.seen_s <= self.clock)
        self.clock = end_s
        self.since_poll += 1
        if self.since_poll == self.policy.recv_interval:
            self.polled_s, self.since_poll = end_s, 0
        self.each_gets_tokens()

    def each_gets_tokens(self) -> None:
        self.steps += 1
        for r in self.running:
            r.done += self.policy.tokens_per_step
            r.steps_left -= 1
        self.peak_held = max(self.peak_held, self.held)
        for r in [r for r in self.running if r.steps_left == 0]:
            self.end(r)
            self.running.remove(r)

    def end(self, r: Request) -> None:
        r.finish_s = self.clock
        self.ended.append(r)

    def first_tokens(self) -> None:
        """Prompts that are complete give a token, and decode if that is not all."""
        for r in self.ready:
            if math.isnan(r.first_s):
                r.first_s = self.clock
            r.done += 1
            if r.done >= r.output:
                self.end(r)
            else:
                r.began = self.steps
                r.steps_left = math.ceil(r.owed / self.policy.tokens_per_step)
                self.running.append(r)
        self.ready = []
        self.peak_running = max(self.peak_running, len(self.running))

    def make_room(self) -> None:
        """Preempts until all that decode can have their tokens."""
        policy = self.policy
        while len(self.running) > 1:
            growth = len(self.running) * policy.tokens_per_step
            if self.held + growth <= policy.kv_tokens:
                return
            self.preempt()

    def preempt(self) -> None:
        """One loses its tokens and goes to the head of the queue."""
        if self.policy.reserve == "expected":
            r = min(self.running, key=lambda r: (int(r.done), -r.input, -r.number))
        else:
            r = max(self.running, key=lambda r: (r.began, r.number))
        self.running.remove(r)
        r.done = min(int(r.done), r.output - 1)
        r.preemptions += 1
        self.preempted += 1
        self.barred = self.steps
        r.seen_s = min(self.polled_s, self.clock)
        self.waiting.appendleft(r)
        if self.policy.reserve == "expected":
            whole = sum(other.output for other in self.running)
            used = whole - sum(other.owed for other in self.running)
            share = (used + GRANTED_STEPS * len(self.running)) / max(whole, 1)
            self.expected = (min(max(share, 0.0), 1.0), self.steps)


# Who sends


def seen_s(policy: Policy, r: Request) -> float:
    return r.send_s + policy.latency_s + policy.token_latency_s * r.input


def that_fit(policy: Policy, requests: Iterable[Request]) -> list[Request]:
    """Requests that an empty pool holds; the others are refused."""
    return [r for r in requests if r.input + r.output <= policy.kv_tokens]


def closed(engine: Engine, requests: list[Request], clients: int) -> None:
    """Clients send the next request when the last is answered; all start at once."""
    todo = deque(that_fit(engine.policy, requests))

    def send(now_s: float) -> None:
        if todo:
            r = todo.popleft()
            r.send_s = now_s
            engine.offer(r, seen_s(engine.policy, r))

    for _ in range(clients):
        send(0.0)
    while engine.load:
        for _ in engine.step():
            send(engine.clock)


def opened(engines: list[Engine], requests: list[Request]) -> None:
    """Requests come on their own, each to the engine with the fewest that have not ended."""
    mine: list[list[Request]] = [[] for _ in engines]
    for r in that_fit(engines[0].policy, requests):
        for engine in engines:
            while engine.load and engine.clock < r.send_s and soonest(engine) < r.send_s:
                engine.step()
        open_now = [sum(not q.finish_s <= r.send_s for q in queue) for queue in mine]
        to = open_now.index(min(open_now))
        mine[to].append(r)
        engines[to].offer(r, seen_s(engines[to].policy, r))
    for engine in engines:
        while engine.load:
            engine.step()


def soonest(engine: Engine) -> float:
    """When the next step can begin."""
    if engine.running or engine.partial:
        return engine.clock
    return max(engine.clock, engine.waiting[0].seen_s)

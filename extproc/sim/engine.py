"""A model of one engine replica: chunked prefill, continuous batching, a prefix cache; pure and in virtual time.

Step time   = prompt work in it + `step` + `per_sequence` * sequences + `per_context` * context tokens, over speed
Prompt work = sum over computed tokens of (1 + position / doubling) / prefill_speed    (attention grows with it)

First come first served; a step takes up to `chunk` prompt tokens, of one prompt after the other, beside one
token for every sequence that is being answered. The defaults are about a 70 B model on an 8-GPU node.

Steps that carry no prompt work all have the same shape, so a run of them up to the next end of an answer is one
event: step k of it takes a + b * k seconds, and an arrival cuts the run at the end of the step it falls into.

Not modelled: preemption, and reuse of generated text. KV room is reserved from a prompt's start to its answer's
end for what it does not share; blocks of running prompts are not pinned in the cache.
"""

import math
from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush

from extproc.core.cost import prefill_work
from extproc.core.sample import Sample
from extproc.sim.cache import BlockCache
from extproc.sim.jobs import BLOCK_TOKENS, Job


@dataclass(slots=True, frozen=True, kw_only=True)
class EngineSettings:
    """One class of replicas. Seconds, tokens, tokens per second; `speed` divides every step's time."""

    prefill_speed: float = 20_000.0
    prefill_doubling: float = 53_000.0
    step: float = 0.010
    per_sequence: float = 50e-6
    per_context: float = 12e-9
    chunk: int = 8192
    max_running: int = 128
    kv_tokens: int = 3_000_000
    speed: float = 1.0

    def __post_init__(self) -> None:
        for name in ("prefill_speed", "prefill_doubling", "chunk", "max_running", "speed"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0")
        if self.kv_tokens < BLOCK_TOKENS:
            raise ValueError(f"kv_tokens must be at least one block of {BLOCK_TOKENS}")


class Engine:
    """One replica. Call `submit` when a request comes and `advance` at the time `wake` tells.

    Attributes:
        wake: end of the current step or run of steps; infinity when idle.
        busy: seconds spent in steps that carried prompt work.
        computed, hits: prompt tokens computed, and found in the cache, of prompts that were begun.
    """

    __slots__ = (
        "_answering", "_cut", "_finishing", "_first", "_partial", "_plan", "_started", "_steps", "busy", "cache",
        "computed", "context", "generated", "hits", "live", "name", "prompts", "queue", "settings", "wake",
    )  # fmt: skip

    def __init__(self, name: str, settings: EngineSettings, now: float) -> None:
        self.name = name
        self.settings = settings
        self.cache = BlockCache(settings.kv_tokens // BLOCK_TOKENS)
        self.queue: deque[Job] = deque()
        self.wake = math.inf
        self.busy = 0.0
        self.context = self.computed = self.hits = self.live = self.generated = self.prompts = 0
        self._answering: list[tuple[int, int, Job]] = []  # heap: the step an answer ends at, number, job
        self._finishing: list[Job] = []  # prompts this step completes
        self._partial: Job | None = None  # the prompt computed over several steps
        self._steps = 0  # steps done since the start
        self._plan = 0  # steps of the current run; 1 for a step with prompt work; 0 when idle
        self._started = self._first = self._cut = now  # current run: start, time of its first step, slope

    @property
    def running(self) -> int:
        """Sequences being computed."""
        return len(self._answering) + len(self._finishing) + (self._partial is not None)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is on the replica."""
        return not (self.queue or self.running or self.live)

    def submit(self, job: Job, now: float) -> None:
        """Take a request in. One that can't ever fit is the caller's to refuse (`fits`)."""
        self.queue.append(job)
        if not self._plan:
            self._begin(now)
        elif not (self._finishing or self._partial) and self._may_start():
            self._cut_run(now)

    def fits(self, job: Job) -> bool:
        """Whether prompt and answer fit the KV cache at all."""
        return job.row.tokens + job.row.output <= self.settings.kv_tokens

    def advance(self, now: float) -> tuple[list[Job], list[Job]]:
        """End the current steps at `now` (== `wake`): prompts whose first token came, and answers that ended."""
        self._steps += self._plan
        self.context += len(self._answering) * self._plan
        self.generated += len(self._answering) * self._plan
        ended = self._pop_ended()
        firsts, self._finishing = self._finishing, []
        for job in firsts:
            self._first_token(job, ended)
        self._begin(now)
        return firsts, ended

    def drop_all(self) -> list[Job]:
        """The engine dies: everything on it is lost, and so is its cache."""
        lost = [*self.queue, *self._finishing, *(job for _, _, job in self._answering)]
        if self._partial is not None:
            lost.append(self._partial)
        for job in lost:
            self.computed -= max(job.position - job.hit, 0)
            self.hits -= job.hit
        self.queue.clear()
        self._answering, self._finishing, self._partial = [], [], None
        self.cache.clear()
        self.context = self.live = self._plan = 0
        self.wake = math.inf
        return lost

    def sample(self, now: float, started: float) -> Sample:
        """What a scrape of its metrics would say now."""
        return Sample(
            at=now,
            running=float(self.running),
            waiting=float(len(self.queue)),
            kv_used=min(self.live / self.settings.kv_tokens, 1.0),
            kv_capacity=self.settings.kv_tokens,
            max_running=self.settings.max_running,
            prompt_tokens=float(self.prompts),
            generated_tokens=float(self.generated),
            started=started,
        )

    # -- steps -----------------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        """Start what comes next: a step with prompt work, a run of steps without, or nothing."""
        self._started = now
        if self._partial is not None or (self.queue and self._may_start()):
            work, sequences = self._schedule()
            self._plan = 1
            seconds = work / self.settings.prefill_speed + self._step_time(sequences)
            self.busy += seconds / self.settings.speed
            self.wake = now + seconds / self.settings.speed
        elif self._answering:
            self._plan = self._answering[0][0] - self._steps
            count = len(self._answering)
            self._first = self._step_time(count) / self.settings.speed
            self._cut = self.settings.per_context * count / self.settings.speed
            self.wake = now + self._run_time(self._plan)
        else:
            self._plan = 0
            self.wake = math.inf

    def _step_time(self, sequences: int) -> float:
        s = self.settings
        return s.step + s.per_sequence * sequences + s.per_context * self.context

    def _run_time(self, steps: int) -> float:
        return steps * self._first + self._cut * steps * (steps - 1) / 2

    def _cut_run(self, now: float) -> None:
        """An arrival ends the run of steps with the one that is going on: the m least with run_time(m) >= elapsed."""
        elapsed, first, slope = now - self._started, self._first, self._cut
        half = first - slope / 2
        root = (math.sqrt(half * half + 2 * slope * elapsed) - half) / slope if slope else elapsed / first
        self._plan = max(1, min(self._plan, math.ceil(root - 1e-9)))
        self.wake = self._started + self._run_time(self._plan)

    def _may_start(self) -> bool:
        """Whether the first in the queue finds a running slot and KV room."""
        if self.running >= self.settings.max_running:
            return False
        row = self.queue[0].row
        return (
            not self.live or self.live + row.tokens + row.output <= self.settings.kv_tokens + self._shared()
        )

    def _shared(self) -> int:
        job = self.queue[0]
        return self.cache.leading(job.row.blocks[: job.full]) * BLOCK_TOKENS

    def _schedule(self) -> tuple[float, int]:
        """Fill a step with prompt tokens, first come first served: its work, and its sequences."""
        left, work = self.settings.chunk, 0.0
        touched = 0
        while left > 0:
            job = self._partial or self._next()
            if job is None:
                break
            touched += 1
            end = min(job.position + left, job.row.tokens)
            work += prefill_work(job.position, end, self.settings.prefill_doubling)
            left -= end - job.position
            self.computed += end - job.position
            job.position = end
            self._partial = None if end == job.row.tokens else job
            if self._partial is None:
                self._finishing.append(job)
                self.cache.use(job.row.blocks[: job.full])
        return work, len(self._answering) + touched

    def _next(self) -> Job | None:
        """Begin the first in the queue: look its prefix up. The last token is always computed."""
        if not self.queue or not self._may_start():
            return None
        job = self.queue.popleft()
        row = job.row
        job.hit = job.position = min(
            self.cache.leading(row.blocks[: job.full]) * BLOCK_TOKENS, row.tokens - 1
        )
        self.hits += job.hit
        self.live += row.tokens - job.hit + row.output
        self.prompts += row.tokens
        return job

    def _pop_ended(self) -> list[Job]:
        ended = []
        while self._answering and self._answering[0][0] <= self._steps:
            job = heappop(self._answering)[2]
            self.context -= job.row.tokens + job.row.output
            self._free(job)
            ended.append(job)
        return ended

    def _first_token(self, job: Job, ended: list[Job]) -> None:
        self.generated += 1
        if job.row.output == 1:
            self._free(job)
            ended.append(job)
            return
        self.context += job.row.tokens + 1
        heappush(self._answering, (self._steps + job.row.output - 1, job.number, job))

    def _free(self, job: Job) -> None:
        self.live -= job.row.tokens - job.hit + job.row.output

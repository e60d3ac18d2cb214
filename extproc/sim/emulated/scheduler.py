"""The engine's scheduler in virtual steps: prefill, decode, queue and KV blocks. Pure: time is an argument.

A step computes at most `step_budget` tokens: one for every decoding sequence, the rest for prompts in
order of arrival (chunked prefill). It takes
    prompt tokens / prefill_speed  +  (step_ms + sequence_ms * sequences that get a token)
where the second part is left out when no sequence gets one. So a lone prompt's first token comes after
`uncached / prefill_speed` and one step, however many chunks it takes. (The shape is that of a batched
engine: prefill is bound by computing, decode by reading the weights once a step.)

A sequence is admitted when a place is free and the KV cache has room for its whole prompt and output, so
nothing is ever preempted; one whose adapter has no slot (adapters.py) lets those behind it go first. Blocks
can be hit by others as soon as the step that computes them is planned, as in vLLM; of its own prompt a
sequence always computes at least the last token.

Decoding sequences all advance by one token a step, so a step does not touch them: each is filed under the
number of the step at which something happens to it (a chunk to send, a block filled, the end).
"""

from collections import OrderedDict, deque
from typing import Any, NamedTuple

from extproc.sim.emulated.adapters import Slots
from extproc.sim.emulated.books import Books, Gauges
from extproc.sim.emulated.cache import BlockPool, Lease
from extproc.sim.emulated.settings import EngineSettings
from extproc.sim.emulated.tokens import TokenStream


class Sequence:
    """One prompt and one answer to it. `stride` is the tokens between two events; 0 wants only the end."""

    __slots__ = (
        "adapter", "arrived", "cached", "computed", "first_at", "first_step", "gone", "lease",
        "output", "owner", "planned", "reason", "received", "reported", "started", "stream", "stride",
    )  # fmt: skip

    def __init__(
        self, stream: TokenStream, output: int, *, reason: str = "length", stride: int = 0, adapter: str = ""
    ) -> None:
        """`output` tokens are generated (0 for an embedding) and the answer ends with `reason`."""
        self.stream = stream
        self.output = output
        self.reason = reason
        self.stride = stride
        self.adapter = adapter
        self.owner: Any = None  # whoever wants its events
        self.arrived = self.started = self.first_at = 0.0
        self.received = 0  # prompt tokens whose keys and values another replica computed and sent
        self.cached = 0  # prompt tokens that were hit, or received
        self.computed = 0  # prompt tokens in the cache, hit or computed in a finished step
        self.planned = 0  # the same with the step in hand
        self.first_step = 0  # number of the step that gave the first token
        self.reported = 0  # output tokens in events so far
        self.lease: Lease | None = None
        self.gone = False


class Progress(NamedTuple):
    """`sequence` has `tokens` output tokens at time `at`; `ended` when these are all."""

    sequence: Sequence
    tokens: int
    at: float
    ended: bool


class _Step(NamedTuple):
    began: float
    ends: float
    chunks: list[tuple[Sequence, int]]  # prompt tokens computed for whom
    prompt_tokens: int


class Scheduler:
    """Submit, cancel, and `advance` to a time; `next_at` says when there is something to advance to."""

    def __init__(self, settings: EngineSettings, books: Books, pool: BlockPool) -> None:
        self._settings = settings
        self._books = books
        self.pool = pool
        #: Steps take this many times as long; a fault.
        self.slow = 1.0
        self._arrivals: deque[Sequence] = deque()  # since the step in hand began
        self._waiting: OrderedDict[Sequence, None] = OrderedDict()
        self._prefilling: dict[Sequence, None] = {}
        self._running = 0
        self._decoding = 0
        self._due: dict[int, list[Sequence]] = {}
        self._adapters: dict[str, list[int]] = {}  # adapter -> sequences running, waiting
        self.slots = Slots(settings.max_loras)
        self._loads = 0  # adapters to load in the step that is being planned
        self._steps = 0
        self._step: _Step | None = None
        self._clock = 0.0  # end of the last step

    @property
    def running(self) -> int:
        """Sequences that were admitted and have not ended."""
        return self._running

    @property
    def waiting(self) -> int:
        """Sequences not admitted yet."""
        return len(self._waiting) + len(self._arrivals)

    @property
    def next_at(self) -> float | None:
        """When the step in hand ends, or may begin; None when there is nothing to do."""
        if self._step:
            return self._step.ends
        return self._arrivals[0].arrived if self._arrivals else None

    def submit(self, sequence: Sequence, now: float) -> None:
        """Queue a sequence at `now` (seconds, never falling). Its prompt must fit `settings.longest`."""
        sequence.arrived = now
        self._arrivals.append(sequence)
        self._count_adapter(sequence, 1, 1)

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence without an answer; its blocks are free at once. The step in hand stays as it is."""
        if sequence.gone:
            return
        self._books.ends["cancelled"] += 1
        if sequence.lease:
            self._leave(sequence)
            return
        sequence.gone = True
        self._count_adapter(sequence, 1, -1)
        if sequence in self._waiting:
            del self._waiting[sequence]
        else:
            self._arrivals.remove(sequence)

    def advance(self, now: float) -> list[Progress]:
        """Do everything that happens until `now`; what happened, in order."""
        events: list[Progress] = []
        while step := self._step or self._begin(now):
            self._step = step
            if step.ends > now:
                break
            self._step = None
            self._complete(step, events)
        return events

    def outstanding(self, now: float) -> float:
        """Prompt tokens still to compute: of a step in hand the share of its time that is left.

        Prompts that wait are looked up in the cache as it will be when those before them are computed.
        """
        left = float(sum(seq.stream.prompt_tokens - seq.planned for seq in self._prefilling))
        if self._step and self._step.ends > self._step.began:
            share = (self._step.ends - now) / (self._step.ends - self._step.began)
            live = sum(tokens for seq, tokens in self._step.chunks if not seq.gone)
            left += live * min(1.0, max(0.0, share))
        coming = {name for seq in self._prefilling for name in seq.stream.hashes}
        for queued in (*self._waiting, *self._arrivals):
            left += queued.stream.prompt_tokens - self._foreseen(queued, coming)
            coming.update(queued.stream.hashes)
        return left

    def _foreseen(self, seq: Sequence, coming: set[int]) -> int:
        hits = 0
        for name in seq.stream.hashes[: self._hit_limit(seq)]:
            if name not in coming and not self.pool.holds(name):
                break
            hits += 1
        return hits * self._settings.block_size

    # -- planning a step -------------------------------------------------------------------------------------

    def _begin(self, now: float) -> _Step | None:
        """The next step, if there is work by `now`."""
        start = self._clock
        if not self._running and not self._waiting:
            if not self._arrivals or self._arrivals[0].arrived > now:
                return None
            start = max(start, self._arrivals[0].arrived)
        while self._arrivals and self._arrivals[0].arrived <= start:
            self._waiting[self._arrivals.popleft()] = None
        chunks = self._plan()
        if not chunks and not self._decoding:
            return None
        prompt_tokens = sum(tokens for _, tokens in chunks)
        return _Step(start, start + self._duration(chunks), chunks, prompt_tokens)

    def _plan(self) -> list[tuple[Sequence, int]]:
        budget = self._settings.step_budget - self._decoding
        chunks: list[tuple[Sequence, int]] = []
        for seq in self._prefilling:
            if budget <= 0:
                break
            budget -= self._take(seq, budget, chunks)
        while budget > 0 and self._running < self._settings.max_running:
            first = self._next_waiting()
            if first is None or not self._admit(first):
                break
            budget -= self._take(first, budget, chunks)
        return chunks

    def _next_waiting(self) -> Sequence | None:
        """The first that waits and whose adapter, if it has one, can be had."""
        has_room = self.slots.has_room
        return next((seq for seq in self._waiting if not seq.adapter or has_room(seq.adapter)), None)

    def _hit_limit(self, seq: Sequence) -> int:
        return (seq.stream.prompt_tokens - 1) // self._settings.block_size

    def _admit(self, seq: Sequence) -> bool:
        stream, size = seq.stream, self._settings.block_size
        hits = self.pool.match(stream.hashes, self._hit_limit(seq))
        total = -(-(stream.prompt_tokens + seq.output) // size)
        seq.lease = self.pool.admit(stream.hashes[:hits], total)
        if seq.lease is None:
            return False
        del self._waiting[seq]
        self._prefilling[seq] = None
        self._running += 1
        if seq.adapter:
            self._loads += self.slots.take(seq.adapter)
        self._count_adapter(seq, 1, -1)
        self._count_adapter(seq, 0, 1)
        seq.cached = seq.computed = seq.planned = hits * size
        self._books.queried_tokens += stream.prompt_tokens
        self._books.hit_tokens += seq.cached
        if seq.received > seq.cached:
            self._take_in(seq)
        return True

    def _take_in(self, seq: Sequence) -> None:
        """Fill blocks with what another replica sent: all but the last token, which gives the first of the answer."""
        size, lease = self._settings.block_size, seq.lease
        assert lease is not None
        seq.cached = seq.computed = seq.planned = min(seq.received, seq.stream.prompt_tokens - 1)
        self.pool.grow(lease, -(-seq.planned // size))
        self.pool.name(lease, seq.stream.hashes[len(lease.names) : seq.planned // size])

    def _take(self, seq: Sequence, budget: int, chunks: list[tuple[Sequence, int]]) -> int:
        """Plan the next chunk of a prompt; its tokens. Its blocks get their names here."""
        tokens = min(budget, seq.stream.prompt_tokens - seq.planned)
        if seq.planned == seq.cached:
            seq.started = self._clock if self._clock > seq.arrived else seq.arrived
        size, lease = self._settings.block_size, seq.lease
        assert lease is not None
        seq.planned += tokens
        self.pool.grow(lease, -(-seq.planned // size))
        self.pool.name(lease, seq.stream.hashes[len(lease.names) : seq.planned // size])
        chunks.append((seq, tokens))
        return tokens

    def _duration(self, chunks: list[tuple[Sequence, int]]) -> float:
        settings = self._settings
        work, fed = 0.0, self._decoding
        for seq, tokens in chunks:
            work += tokens * self._dearness(seq.planned - tokens / 2)
            fed += seq.planned == seq.stream.prompt_tokens
        seconds = work / settings.prefill_speed
        if fed:
            seconds += (settings.step_ms + settings.sequence_ms * fed) / 1000
        seconds += self._loads * settings.adapter_load_ms / 1000
        self._loads = 0
        return seconds * self.slow / settings.speed

    def _dearness(self, position: float) -> float:
        """How much more a prompt token costs at `position` than at 0: attention grows linearly with it."""
        double_at = self._settings.attention_double_at
        return 1 + position / double_at if double_at else 1.0

    # -- ending a step ---------------------------------------------------------------------------------------

    def _complete(self, step: _Step, events: list[Progress]) -> None:
        books = self._books
        self._clock = step.ends
        self._steps += 1
        books.computed_tokens += step.prompt_tokens
        books.step_sizes.observe(step.prompt_tokens + self._decoding)
        if self._decoding:
            books.generated_tokens += self._decoding
            books.token_gap.observe(step.ends - step.began, self._decoding)
        for seq in self._due.pop(self._steps, ()):
            if not seq.gone:
                self._progress(seq, events)
        for seq, tokens in step.chunks:
            if not seq.gone:
                seq.computed += tokens
                if seq.computed == seq.stream.prompt_tokens:
                    self._first_token(seq, events)
        books.gauges = self.gauges()
        if self._adapters:
            self._note_adapters()

    def gauges(self) -> Gauges:
        """The state of this moment. What arrived since the step in hand began is not seen yet, as in vLLM."""
        return Gauges(self._running, len(self._waiting), self.pool.usage)

    def _first_token(self, seq: Sequence, events: list[Progress]) -> None:
        del self._prefilling[seq]
        seq.first_at = self._clock
        self._books.prompt_tokens += seq.stream.prompt_tokens
        self._books.cached_tokens += seq.cached
        if seq.output:
            self._books.generated_tokens += 1
            self._books.first_token.observe(seq.first_at - seq.arrived)
        if seq.output <= 1:
            self._finish(seq, events)
            return
        seq.first_step = self._steps
        self._decoding += 1
        if seq.stride:
            self._report(seq, 1, events)
        self._file(seq, 1)

    def _progress(self, seq: Sequence, events: list[Progress]) -> None:
        tokens = 1 + self._steps - seq.first_step
        lease, total = seq.lease, seq.stream.prompt_tokens + tokens
        assert lease is not None
        self.pool.grow(lease, -(-total // self._settings.block_size))
        if self._settings.cache_generated:
            self.pool.name(lease, seq.stream.extend(tokens))
        if tokens >= seq.output:
            self._finish(seq, events)
            return
        if seq.stride and tokens - seq.reported >= seq.stride:
            self._report(seq, tokens, events)
        self._file(seq, tokens)

    def _file(self, seq: Sequence, tokens: int) -> None:
        """File a sequence with `tokens` output tokens under the step of its next event."""
        size = self._settings.block_size
        ahead = min(seq.output - tokens, size - (seq.stream.prompt_tokens + tokens) % size)
        if seq.stride:
            ahead = min(ahead, seq.reported + seq.stride - tokens)
        self._due.setdefault(self._steps + ahead, []).append(seq)

    def _report(self, seq: Sequence, tokens: int, events: list[Progress]) -> None:
        seq.reported = tokens
        events.append(Progress(seq, tokens, self._clock, False))

    def _finish(self, seq: Sequence, events: list[Progress]) -> None:
        books, now = self._books, self._clock
        decoding = now - seq.first_at
        self._leave(seq)
        books.ends[seq.reason] += 1
        books.latency.observe(now - seq.arrived)
        books.queue.observe(seq.started - seq.arrived)
        books.inference.observe(now - seq.started)
        books.prefill.observe(seq.first_at - seq.started)
        books.decode.observe(decoding)
        books.prompt_sizes.observe(seq.stream.prompt_tokens)
        books.output_sizes.observe(seq.output)
        if seq.output > 1:
            books.time_per_token.observe(decoding / (seq.output - 1))
        events.append(Progress(seq, seq.output, now, True))

    def _leave(self, seq: Sequence) -> None:
        """A running sequence ends: its place and its blocks are free."""
        seq.gone = True
        self._running -= 1
        self._count_adapter(seq, 0, -1)
        if seq.adapter:
            self.slots.give_back(seq.adapter)
        if seq in self._prefilling:
            del self._prefilling[seq]
        elif seq.first_step:
            self._decoding -= 1
        assert seq.lease is not None
        self.pool.release(seq.lease)

    def _count_adapter(self, seq: Sequence, place: int, change: int) -> None:
        if seq.adapter:
            self._adapters.setdefault(seq.adapter, [0, 0])[place] += change

    def _note_adapters(self) -> None:
        running = {name for name, counts in self._adapters.items() if counts[0]}
        waiting = {name for name, counts in self._adapters.items() if counts[1]}
        self._books.saw_mix(running, waiting, self._clock)

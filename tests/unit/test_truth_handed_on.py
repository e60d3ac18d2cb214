"""Who judges changes: what a watcher saw counts when it judges, and what was found alone all go by afterwards."""

from extproc.core.announced import ALONE, JUDGE, WATCHER, Ruling
from extproc.core.journal import Batch, Engine, Placed, Ruled, pack_chain
from extproc.core.pool import Pool
from extproc.core.prompt import Chain
from extproc.core.shared import Shared
from extproc.core.truth import Truth
from extproc.core.verdicts import Verdicts
from tests.unit.test_truth import Desk, chain, filled, longer

A = "10.0.0.1:8000"


def test_what_is_found_after_all_takes_back_what_a_watcher_was_sure_of() -> None:
    desk = Desk()
    alive = filled(desk, 10)
    desk.truth.role = lambda: WATCHER
    for hashes in alive[:3]:
        desk.run(longer(hashes), 0)
    for hashes in alive[3:9]:  # used before the first miss
        desk.run(longer(hashes), 42 * 256)
    desk.truth.role = lambda: ALONE
    desk.run(longer(alive[9]), 42 * 256)
    assert desk.truth.view(0).emptied == 0


def test_a_watchers_engine_that_counts_hits_itself_is_found_emptied_by_the_next_judge() -> None:
    desk = Desk()
    prompt = chain(50, 51, 52)
    desk.run(prompt, None)
    desk.truth.role = lambda: WATCHER
    for window in range(40):
        desk.truth.sampled(0, 768.0 * 4 * min(window, 8), None, desk.now)
        for _ in range(4):
            desk.run(prompt, None)
    desk.truth.role = lambda: ALONE
    desk.truth.sampled(0, 768.0 * 4 * 8, None, desk.now)
    assert (desk.truth.view(0).emptied, desk.depth(prompt)) == (1, 0)
    assert desk.truth.scales == {}, "it was emptied, not wrong all the time"


# -- alone, and together again ---------------------------------------------------------------------------


class Gate:
    """A gateway's books, and a pool of one replica of 4,000 KiB and more."""

    def __init__(self, number: int, role: str) -> None:
        self.pool = Pool("chat", now=0.0, distrust=0.5)
        self.replica = self.pool.join(A, 0.0)
        assert self.pool.feedback is not None
        self.truth: Truth = self.pool.feedback.truth
        self.truth.tells_later = True
        self.become(role)
        self.shared = Shared([self.pool], (f"gw-{number}", number))
        self.news = Verdicts([self.pool], lambda: None)
        self.number, self.seq, self.key = number, 0, 0

    def become(self, role: str) -> None:
        """It judges, watches or is alone from now on."""
        self.truth.role = lambda: role

    def send(self, prompt: Chain, cached: int, now: float) -> None:
        """A prompt goes to the replica, and ends."""
        self.key += 1
        self.truth.expect(self.key, 0, prompt, 0.25, now)
        self.pool.place(self.replica, [prompt], now)
        self.truth.observe(self.key, 256.0 * len(prompt.hashes), cached, now + 0.5)

    def tell(self, token: int) -> Batch:
        """What it found alone, as the journal has it."""
        for _, ruling in self.truth.found_alone():
            self.news.ruled(self.pool, self.replica, token, ruling)
        rows: dict[Engine, int] = {}
        batch = Batch(f"gw-{self.number}", self.number, self.seq)
        self.news.add(batch, rows)
        batch.engines = list(rows)
        self.seq += 1
        return batch

    def depth(self, prompt: Chain) -> int:
        return self.pool.index.match(prompt.hashes).get(0, 0)


def emptied_alone(gate: Gate) -> list[Chain]:
    """It warms ten prompts of 40 hashes, then two of them are gone; and one more is sent after."""
    prompts = [chain(*range(100 * i + 1, 100 * i + 41)) for i in range(10)]
    now = 0.0
    for cached in (0, 40 * 256, 40 * 256):
        for prompt in prompts:
            gate.send(prompt, cached, now := now + 1)
    for prompt in prompts[:2]:
        gate.send(prompt, 0, now := now + 1)
    assert gate.truth.view(0).emptied == 1
    gate.send(prompts[2], 0, now + 1)
    return prompts


def test_what_one_found_alone_is_cleared_by_all_and_counted_once() -> None:
    alone, other = Gate(1, ALONE), Gate(2, WATCHER)
    prompts = emptied_alone(alone)
    for prompt in prompts:
        other.pool.place(other.replica, [prompt], 1.0)
    alone.become(WATCHER)
    batch = alone.tell(0)
    assert [(row.token, row.emptied) for row in batch.ruled] == [(0, True)]
    for gate in (alone, other):
        gate.shared.hear(batch, (1, 0), 50.0)
        assert [gate.depth(prompt) for prompt in prompts] == [40] * 3 + [0] * 7, (
            "but for what filled it again"
        )
        assert gate.truth.view(0).emptied == 1
    assert not alone.tell(0).ruled, "it is told once"


def test_of_who_found_it_alone_nothing_counts_but_that_it_was_emptied() -> None:
    gate = Gate(1, WATCHER)
    engines = [Engine("chat", A)]
    batch = Batch("gw-2", 2, 0, engines=engines, ruled=[Ruled(0, 0, 12, 0.25, True)])
    gate.shared.hear(batch, (1, 0), 1.0)
    view = gate.truth.view(0)
    assert (view.emptied, view.scale, view.believed) == (1, 1.0, view.configured)
    assert gate.truth.scales == {}


def test_what_another_told_meanwhile_is_not_told_again() -> None:
    gate = Gate(1, ALONE)
    emptied_alone(gate)
    gate.become(WATCHER)
    batch = Batch("gw-2", 2, 0, engines=[Engine("chat", A)], ruled=[Ruled(0, 5, 32, 1.0, True)])
    gate.shared.hear(batch, (1, 0), 50.0)
    assert gate.truth.view(0).emptied == 1, "it is the same"
    assert gate.truth.found_alone() == []


def test_who_was_alone_goes_by_what_the_judge_says_also_where_that_concluded_nothing() -> None:
    judge, alone = Gate(1, JUDGE), Gate(2, ALONE)
    said = judge.truth.rulings()
    assert said == [(0, Ruling(32, 1.0, False, []))]
    for number in range(40):  # each was believed to be held whole, and none was
        prompt = chain(number + 1, 1000 + number)
        alone.pool.place(alone.replica, [prompt], 1.0)
        alone.send(prompt, 0, 2.0)
    assert alone.truth.view(0).scale < 1.0
    alone.become(WATCHER)
    row = Ruled(0, 7, said[0][1].step, said[0][1].scale)
    alone.shared.hear(Batch("gw-1", 1, 0, engines=[Engine("chat", A)], ruled=[row]), (2, 0), 50.0)
    view = alone.truth.view(0)
    assert (view.scale, view.believed, alone.truth.scales) == (1.0, view.configured, {})


def test_what_fills_a_cache_again_before_it_is_told_is_bounded() -> None:
    gate = Gate(1, ALONE)
    emptied_alone(gate)
    for number in range(200):
        gate.send(chain(10_000 + number), 0, 60.0)
    (_, ruling), *_ = gate.truth.found_alone()
    assert ruling.emptied
    assert len(ruling.kept) == 64


def test_what_a_gateway_placed_after_it_told_stays() -> None:
    alone, other = Gate(1, ALONE), Gate(2, WATCHER)
    emptied_alone(alone)
    alone.become(WATCHER)
    batch = alone.tell(0)
    later = Batch("gw-1", 1, 5, engines=[Engine("chat", A)], placed=[
        Placed(99, 0, 1.0, 1, 0.0, [pack_chain(chain(7, 8))])
    ])  # fmt: skip
    other.shared.hear(later, (5, 0), 51.0)
    other.shared.hear(batch, (1, 0), 51.0)  # read late
    assert other.depth(chain(7, 8)) == 2

"""Who is believed to hold which prefix: a bounded LRU for every replica behind one shared table.

Layout, chosen for memory (CPython 3.11, 1 million (hash, replica) pairs):

* one dict maps a hash to a *packed* int with four bits a slot (a slot is one replica): 0 = not held,
  1..15 = the epoch in which that replica last used it. Equal packed values are one shared object, since
  neighbouring hashes of a chain are nearly always held by the same replicas.
* each slot keeps, for every epoch, an array of the hashes used in it and their weights. That is the LRU:
  evicting means reading the oldest epoch's array; a hash used again since carries another epoch and is
  passed over.

An epoch ends when an eighth of the slot's capacity has been used in it, what was held before counting half, or when a
thirteenth of the TTL has passed, so eviction follows true least-recent-use to within a fourth of the cache.
"""

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate, repeat
from typing import Final

from extproc.core.lru import BITS, EPOCHS, Slot, compact, drop, drop_few, take_out
from extproc.core.prompt import Chain
from extproc.core.runs import SHORT, UNIT_SHIFT, Run, first_mentions, runs_of, weights_of

#: An epoch takes this share of the capacity: 8 epochs of new entries fill a cache and 15 exist, so the ring does not
#: come round before the size bound has evicted. What is used again counts half, once an epoch: not at all, and
#: sessions that come back with a little more each time would all be in one epoch, of which chance says what goes
#: first; in full, and the ring would come round to what a cache with room still holds.
_EPOCH_SHARE = 8
#: Epochs a TTL is divided into; two fewer than exist: the current one and the one being filled next.
_TTL_EPOCHS = EPOCHS - 2
#: By an epoch's number all of them, from the one that is longest ago to itself.
_OLDEST_FIRST: Final = [
    [(epoch + step) % EPOCHS + 1 for step in range(EPOCHS)] for epoch in range(EPOCHS + 1)
]
#: Shared packed values and masks kept for reuse; when full they are dropped, which costs sharing, not truth.
_SHARED = 16_384
#: Stale mentions allowed in a slot's arrays before they are rebuilt: as many as live ones, and this many.
_SLACK = 1024


#: Who holds a prefix of a chain, as (depth, slots): these hold its first `depth` hashes and not the next.
Holders = list[tuple[int, tuple[int, ...]]]
#: A chain's hashes, the different packed values of those that come before the first that nobody holds, and how many
#: these are.
_Look = tuple[Iterable[int] | None, list[int], int]
_NO_LOOK: Final[_Look] = (None, [], 0)


class PrefixIndex:
    """Prefix hashes and the slots that hold them. Weights and capacities are bytes of prompt.

    Args:
        ttl: seconds after which an entry that was not used is dropped, to within a thirteenth.
        max_count: most hashes one slot may hold, whatever their weight.
    """

    def __init__(self, ttl: float, max_count: int = 1_000_000) -> None:
        self._ttl = ttl
        self._epoch_span = ttl / _TTL_EPOCHS
        self._max_count = max_count
        self._held: dict[int, int] = {}
        self._slots: dict[int, Slot] = {}
        self._free: list[int] = []
        self._shared: dict[int, int] = {}
        self._masks: dict[int, int] = {}
        self._members: dict[int, tuple[int, ...]] = {}
        #: What `holders` found last; _NO_LOOK once a hash has other holders since.
        self._look: _Look = _NO_LOOK

    def __len__(self) -> int:
        """Number of (hash, slot) pairs held."""
        return sum(slot.count for slot in self._slots.values())

    # -- slots -----------------------------------------------------------------------------------------

    def add_slot(self, capacity: int, now: float) -> int:
        """Open a slot for one replica's incarnation and return its number. `capacity` in bytes."""
        number = self._free.pop() if self._free else len(self._slots)
        self._slots[number] = Slot(number, capacity, now)
        return number

    def set_capacity(self, number: int, capacity: int) -> None:
        """Change what a slot may hold, in bytes; a smaller one evicts at once."""
        slot = self._slots[number]
        slot.capacity = capacity >> UNIT_SHIFT
        if slot.size > slot.capacity:
            self._shrink(slot)

    def remove_slot(self, number: int) -> None:
        """Forget everything a slot held. Unknown numbers are ignored."""
        slot = self._slots.pop(number, None)
        if slot is None:
            return
        for epoch in range(1, EPOCHS + 1):
            self._drop(slot, epoch, slot.hashes[epoch], slot.weights[epoch])
        self._free.append(number)

    def size(self, number: int) -> int:
        """Bytes of prompt the slot is believed to hold, rounded up by at most 63 for each hash."""
        return self._slots[number].size << UNIT_SHIFT

    def fill(self, number: int) -> float:
        """Share of its capacity that the slot is believed to hold, 0..1; beyond, what comes evicts."""
        slot = self._slots[number]
        return slot.size / slot.capacity if slot.size < slot.capacity else 1.0

    def count(self, number: int) -> int:
        """Hashes the slot is believed to hold."""
        return self._slots[number].count

    # -- reading ---------------------------------------------------------------------------------------

    def match(self, hashes: Iterable[int]) -> dict[int, int]:
        """For each slot that holds a prefix of the chain: how many leading hashes it holds (at least 1)."""
        return {slot: depth for depth, slots in self.holders(hashes) for slot in slots}

    def holders(self, hashes: Iterable[int]) -> Holders:
        """Who holds a prefix of the chain, as (depth, slots): these hold its first `depth` hashes and not the next.

        Depths rise from 1 on, slots too; every holder is in one of the groups.
        """
        masks, members = self._masks, self._members
        found: Holders = []
        values: list[int] = []
        alive = depth = 0
        previous: int | None = 0  # what no hash is kept with
        for packed in map(self._held.get, hashes):
            if packed is not previous:  # the same object: the same holders as one hash before
                if packed is None:
                    break
                values.append(packed)
                mask = masks.get(packed) or self._mask(packed)
                if not depth:
                    alive = mask
                elif gone := alive & ~mask:
                    found.append((depth, members.get(gone) or self._slots_in(gone)))
                    alive &= mask
                    if not alive:
                        return found
                previous = packed
            depth += 1
        self._look = hashes, values, depth
        if alive:
            found.append((depth, members.get(alive) or self._slots_in(alive)))
        return found

    def who(self, key: int) -> tuple[int, ...]:
        """Slots that hold a hash."""
        packed = self._held.get(key)
        return () if packed is None else self._slots_in(self._masks.get(packed) or self._mask(packed))

    def _mask(self, packed: int) -> int:
        """One bit (the lowest of its four) for every slot that holds the hash."""
        folded = packed | packed >> 2
        folded |= folded >> 1
        ones = int("1" * ((packed.bit_length() + BITS - 1) // BITS), 16)
        mask = folded & ones
        if len(self._masks) >= _SHARED:
            self._masks.clear()
        self._masks[packed] = mask
        return mask

    def _slots_in(self, mask: int) -> tuple[int, ...]:
        if len(self._members) >= _SHARED:
            self._members.clear()
        members = self._members[mask] = tuple(_bits(mask))
        return members

    # -- writing ---------------------------------------------------------------------------------------

    def place(self, number: int, chain: Chain, now: float) -> int:
        """Note that a slot holds, or is about to hold, every hash of the chain.

        Unknown slots are ignored, and so are chains that no cache of its size can hold.

        Returns:
            How many leading hashes the slot held before: what `match` would have said, without another walk.
        """
        slot = self._slots.get(number)
        hashes, ends = chain
        if slot is None or ends[-1] >> UNIT_SHIFT > slot.capacity:
            return 0  # a prompt larger than the cache leaves nothing of itself, and must not evict all else
        if slot.added * _EPOCH_SHARE >= slot.capacity or now - slot.began[slot.epoch] > self._epoch_span:
            self._next_epoch(slot, now)
        # A prompt is placed a moment after `holders` looked for it, so what that found is not looked up again: mostly
        # its known hashes all carry the stamp already, as those of a session that comes back.
        looked, values, depth = self._look
        if looked is not hashes:
            depth = -1
        else:
            mine, stamp = slot.mine, slot.stamp
            for packed in values:
                if packed & mine != stamp:
                    depth = -1
                    break
            if depth == len(hashes):
                return depth
        if depth >= 0 and self._held.keys().isdisjoint(hashes[depth:]):
            held = self._mark_runs(slot, hashes, ends, [(depth, len(hashes), 0)], depth)
        else:
            held = self._mark(slot, hashes, ends)
        if slot.size > slot.capacity or slot.count > self._max_count:
            self._shrink(slot)
        return held

    def _mark(self, slot: Slot, hashes: list[int], ends: list[int]) -> int:
        """Stamp every hash of a chain with the slot's epoch; returns how many leading hashes were held."""
        runs = runs_of(list(map(self._held.get, hashes)))
        # Mentions of one hash have one object as their holders, so two runs side by side share no hash.
        if len(runs) > 2 and len(set(hashes)) < len(hashes):
            hashes, ends = first_mentions(hashes, ends)
            runs = runs_of(list(map(self._held.get, hashes)))
        return self._mark_runs(slot, hashes, ends, runs)

    def _mark_runs(
        self, slot: Slot, hashes: list[int], ends: list[int], runs: list[Run], held: int = 0
    ) -> int:
        """Stamp what does not carry the stamp already; the first `held` hashes, before these runs, do."""
        table, mine, stamp, epoch = self._held, slot.mine, slot.stamp, slot.epoch
        for start, stop, before in runs:
            if (ours := before & mine) and start == held:
                held = stop
            if ours == stamp:
                continue
            run, packed = hashes[start:stop], before ^ ours | stamp
            if before and len(set(run)) < len(run):
                return self._mark(slot, *first_mentions(hashes, ends))
            marked = self._shared.get(packed) or self._share(packed)
            self._look, known = _NO_LOOK, len(table)
            for key in run:  # quicker than `dict.update` and `dict.fromkeys`
                table[key] = marked
            if not before and len(table) - known < len(run):
                deque(map(table.pop, set(run)), maxlen=0)
                return self._mark(slot, *first_mentions(hashes, ends))
            weights = weights_of(ends, start, stop)
            total = sum(weights)
            slot.hashes[epoch].fromlist(run)
            slot.weights[epoch].fromlist(weights)
            if ours:  # an older mention of each stays behind
                slot.added += total // 2
                slot.stale += len(run)
            else:
                slot.added += total
                slot.size += total
                slot.count += len(run)
        return held

    def _share(self, packed: int) -> int:
        if len(self._shared) >= _SHARED:
            self._shared.clear()
        return self._shared.setdefault(packed, packed)

    def expire(self, now: float) -> None:
        """Drop what was not used for the TTL. Call it every few seconds; it also ends idle slots' epochs."""
        for slot in self._slots.values():
            if now - slot.began[slot.epoch] > self._epoch_span:
                self._next_epoch(slot, now)
            for step in range(1, EPOCHS):
                epoch = (slot.epoch + step - 1) % EPOCHS + 1
                # An epoch's entries were last used before the next epoch began.
                if now - slot.began[epoch % EPOCHS + 1] < self._ttl:
                    break
                self._drop_epoch(slot, epoch)

    def forget(self, number: int, hashes: Sequence[int]) -> None:
        """Take back single beliefs of one slot: it turned out not to hold these hashes."""
        slot, mine = self._slots.get(number), EPOCHS << (BITS * number)
        if slot is None:
            return
        shift = BITS * number
        found: dict[int, set[int]] = {}  # epoch -> hashes that were used in it last
        for key in hashes:
            epoch = (self._held.get(key, 0) & mine) >> shift
            if epoch:
                found.setdefault(epoch, set()).add(key)
        slot.forgot = slot.forgot or bool(found)
        for epoch, wanted in found.items():
            self._drop(slot, epoch, *take_out(slot.hashes[epoch], slot.weights[epoch], wanted))

    # -- copies ----------------------------------------------------------------------------------------

    def dump(self, number: int, now: float) -> list[tuple[int, float, "array[int]", "array[int]"]]:
        """What a slot holds, newest first: epochs back from now, age of the epoch (s), hashes and their weights.

        A hash used again since is mentioned twice; its first mention, the newest, counts.
        """
        slot, found = self._slots[number], []
        for back in range(EPOCHS - 1):
            epoch = (slot.epoch - 1 - back) % EPOCHS + 1
            if slot.hashes[epoch]:
                age = max(now - slot.began[epoch], 0.0)
                found.append((back, age, *self._mentioned(slot, epoch)))
        return found

    def _mentioned(self, slot: Slot, epoch: int) -> tuple["array[int]", "array[int]"]:
        """A copy of an epoch's hashes and weights, without what was taken back since."""
        hashes, weights = slot.hashes[epoch], slot.weights[epoch]
        if not slot.forgot:
            return hashes[:], weights[:]
        kept = [pair for pair in zip(hashes, weights, strict=True) if self._held.get(pair[0], 0) & slot.mine]
        return array("Q", [key for key, _ in kept]), array("H", [weight for _, weight in kept])

    def restore(
        self, number: int, back: int, age: float, hashes: "array[int]", weights: "array[int]", now: float
    ) -> int:
        """Take in a part of a dump, newest parts first; returns how many hashes were new to the slot.

        What the slot knows better, since it was used here, stays; of the rest, what would not fit is left out.
        Distinct hashes below 2**60 are the caller's to give.
        """
        slot = self._slots.get(number)
        if slot is None or not 0 <= back < EPOCHS - 1:
            return 0
        if slot.forgot:  # else an older mention of what was taken back would count beside the new one
            compact(self._held, slot)
        epoch = (slot.epoch - 1 - back) % EPOCHS + 1
        mine, stamp = EPOCHS << BITS * number, epoch << BITS * number
        found = list(map(self._held.get, hashes, repeat(0)))
        if any(found):
            new = [(k, w, p) for k, w, p in zip(hashes, weights, found, strict=True) if not p & mine]
            hashes, weights = array("Q", [k for k, _, _ in new]), array("H", [w for _, w, _ in new])
            found = [p for _, _, p in new]
        if slot.size + sum(weights) > slot.capacity or slot.count + len(hashes) > self._max_count:
            fits = bisect_right(list(accumulate(weights)), slot.capacity - slot.size)
            fits = max(min(fits, self._max_count - slot.count), 0)
            hashes, weights, found = hashes[:fits], weights[:fits], found[:fits]
        self._look = _NO_LOOK
        pairs = zip(hashes, found, strict=True)
        self._held.update((key, self._share(packed | stamp)) for key, packed in pairs)
        slot.hashes[epoch].extend(hashes)
        slot.weights[epoch].extend(weights)
        slot.size += sum(weights)
        slot.count += len(hashes)
        slot.began[epoch] = min(slot.began[epoch], now - age)
        return len(hashes)

    # -- eviction --------------------------------------------------------------------------------------

    def _next_epoch(self, slot: Slot, now: float) -> None:
        epoch = slot.epoch = slot.epoch % EPOCHS + 1
        slot.stamp = epoch * slot.unit
        slot.began[epoch], slot.added = now, 0
        if slot.hashes[epoch]:  # what still carries the coming number is the oldest
            self._drop_epoch(slot, epoch)
        if slot.stale > slot.count + _SLACK:  # at most so many are; some went with their epochs
            slot.stale = sum(map(len, slot.hashes)) - slot.count
            if slot.stale > slot.count + _SLACK:
                compact(self._held, slot)

    def _shrink(self, slot: Slot) -> None:
        """Evict oldest entries until the slot is within its bounds; within an epoch, a chain's end first."""
        for epoch in _OLDEST_FIRST[slot.epoch]:
            hashes, weights = slot.hashes[epoch], slot.weights[epoch]
            if not hashes:
                continue
            while hashes and (slot.size > slot.capacity or slot.count > self._max_count):
                self._drop(slot, epoch, hashes[-256:], weights[-256:])
                del hashes[-256:], weights[-256:]
            if slot.size <= slot.capacity and slot.count <= self._max_count:
                return

    def _drop_epoch(self, slot: Slot, epoch: int) -> None:
        hashes, weights = slot.hashes[epoch], slot.weights[epoch]
        slot.hashes[epoch], slot.weights[epoch] = array("Q"), array("H")
        self._drop(slot, epoch, hashes, weights)

    def _drop(self, slot: Slot, epoch: int, hashes: "array[int]", weights: "array[int]") -> None:
        self._look = _NO_LOOK
        (drop_few if len(hashes) <= SHORT else drop)(self._held, self._share, slot, epoch, hashes, weights)


def _bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() // BITS
        mask ^= low

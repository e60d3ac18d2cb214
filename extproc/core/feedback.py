"""What a pool learns from how its requests ended: true token counts, true cache hits, lengths of answers.

Every lesson is optional: an ending that says nothing teaches nothing, and what it does say is checked before it is
believed (core/usage/record.py, core/truth.py, core/ratios.py, core/output.py). Caches are compared with every
request; of token counts and lengths only so many a second are taken (core/pace.py).
"""

from typing import TYPE_CHECKING, Final

from extproc.core.comparisons import Comparisons
from extproc.core.ending import CLIENT, UPSTREAM, Ending
from extproc.core.index import PrefixIndex
from extproc.core.output import OutputLengths
from extproc.core.pace import Pace
from extproc.core.ratios import Ratios
from extproc.core.truth import Truth
from extproc.core.usage.record import Usage

if TYPE_CHECKING:
    from extproc.core.decide import Decision
    from extproc.core.fleet import Replica
    from extproc.core.prompt import Prompt

#: Status from which on an answer is an error.
_ERROR: Final = 400
#: Status from which on it is the server's fault.
_FAULT: Final = 500
#: Characters of a model's name; of longer ones nothing is learned (core/ratios.py, core/output.py).
_NAME: Final = 256


class Feedback:
    """The lessons of one pool.

    Args:
        index: of the pool; what was wrongly believed is taken out of it.
        output: lengths of answers of the pool.
        ratios: tokens per byte of the pool.
        distrust: share 0..1 of the predicted cached tokens under which a replica is distrusted (F3).
    """

    __slots__ = ("_compared", "_output", "_pace", "_ratios", "scales")

    def __init__(self, index: PrefixIndex, output: OutputLengths, ratios: Ratios, distrust: float) -> None:
        truth = Truth(index, distrust)
        self._compared = Comparisons(truth, index)
        #: As `Truth.scales`, up to what waits: asked for every request.
        self.scales = truth.scales
        self._output = output
        self._ratios = ratios
        self._pace = Pace()

    @property
    def truth(self) -> Truth:
        """What is known of the pool's caches, with all that happened."""
        return self._compared.truth

    def catch_up(self) -> None:
        """Learn what waits. Call it every tenth of a second or so."""
        self._compared.catch_up()

    def bound(self, decision: "Decision", replica: "Replica") -> None:
        """A decision is bound to a replica and its prompt not yet placed in the index.

        Usage tells of all prompts of a batch together, so a batch says nothing of any one prompt's cache.

        What a decision found in the index holds until it is bound; one that is bound again asks anew.
        """
        prompt, slot, holders = decision.prompt, replica.slot, decision.holders
        if prompt is not None and len(prompt.chains) == 1:
            held = None
            if holders is not None:
                held = 0
                for depth, slots in holders:
                    if slot in slots:
                        held = depth
                        break
            self._compared.sent(decision.key, slot, prompt.chains[0], decision.ratio, decision.at, held)

    def first_token(self, key: int) -> None:
        """The prompt of an exchange is computed."""
        self._compared.computed(key)

    def ended(self, decision: "Decision", ending: Ending | None, now: float) -> None:
        """The exchange is over. Call it before the chains of its prompt are dropped."""
        usage = ending.usage if ending is not None else None
        prompt, replica = decision.prompt, decision.replica
        if prompt is None or replica is None:
            return
        if ending is not None and _is_elsewhere(ending, replica):
            self._compared.void(decision.key)
            _served_elsewhere(decision, ending.served, now)
        elif ending is not None and _never_computed(ending):
            self._compared.void(decision.key, refused=_is_refusal(ending))
        elif usage is not None:
            self._compared.ended(decision.key, usage.input, usage.cached, now)
        else:
            self._compared.ended(decision.key, None, None, now)
        if usage is not None:
            cut = ending is not None and ending.by == CLIENT
            if len(prompt.model) <= _NAME and self._pace.due(
                (prompt.model, prompt.dialect, prompt.script, cut), now
            ):
                self._learn(decision, prompt, usage, cut=cut)

    def _learn(self, decision: "Decision", prompt: "Prompt", usage: Usage, *, cut: bool) -> None:
        # Token ids are exact, and images are no text. Many prompts in one have as many templates.
        if usage.input is not None and len(prompt.chains) == 1 and prompt.is_text:
            self._ratios.observe(prompt.model, prompt.script, prompt.size, usage.input)
        if usage.output is not None and prompt.kind == "generate" and not cut:
            each = usage.output / prompt.n
            self._output.observe(prompt.model, prompt.dialect, decision.tokens, each, prompt.max_output)


def unlearned(decision: "Decision", ending: Ending | None, now: float) -> None:
    """An exchange is over of a pool that learns nothing of caches: who served it holds its prompt all the same.

    Where it was sent and not computed, what it brought is forgotten, and with that what another one brought there
    meanwhile of the same: nothing is kept of prompts on their way, and the next one places it again.
    """
    prompt, replica, pool = decision.prompt, decision.replica, decision.pool
    if ending is None or prompt is None or replica is None:
        return
    is_elsewhere = _is_elsewhere(ending, replica)
    if not is_elsewhere and not _never_computed(ending):
        return
    for chain, held in zip(prompt.chains, decision.before, strict=False):
        if pool.get(replica.address) is replica and held < len(chain.hashes):
            pool.index.forget(replica.slot, chain.hashes[held:])
            pool.on_forgot(replica.slot, chain.hashes[held:])
    if is_elsewhere:
        _served_elsewhere(decision, ending.served, now)


def _is_elsewhere(ending: Ending, replica: "Replica") -> bool:
    return ending.served != replica.address and ending.served != ""


def _served_elsewhere(decision: "Decision", served: str, now: float) -> None:
    """Envoy tried again at another replica: that one computed the prompt, and holds it now."""
    decision.pool.retried += 1
    replica = decision.pool.get(served)
    if replica is not None and decision.prompt is not None:
        decision.pool.place(replica, decision.prompt.chains, now)


def _is_refusal(ending: Ending) -> bool:
    """Whether an engine answered that it won't: a fault of the request's, or its time has not come."""
    told = not ending.unreached and ending.by != UPSTREAM
    return told and ending.status is not None and _ERROR <= ending.status < _FAULT


def _never_computed(ending: Ending) -> bool:
    """Whether the prompt reached no replica, or failed there before it was in the cache, as far as can be told."""
    if ending.unreached or (ending.uncomputed and not ending.reached):
        return True
    is_failed = (ending.status is not None and ending.status >= _ERROR) or ending.by == UPSTREAM
    return is_failed and ending.first_token is None

"""How long an answer will be, learned from what came back (R14).

Lengths are kept per model, kind of request and size of the prompt. The prediction is a mean, not a quantile: what
is made of it, tokens charged and seconds in a running slot, is linear in the length, and lengths are skewed, so a
median would charge less than what comes. What could make a mean wrong is met:

- An answer cut off at the request's limit only says "at least so long". For lengths whose chance to end is the same
  at every token, the best estimate is all tokens seen over the number of answers that ended by themselves (total
  time on test over failures; Epstein and Sobel, 1953), which is what is kept.
- One huge answer counts for at most _MOST_TIMES of what was believed.
- Few answers say little: each level counts the one above it (size -> kind -> model -> the setting) like _PRIOR
  answers. So the first prediction is the setting, and a size never seen gets its kind's.
- Traffic changes: old answers fade over _SPAN newer ones.
"""

from typing import Final

#: Answers that the level above counts for: enough that one or two don't turn a prediction over.
_PRIOR: Final = 8.0
#: Answers after which one has faded to 1/e.
_SPAN: Final = 200.0
#: Most that one answer counts, as a multiple of what was believed; _LEAST tokens are always believed.
_MOST_TIMES: Final = 8.0
_LEAST: Final = 64.0
#: Sizes of prompts that are told apart: below 256, 1k, 4k, 16k, 64k tokens, and more.
_SIZES: Final = 6
#: Bounds on what clients can make it keep: models, kinds of a model, characters of a model's name.
_MODELS: Final = 256
_KINDS: Final = 16
_NAME: Final = 256


#: Output tokens seen, and answers that ended by themselves.
Sums = tuple[float, float]
#: A model, its sums, and for each kind its name, its sums, and those of each size of prompt.
Told = tuple[str, Sums, list[tuple[str, Sums, list[Sums]]]]


class _Mean:
    """Tokens seen and answers that ended by themselves, both fading."""

    __slots__ = ("_ends", "_tokens")

    def __init__(self) -> None:
        self._tokens = self._ends = 0.0

    def add(self, tokens: float, ended: float) -> None:
        keep = 1.0 - 1.0 / _SPAN
        self._tokens = self._tokens * keep + tokens
        self._ends = self._ends * keep + ended

    def over(self, believed: float) -> float:
        """The mean, where `believed` counts like _PRIOR answers."""
        return (self._tokens + _PRIOR * believed) / (self._ends + _PRIOR)

    def add_all(self, tokens: float, ended: float) -> None:
        """What another gateway saw, for at most as much as answers of its own that don't fade."""
        share = min(_SPAN / ended, 1.0) if ended > 0 else 1.0
        self._tokens += tokens * share
        self._ends += ended * share

    @property
    def sums(self) -> Sums:
        """Tokens and ends."""
        return self._tokens, self._ends


class _Kind:
    __slots__ = ("mean", "predicted", "sizes")

    def __init__(self, believed: float) -> None:
        self.mean = _Mean()
        self.sizes = [_Mean() for _ in range(_SIZES)]
        self.predicted = [believed] * _SIZES


class _Model:
    __slots__ = ("kinds", "mean", "predicted")

    def __init__(self, believed: float) -> None:
        self.mean = _Mean()
        self.kinds: dict[str, _Kind] = {}
        self.predicted = believed


class OutputLengths:
    """Predicts output tokens of one choice, for the models of a pool.

    Args:
        usual: output tokens assumed before anything came back; above 0.
        models: most models that are remembered; the one longest without an answer goes first.
    """

    __slots__ = ("_known", "_most", "usual")

    def __init__(self, usual: float, models: int = _MODELS) -> None:
        self.usual = float(usual)
        self._most = models
        self._known: dict[str, _Model] = {}  # in the order of their last answers

    def __len__(self) -> int:
        """Models remembered."""
        return len(self._known)

    def predict(self, model: str, kind: str, prompt_tokens: float) -> float:
        """Output tokens to expect of one choice, whatever its limit; above 0."""
        known = self._known.get(model)
        if known is None:
            return self.usual
        of_kind = known.kinds.get(kind)
        return known.predicted if of_kind is None else of_kind.predicted[_size(prompt_tokens)]

    def observe(
        self, model: str, kind: str, prompt_tokens: float, output_tokens: float, limit: int | None = None
    ) -> None:
        """An answer came back complete. Nonsense (negative, NaN) is ignored.

        Args:
            model: as the request named it.
            kind: from a closed set; the request's API (`Prompt.dialect`) where `decide` asks.
            prompt_tokens: of the request.
            output_tokens: of one choice.
            limit: the request's own limit, so that an answer cut off there is known for one.
        """
        if not 0 <= output_tokens < 1e9 or len(model) > _NAME:
            return
        known = self._touch(model)
        believed = max(self.predict(model, kind, prompt_tokens), _LEAST)
        tokens = min(output_tokens, _MOST_TIMES * believed)
        ended = 0.0 if limit is not None and output_tokens >= limit else 1.0
        known.mean.add(tokens, ended)
        known.predicted = known.mean.over(self.usual)
        of_kind = known.kinds.get(kind)
        if of_kind is None:
            if len(known.kinds) >= _KINDS:
                return
            of_kind = known.kinds[kind] = _Kind(known.predicted)
        of_kind.mean.add(tokens, ended)
        of_kind.sizes[_size(prompt_tokens)].add(tokens, ended)
        over_all = of_kind.mean.over(known.predicted)
        of_kind.predicted = [mean.over(over_all) for mean in of_kind.sizes]

    def told(self, most: int) -> list[Told]:
        """What was learned of at most so many models, those with the newest answers last."""
        return [
            (model, known.mean.sums, [
                (kind, each.mean.sums, [mean.sums for mean in each.sizes]) for kind, each in known.kinds.items()
            ])
            for model, known in list(self._known.items())[-most:]
        ]  # fmt: skip

    def hear(self, told: list[Told]) -> None:
        """Add what another gateway learned, once.

        Sums are finite and not negative; other nonsense is ignored.
        """
        for model, sums, kinds in told:
            if len(model) > _NAME or (model not in self._known and len(self._known) >= self._most):
                continue
            known = self._touch(model)
            known.mean.add_all(*sums)
            known.predicted = known.mean.over(self.usual)
            for kind, of_kind, sizes in kinds:
                if len(sizes) == _SIZES and (kind in known.kinds or len(known.kinds) < _KINDS):
                    self._hear_kind(known, kind, of_kind, sizes)

    def _hear_kind(self, known: _Model, kind: str, sums: Sums, sizes: list[Sums]) -> None:
        mine = known.kinds.setdefault(kind, _Kind(known.predicted))
        mine.mean.add_all(*sums)
        for mean, of_size in zip(mine.sizes, sizes, strict=True):
            mean.add_all(*of_size)
        over_all = mine.mean.over(known.predicted)
        mine.predicted = [mean.over(over_all) for mean in mine.sizes]

    def _touch(self, model: str) -> _Model:
        """The model's entry, now the newest; the oldest goes when there are too many."""
        known = self._known.pop(model, None) or _Model(self.usual)
        self._known[model] = known
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]
        return known


def _size(prompt_tokens: float) -> int:
    """Which of the _SIZES a prompt belongs to: 0 below 256 tokens, then one for each factor of four."""
    size = ((int(prompt_tokens) >> 8).bit_length() + 1) // 2
    return size if size < _SIZES else _SIZES - 1

"""Tokens per byte of text, learned per model and script class from prompts whose token counts came back (F4).

A prompt of b bytes makes a + r * b tokens: r is the ratio, a what the chat template puts around every prompt. Divided
by b, that is a straight line over 1/b, fitted by least squares, so that each prompt's error counts in relation to its
size and a long one says no more than a short one. Two things are known beforehand: a is some tens of tokens, so it
starts at 0 with a weight that one prompt of _TEMPLATE bytes has; r starts at the median of the first prompts with
half a prompt's weight.

- **Fast.** Until _FIRST prompts came the starting ratio holds. Their median then takes its place.
- **Robust.** Of that median, _FIRST / 2 - 1 absurd prompts move nothing. Later a prompt counts as at most _WIDE usual
  errors off the line, 10 % to 100 %: among n it moves the ratio by at most that over n. If everything changes, the
  usual error grows and lets it through.
- **It fades** over _SPAN prompts to 1/e.
- **Bounded.** Most models, scripts of one, and characters of names are given below.

Gateways join what they learned row by row: that with more prompts behind it wins, and between equal ones the larger
as a tuple, so any order, grouping and repetition gives the same.
"""

import math
from collections.abc import Iterable
from statistics import median
from typing import Final, NamedTuple

from extproc.core.prompt import TOKENS_PER_BYTE

#: Prompts whose median is the first estimate.
_FIRST: Final = 8
#: Prompts after which one has faded to 1/e.
_SPAN: Final = 256.0
#: Usual errors that a prompt may be off, and what that is at least and most, as a share of the estimate.
_WIDE: Final = 3.0
_CLIP: Final = (0.1, 1.0)
#: Weight of the ratio at the start, in prompts, and bytes of the one prompt that has the weight of "no template".
_HALF: Final = 0.5
_TEMPLATE: Final = 1000.0
#: Least bytes of a prompt that teaches: below, the template is most of it. Least and most tokens a byte that are
#: believed: byte-level tokenizers make one token a byte, and no merge in use stands for more than 64 bytes of text.
_LEAST_BYTES: Final = 64
_BELIEVED: Final = (1 / 64, 2.0)
#: Share by which a ratio must have moved to be told to others, and most rows told at once.
_MOVED: Final = 0.01
_TOLD: Final = 64
#: Bounds on what clients can make it keep: models, scripts of a model, characters of a name.
_MODELS: Final = 256
_SCRIPTS: Final = 16
_NAME: Final = 256


class Row(NamedTuple):
    """What is known of one model and script: plain words and numbers, for the snapshot and the journal.

    `seen` counts prompts since the beginning; the sums fade. With z = 1 / bytes and u = tokens / bytes:
    `n`, `z`, `zz`, `u`, `zu` are their weighted sums, `start` the median at the beginning, `error` the usual error.
    """

    model: str
    script: str
    seen: int
    start: float
    error: float
    n: float
    z: float
    zz: float
    u: float
    zu: float


class _Line:
    """One model and script."""

    __slots__ = ("_first", "_sums", "error", "ratio", "seen", "start", "template")

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        self.template = 0.0
        self.seen = 0
        self.start = ratio
        self.error = _CLIP[1]
        self._first: list[tuple[float, float]] = []
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)  # n, z, zz, u, zu

    def learn(self, z: float, u: float) -> None:
        """A prompt of 1/z bytes made u tokens a byte."""
        self.seen += 1
        if self.seen > _FIRST:
            self._add(z, u)
            return
        self._first.append((z, u))
        if self.seen == _FIRST:
            self.start = self.ratio = median(u for _, u in self._first)
            self.error = median(abs(u / self.start - 1) for _, u in self._first)
            for old in self._first:
                self._add(*old)
            self._first = []

    def _add(self, z: float, u: float) -> None:
        usual = self.ratio + self.template * z
        off = u / usual - 1
        most = min(max(_WIDE * self.error, _CLIP[0]), _CLIP[1])
        self.error += (min(abs(off), _CLIP[1]) - self.error) / (_SPAN / _FIRST)
        u = usual * (1 + min(max(off, -most), most))
        keep = 1 - 1 / _SPAN
        n, sum_z, sum_zz, sum_u, sum_zu = self._sums
        self._sums = (
            n * keep + 1,
            sum_z * keep + z,
            sum_zz * keep + z * z,
            sum_u * keep + u,
            sum_zu * keep + z * u,
        )
        self._solve()

    def _solve(self) -> None:
        """Least squares of u = ratio + template * z, with what is known beforehand; ratio and template are >= 0."""
        n, z, zz, u, zu = self._sums
        n, u, zz = n + _HALF, u + _HALF * self.start, zz + _TEMPLATE**-2
        ratio, template = (u * zz - z * zu) / (n * zz - z * z), (n * zu - z * u) / (n * zz - z * z)
        if template < 0:
            ratio, template = u / n, 0.0
        elif ratio < _BELIEVED[0]:  # short prompts alone, which differ by chance
            ratio, template = _BELIEVED[0], max(zu - _BELIEVED[0] * z, 0.0) / zz
        self.ratio, self.template = ratio, template

    def row(self, model: str, script: str) -> Row:
        """As a row."""
        return Row(model, script, self.seen, self.start, self.error, *self._sums)

    def take(self, row: Row) -> None:
        """Become what a row says."""
        self.seen, self.start, self.error = row.seen, row.start, row.error
        self._sums, self._first = row[5:], []
        self._solve()


class Ratios:
    """Tokens per byte of the models of a pool.

    Args:
        start: tokens per byte before anything came back; above 0.
        models: most models that are remembered; the one longest without a prompt goes first.
    """

    __slots__ = ("_known", "_lines", "_most", "_told", "_unknown", "start")

    def __init__(self, start: float = TOKENS_PER_BYTE, models: int = _MODELS) -> None:
        self.start = start
        self._unknown = (start, 0.0)
        self._most = models
        self._known: dict[str, dict[str, _Line]] = {}  # in the order of their last prompts
        self._lines: dict[tuple[str, str], tuple[float, float]] = {}  # for reading: ratio and template
        self._told: dict[tuple[str, str], tuple[float, float]] = {}  # the same as others know it

    def __len__(self) -> int:
        """Models remembered."""
        return len(self._known)

    def ratio(self, model: str, script: str = "") -> float:
        """Tokens a byte, above 0: as learned, else as learned of the model's other texts, else the start."""
        return self.line(model, script)[0]

    def line(self, model: str, script: str = "") -> tuple[float, float]:
        """Tokens a byte, and tokens that the template puts around a prompt, 0 and up."""
        lines = self._lines
        return (lines and (lines.get((model, script)) or lines.get((model, "")))) or self._unknown

    def observe(self, model: str, script: str, size: float, tokens: float) -> None:
        """A prompt of `size` bytes, all of them text, was `tokens` tokens. What makes no sense teaches nothing.

        Images and token ids are no text: leave such prompts out. `script` is from a closed set; "" is for texts of
        any kind, and is taught by all of them.
        """
        if not (
            size >= _LEAST_BYTES and math.isfinite(size) and len(model) <= _NAME and len(script) <= _NAME
        ):
            return
        if not _BELIEVED[0] <= tokens / size <= _BELIEVED[1]:
            return
        known = self._touch(model)
        for name in dict.fromkeys(("", script)):
            line = known.get(name)
            if line is None:
                if len(known) >= _SCRIPTS:
                    continue
                line = known[name] = _Line(self.start)
            line.learn(1 / size, tokens / size)
            self._show(model, name, line)

    def export(self) -> list[Row]:
        """Everything that has an estimate, for `restore`."""
        return [
            line.row(model, script)
            for model, known in self._known.items()
            for script, line in known.items()
            if line.seen >= _FIRST
        ]

    def news(self) -> list[Row]:
        """Rows that moved by _MOVED and more since others were told, at most _TOLD; now they count as told."""
        found = []
        for key, line in self._lines.items():
            if _differs(line, self._told.get(key)):
                self._told[key] = line
                model, script = key
                found.append(self._known[model][script].row(model, script))
                if len(found) == _TOLD:
                    break
        return found

    def untold(self) -> None:
        """Somebody may have missed what was told: all of it is news again."""
        self._told.clear()

    def restore(self, rows: Iterable[Row]) -> int:
        """Take in what another gateway, or this one before, has learned; returns how many rows were better.

        A row that is none (wrong types, NaN, impossible sums) is passed over.
        """
        taken = 0
        for row in rows:
            if not _is_sound(row):
                continue
            known = self._touch(row.model)
            line = known.get(row.script)
            if line is None and len(known) < _SCRIPTS:
                line = known[row.script] = _Line(self.start)
            if line is not None and row > line.row(row.model, row.script):
                line.take(row)
                self._show(row.model, row.script, line)
                self._told[row.model, row.script] = line.ratio, line.template
                taken += 1
        return taken

    def _show(self, model: str, script: str, line: _Line) -> None:
        if line.seen >= _FIRST:
            self._lines[model, script] = line.ratio, line.template

    def _touch(self, model: str) -> dict[str, _Line]:
        """The model's lines, now the newest; the oldest model goes when there are too many."""
        known = self._known.pop(model, None) or {}
        self._known[model] = known
        if len(self._known) > self._most:
            oldest = next(iter(self._known))
            for script in self._known.pop(oldest):
                self._lines.pop((oldest, script), None)
                self._told.pop((oldest, script), None)
        return known


def _differs(line: tuple[float, float], told: tuple[float, float] | None) -> bool:
    """Whether a ratio and a template's tokens are news; a template of a whole prompt is some thousand bytes."""
    if told is None:
        return True
    each = told[0] + told[1] / _TEMPLATE
    return abs(line[0] + line[1] / _TEMPLATE - each) > _MOVED * each


def _is_sound(row: Row) -> bool:
    """Whether a row can be what some gateway learned."""
    if len(row) != len(Row._fields) or type(row[0]) is not str or type(row[1]) is not str:
        return False
    if len(row[0]) > _NAME or len(row[1]) > _NAME or type(row[2]) is not int or row[2] < _FIRST:
        return False
    if not all(type(value) is float and math.isfinite(value) and value >= 0 for value in row[3:]):
        return False
    _, _, _, start, error, n, z, zz, u, _ = row
    within = _BELIEVED[0] <= start <= _BELIEVED[1] and error <= _CLIP[1] and 0 < n <= _SPAN + 1
    # What sums of n pairs are: no larger than their bounds allow, and by Cauchy-Schwarz.
    return within and z <= n / _LEAST_BYTES and zz * n >= z * z * (1 - 1e-9) and u <= n * 2 * _BELIEVED[1]

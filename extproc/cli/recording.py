"""Rows of several running gateways as they come, for `kvsteer record`."""

import secrets
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any, Final

import click
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from extproc.cli.admin_port import NotHad, open_url, stranger, understood, why_not
from extproc.cli.answers import LAST, RECORDED
from extproc.cli.terminal import progress
from extproc.sim.recorded import Places, row_of

#: Seconds in which a gateway must say something: it ends by itself half a minute after the time is up.
_SILENCE: Final = 60.0
#: Requests of a trace at most, and bytes of one line of a recording.
_MOST: Final = 1_000_000
_LONGEST_LINE: Final = 4 * 2**20
#: Seconds between looks whether it is over.
_LOOK: Final = 0.25
#: What a gateway's recording is.
_KIND: Final = "application/x-ndjson"


class Recording:
    """Rows of several gateways, each followed by a thread of its own.

    Args:
        urls: admin ports.
        seconds: how long.
        pool: requests of this pool alone; None for all.

    Attributes:
        rows: of the trace, as they came.
        faults: why gateways did not begin; then nothing else counts.
        gone: admin port -> seconds after which its gateway went away, in the middle.
        interrupted: it was ended early.
    """

    def __init__(self, urls: Sequence[str], seconds: float, pool: str | None) -> None:
        self.rows: list[dict[str, Any]] = []
        self.faults: list[str] = []
        self.gone: dict[str, float] = {}
        self.interrupted = False
        self._left_out: dict[str, int] = {}
        self._urls, self._seconds, self._pool = urls, seconds, pool
        self._key, self._began = secrets.token_bytes(16), time.monotonic()
        self._places, self._lock = Places(), threading.Lock()

    @property
    def left_out(self) -> int | None:
        """Requests of which no row was made; None when a gateway did not come to say so."""
        return sum(self._left_out.values()) if self._left_out.keys() == set(self._urls) else None

    def run(self, quiet: bool) -> None:
        """Follow until the time is up or nobody is left, or until Ctrl-C or SIGTERM; what came is kept."""
        threads = [threading.Thread(target=self._follow, args=(url,), daemon=True) for url in self._urls]
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        with _by_signals(), progress(*columns, quiet=quiet) as bars:
            bar = bars.add_task("", total=self._seconds)
            told = 0
            try:
                for thread in threads:
                    thread.start()
                while threads and not self.faults:
                    bars.update(bar, completed=min(self._over(), self._seconds), description=self._said())
                    threads[-1].join(_LOOK)
                    threads = [thread for thread in threads if thread.is_alive()]
                    told = self._tell_gone(told)
            except KeyboardInterrupt:
                self.interrupted = True
                click.echo("interrupted; what came until now is written", err=True)

    def _over(self) -> float:
        return time.monotonic() - self._began

    def _said(self) -> str:
        return f"{len(self.rows):,} requests"

    def _tell_gone(self, told: int) -> int:
        """Say who went away since `told` were; how many there are now."""
        gone = list(self.gone.items())
        for url, after in gone[told:]:
            words = f"kvsteer: gateway {url} went away after {after:.0f} s of {self._seconds:g} s"
            click.echo(f"{words}; what came of it is kept", err=True)
        return len(gone)

    def _follow(self, url: str) -> None:
        path = f"/record?seconds={self._seconds:g}"
        request = urllib.request.Request(url + path)  # noqa: S310 - http(s) only, checked before
        try:
            answer = open_url(request, timeout=_SILENCE)
        except (OSError, HTTPException, ValueError) as error:
            why = str(why_not(url, path, error))
            self.faults.append(why if url in why else f"{url}: {why}")  # a gateway's refusal does not name it
            return
        if answer.headers.get_content_type() != _KIND:
            self.faults.append(str(stranger(url, f"no recording to {path}")))
            return
        late, lines = self._over(), 0
        try:
            with answer:
                for line in _lines(answer, self._began + self._seconds + _SILENCE):
                    self._take(url, line, late)
                    lines += 1
        except NotHad as error:
            if not lines:
                self.faults.append(str(error))
                return
        except (OSError, HTTPException, ValueError):
            pass  # it went away, by which the last line did not come
        if url not in self._left_out:
            self.gone[url] = round(self._over(), 1)

    def _take(self, url: str, line: bytes, late: float) -> None:
        """Keep what a line says. Raises NotHad when it is none of a recording."""
        said = understood(url, line, RECORDED, LAST)
        if "left_out" in said:
            self._left_out[url] = said["left_out"]
        elif self._pool in (None, said["pool"]) and len(self.rows) < _MOST:
            with self._lock:
                try:
                    row = row_of({**said, "at": said["at"] + late}, self._key, self._places)
                except (ValueError, OverflowError):
                    raise stranger(url, "a recording that contradicts itself") from None
                self.rows.append(row)


def _lines(answer: Any, end: float) -> Iterator[bytes]:
    """Lines of an answer, until `end` of the monotonic clock at most. Raises OSError and HTTPException as it."""
    while (line := answer.readline(_LONGEST_LINE)) and time.monotonic() < end:
        if line.strip():
            yield line


@contextmanager
def _by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end it as Ctrl-C does, with KeyboardInterrupt; what is ignored stays so, as by nohup."""
    kept = {}
    if threading.current_thread() is threading.main_thread():
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(each) is not signal.SIG_IGN:
                kept[each] = signal.signal(each, signal.default_int_handler)
    try:
        yield
    finally:
        for each, handler in kept.items():
            signal.signal(each, handler)

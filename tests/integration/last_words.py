"""What the processes that a failed test had started last said, and what the machine was busy with."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakSet

import pytest

from extproc.demo.processes import Child

#: Lines of each process and characters of each line; and of how many processes that have ended they are kept.
_LINES, _WIDTH, _KEPT = 25, 400, 24
#: What Envoy says of parts of its own at every start.
_USUAL = "marked as work-in-progress"


class LastWords:
    """Every process that tests start (extproc.demo.processes.Child): those that run, and the latest that ended."""

    def __init__(self) -> None:
        self._running: WeakSet[Child] = WeakSet()
        self._ended: dict[str, str] = {}

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within it every process is known, and what it said is read before its folder is removed."""
        spawn, kill = Child._spawn, Child.kill

        def spawned(child: Child) -> object:
            self._running.add(child)
            return spawn(child)

        def killed(child: Child) -> None:
            kill(child)
            self._keep(child)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Child, "_spawn", spawned)
            patch.setattr(Child, "kill", killed)
            yield

    def begin(self) -> None:
        """A test begins: what ended before it is none of its business."""
        self._ended.clear()

    def told(self) -> dict[str, str]:
        """Title of a section -> text, for a report."""
        running = {_title(each, "runs" if each.running else "died"): _said(each) for each in self._running}
        said = {**self._ended, **running, "the machine": _load()}
        return {title: text for title, text in said.items() if text}

    def _keep(self, child: Child) -> None:
        self._running.discard(child)
        self._ended[_title(child, "ended")] = _said(child)
        while len(self._ended) > _KEPT:
            self._ended.pop(next(iter(self._ended)))


def _title(child: Child, how: str) -> str:
    return f"{child.name} of {child.log.parent.name} ({how})"


def _said(child: Child) -> str:
    lines = [line[:_WIDTH] for line in child.said(2 * _LINES).splitlines() if _USUAL not in line]
    return "\n".join(lines[-_LINES:])


def _load() -> str:
    """Runnable processes of the last minutes, and how much of the last ten seconds somebody waited for a core."""
    try:
        pressure = Path("/proc/pressure/cpu").read_text().splitlines()[0]
    except OSError:
        pressure = ""
    return f"load average {os.getloadavg()}, {os.cpu_count()} cores; {pressure}"

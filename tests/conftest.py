"""What both parts of the tests share."""

import gc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.compiling import import_turned
from tests.examples import count_of

# How long an example takes is the machine's matter; what must not take long has a test that counts.
settings.register_profile(
    "kvsteer", max_examples=count_of(30), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("kvsteer")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """What collecting makes stays to the end: the garbage collector need not go through it again and again."""
    gc.disable()
    try:
        import_turned(session.config)
        yield
    finally:
        gc.freeze()
        gc.set_threshold(10_000)
        gc.enable()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Tell after a failure how to get the same order again; pytest's header, which says it, is not shown."""
    if exitstatus == pytest.ExitCode.TESTS_FAILED and (seed := config.getoption("randomly_seed", None)):
        terminalreporter.write_line(f"in this order again: --randomly-seed={seed}")

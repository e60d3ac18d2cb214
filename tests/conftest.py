"""What both parts of the tests share."""

import pytest
from hypothesis import HealthCheck, settings

from tests.examples import TIMES

# How long an example takes is the machine's matter; what must not take long has a test that counts.
settings.register_profile(
    "kvsteer", max_examples=30 * TIMES, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("kvsteer")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Tell after a failure how to get the same order again; pytest's header, which says it, is not shown."""
    if exitstatus == pytest.ExitCode.TESTS_FAILED and (seed := config.getoption("randomly_seed", None)):
        terminalreporter.write_line(f"in this order again: --randomly-seed={seed}")

"""What both parts of the tests share."""

import pytest


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Tell after a failure how to get the same order again; pytest's header, which says it, is not shown."""
    if exitstatus == pytest.ExitCode.TESTS_FAILED and (seed := config.getoption("randomly_seed", None)):
        terminalreporter.write_line(f"in this order again: --randomly-seed={seed}")

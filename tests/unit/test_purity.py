"""The core stays pure: no I/O, clock, randomness, logging or metrics."""

import ast
from collections.abc import Iterator
from pathlib import Path

import extproc.core

BANNED = {
    "asyncio", "time", "datetime", "random", "secrets", "uuid", "logging", "os", "sys", "socket", "select",
    "selectors", "ssl", "threading", "multiprocessing", "subprocess", "signal", "http", "urllib", "pathlib",
    "grpc", "redis", "aiohttp", "uvloop", "prometheus_client", "structlog", "pydantic", "yaml", "click", "rich",
}  # fmt: skip
#: The only parts of kvsteer the core may know beside itself.
OWN = ("extproc.core", "extproc.errors", "extproc.pb", "extproc.addresses")


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Every statement within, at any depth; no expression has one."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from statements(child)


def imports(path: Path) -> set[str]:
    names = set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports by a relative path"
            names.add(node.module or "")
    return names


def test_the_core_imports_nothing_impure() -> None:
    files = list(Path(extproc.core.__file__).parent.rglob("*.py"))
    assert len(files) > 10
    for path in files:
        for name in imports(path):
            assert name.split(".")[0] not in BANNED, f"{path} imports {name}"
            if name.split(".")[0] == "extproc" and name != "extproc":
                assert name.startswith(OWN), f"{path} imports {name}, which is outside the core"

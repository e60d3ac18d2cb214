"""What `kvsteer demo --keep` leaves running: how it is used, and what may die in it."""

import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from extproc.demo.processes import Child, program
from extproc.demo.stack import Stack

#: What goes on without it, by the name of a process without its number. To see that is what a stack is kept for;
#: without engines or Envoy nothing can be seen.
_DONE_WITHOUT = {
    "redis": "Requests go on; /healthz says degraded, and policies can't be changed meanwhile.",
    "gateway": "Requests go on: Envoy balances over the same replicas by itself.",
}


def unlock(stack: Stack) -> Path:
    """Give a stack that is not started yet a token for orders, in a file that only we may read; that file."""
    path = stack.folder / "orders.token"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_urlsafe(24))
    stack.settings.admin["token_file"] = str(path)
    return path


def guide(stack: Stack) -> str:
    """Lines to type, and where the page is. Of what is secret it names files."""
    admin = f"http://127.0.0.1:{stack.gateway_ports[0][1]}"
    kvsteer, settings = _command(), shlex.quote(str(stack.folder / "kvsteer-0.yaml"))
    token = stack.settings.admin["token_file"]
    replica = stack.replicas[0]
    redis = stack.children.get("redis")
    body = f'{{"model": "{stack.settings.model}", "messages": [{{"role": "user", "content": "hello"}}]}}'
    chat = f"curl -i {stack.url}/v1/chat/completions -H 'content-type: application/json' \\\n    -d '{body}'"
    lines = [
        chat,
        f"curl -s '{admin}/decisions?last=1'",
        f"{kvsteer} replicas --admin {admin}",
        f'{kvsteer} policy set round_robin -c {settings} --why "plain balancing"',
        f'{kvsteer} policy rollback -c {settings} --why "back again"',
        f"export KVSTEER_TOKEN_FILE={shlex.quote(token)}",
        f"{kvsteer} drain {replica} --admin {admin}",
        f"{kvsteer} undrain {replica} --admin {admin}",
        *([f"kill {redis.pid}"] if redis else []),
    ]
    typed = "\n".join(f"  {line}" for line in lines)
    return (
        f"\nAll is running. Try it:\n\n{typed}\n\n"
        f"The page: {admin}/\nIts orders are unlocked under Settings by the token in {token},\n"
        "which drains need here too; policies are changed in Redis and don't.\n"
        f"{'The kill ends Redis alone, and all else goes on. ' if redis else ''}"
        f"Configuration and logs: {stack.folder}\n\nCtrl-C ends it."
    )


def deaths(stack: Stack, told: set[str]) -> Iterator[str]:
    """What to say of processes that died and can be done without, each once: `told` is their names.

    Raises:
        StackError: another one died.
    """
    spared = {name for name in stack.children if name.partition("-")[0] in _DONE_WITHOUT}
    for name in sorted(spared - told):
        if not stack.children[name].running:
            told.add(name)
            yield _death(stack.children[name])
    stack.check(but=spared)


def _death(child: Child) -> str:
    what = _DONE_WITHOUT[child.name.partition("-")[0]]
    again = f"To start it again:\n\n  {shlex.join(child.argv)}\n"
    return f"{child.name} died. {what} Its log: {child.log}\n{again}"


def _command() -> str:
    """How kvsteer is called in the shell from which it was."""
    if shutil.which("kvsteer"):
        return "kvsteer"
    beside = program("kvsteer")
    return shlex.quote(beside) if beside else f"{shlex.quote(sys.executable)} -m extproc"

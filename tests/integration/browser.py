"""A headless Chromium, driven by its DevTools protocol; what the pages say and ask for is noted."""

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import aiohttp

#: Seconds that anything may take on a machine with much to do.
LONGEST = 120.0


def chromium() -> str | None:
    """The program; None where there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page. `errors` are exceptions and errors on its console, `asked` the URLs it asked for."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._folder = Path(tempfile.mkdtemp(prefix="chromium-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.errors: list[str] = []
        self.asked: list[str] = []

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.cancel()
        with suppress(asyncio.CancelledError):
            await self._listener
        await self._socket.close()
        await self._session.close()
        self._end()

    async def _start(self) -> None:
        flags = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--mute-audio", "--disable-background-networking", "--disable-component-update", "--disable-extensions",
        ]  # fmt: skip
        argv = [
            self._program,
            *flags,
            "--remote-debugging-port=0",
            f"--user-data-dir={self._folder}",
            "about:blank",
        ]
        self._process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = await self._port()
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LONGEST))
        async with self._session.get(f"http://127.0.0.1:{port}/json/list") as answer:
            pages = [page for page in await answer.json() if page["type"] == "page"]
        self._socket = await self._session.ws_connect(
            pages[0]["webSocketDebuggerUrl"],
            max_msg_size=0,
            timeout=aiohttp.ClientWSTimeout(ws_close=LONGEST),
        )
        self._listener = asyncio.create_task(self._listen())
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.call(f"{domain}.enable")

    async def _port(self) -> int:
        path, until = self._folder / "DevToolsActivePort", time.monotonic() + LONGEST
        while time.monotonic() < until:
            if path.exists() and (lines := path.read_text().splitlines()):
                return int(lines[0])
            await asyncio.sleep(0.05)
        raise TimeoutError("Chromium does not open its port for DevTools")

    async def _listen(self) -> None:
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
            else:
                self._note(said["method"], said["params"])

    def _note(self, method: str, told: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.asked.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(told["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "assert", "warning"):
            self.errors.append(json.dumps(told["args"])[:500])
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.errors.append(json.dumps(told["entry"])[:500])

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- what tests ask --------------------------------------------------------------------------------

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One call of the protocol."""
        number = next(self._numbers)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(LONGEST):
            said = await future
        assert "error" not in said, said
        result: dict[str, Any] = said["result"]
        return result

    async def go(self, url: str) -> None:
        """Load a page."""
        await self.call("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """The value of an expression, awaited where it is a promise."""
        said = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    async def until(self, script: str) -> Any:
        """Wait until an expression is true; its value."""
        until = time.monotonic() + LONGEST
        while not (value := await self.run(script)):
            if time.monotonic() > until:
                shown = await self.run("document.body.innerText")
                raise AssertionError(f"never true: {script}\nthe page shows:\n{shown}\nerrors: {self.errors}")
            await asyncio.sleep(0.1)
        return value

    async def press(self, key: str, code: int) -> None:
        """Press and let go of a key."""
        for kind in ("keyDown", "keyUp"):
            more = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more
            )

    async def size(self, width: int, height: int) -> None:
        """The window's size, in pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    async def prefers(self, colours: str) -> None:
        """What the system's colours are: dark or light."""
        await self.call(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}]
        )

    async def picture(self, path: Path) -> None:
        """A screenshot of what is seen."""
        said = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(said["data"]))

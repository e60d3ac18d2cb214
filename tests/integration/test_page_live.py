"""The live page in a real browser, before a running stack: what people see of it, and what they do on it.

With KVSTEER_SHOTS=FOLDER the screenshots stay there.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from yarl import URL

from extproc.demo.drive import drive
from extproc.demo.stack import Stack, StackSettings
from extproc.demo.workload import Shape, arrivals
from tests.integration.browser import LONGEST, Browser, chromium

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(chromium() is None, reason="no Chromium here (Debian: apt-get install chromium)"),
]

_TOKEN = "the-operators-token"
#: Of the colours of both schemes: what is behind everything.
_LIGHT, _DARK = "rgb(246, 246, 244)", "rgb(18, 20, 22)"
#: The release of axe-core whose rules the page is held to.
_AXE = "4.14.1"
#: Seconds npm may take to fetch axe-core.
_FETCH = 60


class Guarded(Stack):
    """The stack with a token for orders; what Redis may take is what a stalled machine may."""

    def __init__(self, settings: StackSettings, token: Path) -> None:
        super().__init__(settings)
        self._token = token

    def configuration(self, number: int) -> dict[str, Any]:
        made = super().configuration(number)
        made["admin"]["token_file"] = str(self._token)
        made["redis"] |= {"deadline": "10s", "connect_timeout": "10s"}
        made["admission"] = {
            "mode": "on",
            "identity": {"source": "header", "header": "x-team"},
            "tenants": [{"name": "trial", "ids": ["trial"], "tokens_in_flight": 5}],
        }
        return made


class World:
    """A stack, the page of its first gateway in a browser, and a folder for pictures."""

    def __init__(self, stack: Stack, browser: Browser, folder: Path) -> None:
        self.stack, self.browser, self.folder = stack, browser, folder
        self.origin = f"http://127.0.0.1:{stack.gateway_ports[0][1]}"

    async def view(self, name: str) -> None:
        await self.browser.run(f"document.getElementById('tab-{name}').click()")
        await self.browser.until(f"!document.getElementById('{name}').hidden")

    async def text(self, selector: str) -> str:
        return str(await self.browser.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    async def shows(self, selector: str, text: str) -> None:
        await self.browser.until(
            f"(document.querySelector({json.dumps(selector)})?.innerText || '').includes({json.dumps(text)})"
        )

    async def picture(self, name: str) -> None:
        path = self.folder / f"{name}.png"
        await self.browser.picture(path)
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 5000

    async def admin(self, path: str) -> Any:
        return await asyncio.to_thread(self.stack.admin, path)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[World]:
    kept = os.environ.get("KVSTEER_SHOTS")
    folder = Path(kept or tempfile.mkdtemp(prefix="page-"))
    folder.mkdir(exist_ok=True, parents=True)
    token = folder / "token"
    token.write_text(_TOKEN + "\n")
    program = chromium()
    assert program is not None
    settings = StackSettings(
        replicas=3,
        gateways=2,
        pool={"shadow": {"name": "round_robin"}},
        gateway={"feedback": {"observer": True}},
    )
    with Guarded(settings, token) as stack:
        shape = Shape(seconds=4, sessions_per_second=4, document_bytes=4000, think=(0.2, 0.5))
        report = await drive(stack.url, arrivals(shape), "charged_cost")
        assert report.failures == 0
        while (
            len(stack.admin("/decisions?last=20")["decisions"]) < 20
        ):  # of the two gateways the one that is looked at
            await drive(stack.url, arrivals(shape), "charged_cost")
        async with Browser(program) as browser:
            await browser.size(1360, 860)
            made = World(stack, browser, folder)
            await browser.go(f"{made.origin}/")
            await browser.until("document.querySelectorAll('#fleet tbody tr').length === 3")
            yield made
    if not kept:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def nothing_goes_wrong_in_the_page(world: World) -> Any:
    """No test leaves an error on the console, and none makes the page ask anybody else."""
    yield
    errors, strangers = list(world.browser.errors), [
        url for url in world.browser.asked if not url.startswith((world.origin, "about:", "data:"))
    ]  # fmt: skip
    world.browser.errors.clear()
    world.stack.check()
    assert errors == []
    assert strangers == []


async def test_the_fleet_is_shown_with_each_replica_opened_by_the_keyboard(world: World) -> None:
    await world.view("fleet")
    for address in world.stack.replicas:
        await world.shows("#fleet tbody", address)
    await world.browser.run("document.querySelector('#fleet tbody button.link').focus()")
    await world.browser.press("Enter", 13)
    await world.shows("#fleet td.detail", "Headroom's parts")
    await world.shows("#fleet td.detail", "gw-0 (this one): ")
    assert await world.browser.run("document.querySelector('#fleet [aria-expanded=true]') !== null")
    await world.picture("fleet")
    await world.browser.press("Enter", 13)
    await world.browser.until("document.querySelector('#fleet td.detail') === null")


async def test_traffic_has_times_to_first_token_and_hits(world: World) -> None:
    await world.view("traffic")
    await world.browser.until("document.querySelectorAll('#traffic figure').length === 6")
    labels = await world.browser.run("[...document.querySelectorAll('#traffic svg')].map((s) => s.ariaLabel)")
    assert [label.partition(":")[0] for label in labels] == [
        "Decisions", "Time to first token", "Prompt tokens found in caches",
        "Open", "Waiting", "Refused",
    ]  # fmt: skip
    await world.browser.until(  # a page that comes later is told of the minutes before it came
        "new Promise((told) => { const stream = new EventSource('/page/events');"
        " stream.addEventListener('news', (event) => { stream.close();"
        " const points = JSON.parse(event.data).history; told(['ttft', 'hit', 'decisions']"
        ".every((name) => points.some((point) => point[name] > 0))); }); })"
    )
    await world.picture("traffic")


async def test_a_decision_is_found_by_a_filter_and_opened(world: World) -> None:
    await world.view("decisions")
    await world.browser.until("document.querySelectorAll('#decisions tbody tr').length > 10")
    # Some were refused, and some made while a replica was drained.
    kept = (await world.admin("/decisions?last=1000"))["decisions"]
    chosen = next(one for one in kept if one["reason"] == "least_cost" and len(one["candidates"]) == 3
                  and not any(row.get("excluded") for row in one["candidates"]))  # fmt: skip
    await filtered(world, chosen["request_id"])
    await world.picture("filtered")
    await world.browser.run("document.querySelector('#decisions tbody button').focus()")
    await world.browser.press("Enter", 13)
    await world.browser.until("document.getElementById('opened').open")
    await world.shows("#opened", f"Request {chosen['request_id']}")
    for text in (
        f"{chosen['choice']} (chosen)",
        "it costs the fewest seconds",
        "Found in the cache",
        "round_robin",
    ):
        await world.shows("#opened", text)
    rows = await world.browser.run(
        "document.querySelectorAll('#opened [aria-label=Candidates] tbody tr').length"
    )
    assert rows == 3
    await world.picture("opened")
    await world.browser.press("Escape", 27)
    await world.browser.until("!document.getElementById('opened').open")
    await cleared(world)
    await world.picture("decisions")


async def test_the_gateway_says_that_its_state_is_shared_and_with_whom(world: World) -> None:
    await world.view("gateways")
    await world.shows("#gateways", "Journal's delay")
    await world.shows("#health", "state shared")
    await world.shows("#gateways [role=region][aria-label='Other gateways']", "gw-1")
    await world.shows("#gateways [role=region][aria-label=Leases]", "collector:demo")
    await world.picture("gateways")


async def ask_both(world: World, **headers: str) -> None:
    """Send two requests at once through Envoy: of those that come one by one a gateway may get every other stream.

    Each has a stream for its request and one for its response, so that the same gateway would get all requests.
    """
    body = {"model": "demo", "max_tokens": 8, "messages": [{"role": "user", "content": "what is it? " * 20}]}
    async with aiohttp.ClientSession() as session:

        async def ask() -> None:
            url = f"{world.stack.url}/v1/chat/completions"
            async with session.post(url, json=body, headers=headers) as answer:
                await answer.read()

        await asyncio.gather(ask(), ask())


async def test_what_is_refused_is_told_by_reason_and_tenant(world: World) -> None:
    await world.view("traffic")
    refused = (
        "document.querySelector('#traffic [role=region][aria-label=\"Admission by tenant\"]')?.innerText"
    )
    async with asyncio.timeout(LONGEST):
        while "trial" not in (await world.browser.run(refused) or ""):
            await ask_both(world, **{"x-team": "trial"})
            await asyncio.sleep(0.2)
    assert "larger than the tenant's quota" in await world.browser.run(refused)
    await world.shows(
        "#traffic [role=region][aria-label='Refused by reason']", "larger than the tenant's quota"
    )
    await world.picture("refused")


async def unlock(world: World, token: str) -> None:
    await world.browser.run(
        "(() => { const form = document.querySelector('#settings form');"
        f" form.elements.token.value = {json.dumps(token)}; form.requestSubmit(); }})()"
    )


async def unlocked(world: World) -> None:
    """Give the token, where it was not given yet."""
    await world.view("settings")
    await world.browser.until("document.querySelector('#settings p.muted').innerText.includes('nlocked in') || "
                              "!document.querySelector('#settings form').hidden")  # fmt: skip
    if not await world.browser.run("document.querySelector('#settings form').hidden"):
        await unlock(world, _TOKEN)
    await world.shows("#settings", "Unlocked in this tab")


async def test_nothing_is_ordered_without_the_token(world: World) -> None:
    await world.view("settings")
    await world.browser.run(
        "[...document.querySelectorAll('#settings button')].find((b) => b.textContent === 'Lock again').click()"
    )
    address = world.stack.replicas[0]
    status = await world.browser.run(
        f"fetch('/replicas/{address}/drain', {{method: 'POST'}}).then((a) => a.status)"
    )
    assert status == 401
    await world.browser.until("!document.querySelector('#settings form').hidden")
    await unlock(world, "wrong")
    await world.shows("#settings [role=alert]", "the token is missing or wrong")
    rows = (await world.admin("/replicas"))["replicas"]
    assert all(row["state"] != "quiescing" for row in rows)
    async with asyncio.timeout(LONGEST):
        while len(world.browser.errors) < 2:  # the two refusals, which browsers write on the console
            await asyncio.sleep(0.1)
    assert all("401" in error for error in world.browser.errors)
    world.browser.errors.clear()


async def test_a_token_that_no_header_can_carry_is_told_to_be_none(world: World) -> None:
    await world.view("settings")
    await world.browser.run(
        "[...document.querySelectorAll('#settings button')].find((b) => b.textContent === 'Lock again').click()"
    )
    await world.browser.until("!document.querySelector('#settings form').hidden")
    await unlock(world, "\u0436\u0435\u0442\u043e\u043d")
    await world.shows("#settings [role=alert]", "This can't be the token")


async def test_a_drain_is_clicked_and_takes_effect(world: World) -> None:
    await unlocked(world)
    await world.view("fleet")
    await world.browser.run("document.querySelector('#fleet tbody button.link').click()")
    await world.browser.until("document.querySelector('#fleet button.drain')?.disabled === false")
    address = await world.text("#fleet tbody button.link")
    try:
        await world.browser.run("document.querySelector('#fleet button.drain').click()")
        await world.browser.until("document.querySelector('#fleet button.drain')?.textContent === 'Undrain'")
        states = {row["replica"]: row["state"] for row in (await world.admin("/replicas"))["replicas"]}
        assert states[address] == "quiescing"
        assert sum(state == "quiescing" for state in states.values()) == 1
        await world.shows("#toast", f"{address} is drained")
        await world.picture("drained")
        await opened_without(world, address)
        await world.view("fleet")
    finally:
        await world.browser.run("document.querySelector('#fleet button.drain').click()")
    await world.browser.until("document.querySelector('#fleet button.drain')?.textContent === 'Drain'")
    states = {row["replica"]: row["state"] for row in (await world.admin("/replicas"))["replicas"]}
    assert "quiescing" not in states.values()
    await world.browser.run("document.querySelector('#fleet tbody button.link').click()")


async def opened_without(world: World, address: str) -> None:
    """A decision made since is opened: it says in words that the drained replica was left out, and is elsewhere."""
    async with asyncio.timeout(LONGEST):
        while True:
            await ask_both(world)
            newest = (await world.admin("/decisions?last=1"))["decisions"][0]
            if any(row.get("excluded") == "quiescing" for row in newest["candidates"]):
                break  # before that it was the other gateway that decided
    assert newest["choice"] != address
    await world.view("decisions")
    await filtered(world, newest["request_id"])
    await world.browser.run("document.querySelector('#decisions tbody button').click()")
    await world.browser.until("document.getElementById('opened').open")
    await world.shows("#opened", f"{address}: it is drained: nothing new goes there")
    await world.picture("opened-left-out")
    await world.browser.run("document.getElementById('opened').close()")
    await cleared(world)


async def filtered(world: World, request_id: str) -> None:
    """The one decision of this request is shown."""
    await world.browser.run(
        "(() => { const box = document.querySelector('#decisions input[name=text]');"
        f" box.value = {json.dumps(request_id)};"
        " box.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
    await world.browser.until("document.querySelectorAll('#decisions tbody tr').length === 1")
    await world.shows("#decisions tbody", request_id[:18])


async def cleared(world: World) -> None:
    """No filter any more."""
    await world.browser.run(
        "[...document.querySelectorAll('#decisions button')].find((b) => b.textContent === 'Clear').click()"
    )
    await world.browser.until("document.querySelectorAll('#decisions tbody tr').length > 10")


async def test_a_policy_is_changed_and_put_back(world: World) -> None:
    await unlocked(world)
    await world.browser.until("document.querySelector('#settings form button.main:not(:disabled)') !== null && "
                              "document.querySelector('#settings select[name=policy]') !== null")  # fmt: skip
    await world.browser.run(
        "(() => { const form = document.querySelector('#settings select[name=policy]').form;"
        " form.elements.policy.value = 'least_request'; form.elements.why.value = '<b>to try it</b>';"
        " form.requestSubmit(); })()"
    )
    await world.shows("#settings", "<b>to try it</b>")  # as text
    await world.browser.until(
        "document.querySelector('#settings [aria-label^=\"Put back\"]:not(:disabled)') !== null"
    )
    policy = (await world.admin("/policies"))["policies"][0]
    assert (policy["policy"]["name"], policy["version"]) == ("least_request", 2)
    assert policy["shadow"]["name"] == "round_robin"
    await world.picture("changed")
    await world.browser.run(  # typed, while the table is about to be drawn anew
        "(() => { const box = document.querySelector('#settings input[name=why]'); box.focus(); box.value = 'half a';"
        " box.dispatchEvent(new Event('input', {bubbles: true})); box.setSelectionRange(2, 2); })()"
    )
    await world.browser.run("document.querySelector('#settings [aria-label=\"Put back version 1\"]').click()")
    await world.shows("#settings .card dd", "charged_cost")
    await world.shows("#settings table", "version 1 again")
    policy = (await world.admin("/policies"))["policies"][0]
    assert (policy["policy"]["name"], policy["version"]) == ("charged_cost", 3)
    assert await world.browser.run("document.querySelector('#settings input[name=why]').value") == "half a"
    await world.shows("#settings", "would have done")
    await world.picture("settings")


async def test_tabs_are_changed_by_the_arrow_keys(world: World) -> None:
    await world.view("fleet")
    await world.browser.run("document.getElementById('tab-fleet').focus()")
    await world.browser.press("ArrowRight", 39)
    assert await world.browser.run("document.activeElement.id") == "tab-traffic"
    await world.browser.press("End", 35)
    assert await world.browser.run("document.activeElement.id") == "tab-settings"
    assert await world.browser.run("document.querySelectorAll('[role=tabpanel]:not([hidden])').length") == 1


#: Whatever can be reached in the view and its frame, and what is focused now, as (name, whether that is seen).
_REACHABLE = (
    "[...document.querySelectorAll('a[href], button, input, select, [tabindex=\"0\"]')]"
    ".filter((n) => n.checkVisibility() && !n.disabled && n.tabIndex >= 0)"
)
_NAME = "(n) => n.id || n.name || n.getAttribute('aria-label') || n.textContent"
_FOCUSED = (
    f"(() => {{ const n = document.activeElement, s = getComputedStyle(n); return [({_NAME})(n),"
    " n === document.body || (s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2)]; })()"
)


async def test_every_control_of_every_view_is_reached_by_the_tab_key_and_seen_to_be(world: World) -> None:
    await unlocked(world)
    for name in ("fleet", "traffic", "decisions", "gateways", "settings"):
        await world.view(name)
        await world.browser.until(f"document.getElementById('{name}').innerText.length > 20")
        # Without a focus of its own the page would be gone through from where the last one was.
        await world.browser.run(
            "document.body.tabIndex = -1, document.body.focus(), document.querySelector('h1').scrollIntoView()"
        )
        wanted = set(await world.browser.run(f"{_REACHABLE}.slice(0, 40).map({_NAME})"))
        seen = set()
        for _ in range(60):
            await world.browser.press("Tab", 9)
            focused, is_seen = await world.browser.run(_FOCUSED)
            assert is_seen, f"{name}: the focus on {focused} can't be seen"
            seen.add(focused)
            if wanted <= seen:
                break
        assert wanted <= seen, f"{name}: {wanted - seen} not reached"
    await world.view("decisions")
    await cleared(world)


async def test_it_is_dark_where_the_system_is_and_where_one_chooses(world: World) -> None:
    behind = "getComputedStyle(document.documentElement).backgroundColor"
    await world.view("fleet")
    assert await world.browser.run(behind) == _LIGHT
    await world.browser.prefers("dark")
    assert await world.browser.run(behind) == _DARK
    await world.picture("dark")
    await world.browser.run("document.getElementById('theme').click()")
    assert await world.browser.run(behind) == _LIGHT
    await world.browser.prefers("light")
    await world.browser.run("document.getElementById('theme').click()")
    assert await world.browser.run(behind) == _DARK
    await world.browser.run("document.getElementById('theme').click()")
    assert await world.browser.run(behind) == _LIGHT


async def test_every_view_fits_a_phone(world: World) -> None:
    await world.browser.size(375, 800)
    try:
        for name in ("fleet", "traffic", "decisions", "gateways", "settings"):
            await world.view(name)
            await world.browser.until(f"document.getElementById('{name}').innerText.length > 20")
            wide = await world.browser.run("document.documentElement.scrollWidth")
            assert wide <= 375, name
            await world.picture(f"phone-{name}")
        await world.view("decisions")
        await world.browser.run("document.querySelector('#decisions tbody button').click()")
        await world.browser.until("document.getElementById('opened').open")
        wide = await world.browser.run("document.getElementById('opened').scrollWidth")
        assert wide <= 375, "a decision opened"
        await world.picture("phone-opened")
        await world.browser.run("document.getElementById('opened').close()")
    finally:
        await world.browser.size(1360, 860)


@asynccontextmanager
async def prefixed(origin: str, prefix: str) -> AsyncIterator[str]:
    """A proxy that has the page under a path of its own; its URL."""
    async with aiohttp.ClientSession(auto_decompress=False) as session:

        async def passed_on(request: web.Request) -> web.StreamResponse:
            path, headers = request.path_qs.removeprefix(prefix), {**request.headers}
            async with session.request(
                request.method, URL(origin + path, encoded=True), headers=headers
            ) as answer:
                whole = web.StreamResponse(status=answer.status)
                for name in ("content-type", "content-security-policy"):
                    if name in answer.headers:
                        whole.headers[name] = answer.headers[name]
                await whole.prepare(request)
                with suppress(ConnectionError):
                    async for piece in answer.content.iter_any():
                        await whole.write(piece)
                return whole

        app = web.Application()
        app.router.add_route("*", prefix + "/{path:.*}", passed_on)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}{prefix}/"
        await runner.cleanup()


async def shows_the_fleet(world: World, url: str) -> None:
    """The page at that URL is open, no longer the one before it, and was told of the replicas."""
    await world.browser.until(
        f"location.href.startsWith({json.dumps(url)}) && document.querySelectorAll('#fleet tbody tr').length === 3"
    )


async def test_the_page_works_behind_a_path_prefix(world: World) -> None:
    async with prefixed(world.origin, "/kv") as url:
        await world.browser.go(url)
        try:
            await shows_the_fleet(world, url)
            await unlocked(world)  # an order, as far as hosts and tokens go
            await world.shows("#settings", "Policy of pool")
            await world.view("gateways")
            await world.shows("#gateways", "Journal's delay")
            await world.view("decisions")
            await world.browser.until("document.querySelectorAll('#decisions tbody tr').length > 10")
            await world.browser.run("document.querySelector('#decisions tbody button').click()")
            await world.browser.until("document.getElementById('opened').open")
        finally:
            await world.browser.go(f"{world.origin}/")
        await shows_the_fleet(world, f"{world.origin}/")
    asked, world.browser.asked[:] = [*world.browser.asked], []
    assert [each for each in asked if not each.startswith((url, world.origin, "about:", "data:"))] == []


def axe() -> Path | None:
    """axe-core's one file, fetched once into a cache beside npm's own; None where it can't be had."""
    npm = shutil.which("npm")
    if npm is None:
        return None
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvsteer-tests" / _AXE
    path = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        argv = [
            npm,
            "install",
            "--no-save",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--prefix",
            str(folder),
            "axe-core",
        ]
        try:
            subprocess.run(argv, timeout=_FETCH, capture_output=True, check=False)
        except subprocess.TimeoutExpired:
            return None
    return path if path.exists() else None


async def test_axe_finds_no_serious_fault_in_any_view(world: World) -> None:
    path = await asyncio.to_thread(axe)
    if path is None:
        pytest.skip("axe-core can't be had: no npm, or no registry")
    await world.browser.run(path.read_text() + "; true")
    for colours in ("light", "dark"):
        await world.browser.prefers(colours)
        only = ", runOnly: {type: 'rule', values: ['color-contrast']}" if colours == "dark" else ""
        for name in ("fleet", "traffic", "decisions", "gateways", "settings"):
            await world.view(name)
            await world.browser.until(f"document.getElementById('{name}').innerText.length > 20")
            assert await faults(world, only) == [], f"{name}, {colours}"
        await world.view("decisions")
        await world.browser.run("document.querySelector('#decisions tbody button').click()")
        await world.browser.until("document.getElementById('opened').open")
        assert await faults(world, only) == [], f"a decision opened, {colours}"
        await world.picture(f"opened-{colours}")
        await world.browser.run("document.getElementById('opened').close()")
        await world.view("fleet")
        await world.browser.run("document.querySelector('#fleet tbody button.link').click()")
        await world.shows("#fleet td.detail", "Breaker")
        assert await faults(world, only) == [], f"a replica opened, {colours}"
        await world.browser.run("document.querySelector('#fleet tbody button.link').click()")
    await world.browser.prefers("light")


async def faults(world: World, only: str) -> Any:
    """What axe finds serious or critical in what is shown."""
    return await world.browser.run(
        f"axe.run(document, {{resultTypes: ['violations']{only}}}).then((said) => said.violations"
        ".filter((v) => ['serious', 'critical'].includes(v.impact))"
        ".map((v) => `${v.id}: ${v.nodes.map((n) => n.html.slice(0, 200)).join(' | ')}`))"
    )


async def test_what_runs_is_recorded_and_played_again(world: World) -> None:
    trace = world.folder / "trace.jsonl"
    kvsteer = [sys.executable, "-m", "extproc"]
    argv = [*kvsteer, "record", "--for", "3s", "-o", str(trace), "--admin", world.origin, "--json"]
    recording = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
    try:
        async with asyncio.timeout(LONGEST):
            while True:  # until some requests fell into those seconds
                work = arrivals(
                    Shape(seconds=1, sessions_per_second=6, document_bytes=2000, think=(0.1, 0.2))
                )
                await drive(world.stack.url, work, "charged_cost")
                if recording.returncode is not None:
                    break
        said = json.loads((await recording.communicate())[0])
    finally:
        if recording.returncode is None:
            recording.kill()
    assert said["requests"] > 0
    assert said["ttft_mean"] > 0
    assert "the engine" not in trace.read_text()  # the prompts' words
    argv = [
        *kvsteer,
        "simulate",
        str(trace),
        "--replicas",
        "3",
        "--policies",
        "charged_cost,round_robin",
        "--json",
        "-",
    ]
    played = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
    runs = json.loads((await played.communicate())[0])["runs"]
    assert [(run["policy"], run["failed"], run["unfinished"]) for run in runs] == [
        ("charged_cost", 0, 0), ("round_robin", 0, 0),
    ]  # fmt: skip

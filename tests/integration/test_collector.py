"""The collector over real HTTP: freshness beside sick replicas, what each fault is called, and clean ends."""

import asyncio
import gc
import gzip
import itertools
import ssl
import statistics
import subprocess
import time

import pytest
from aiohttp import web

from extproc.demo.processes import free_port
from extproc.engines import get
from extproc.errors import ConfigError
from extproc.io.collector import Collector, Target, _Rounds
from extproc.io.scrape import Bearer, ScrapeFailed, expand
from tests.integration.patience import bar, patient
from tests.integration.replicas import VLLM, Record, Scraping, answer, raw_server, server


def collector(record: Record, settings: Scraping | None = None, **options) -> Collector:
    return Collector(settings or Scraping(), record.on_sample, record.on_failure, time.monotonic, **options)


class Running:
    """A collector for the length of a block."""

    def __init__(
        self, record: Record, targets: dict[str, Target], settings: Scraping | None = None, **options
    ) -> None:
        self.collector = collector(record, settings, **options)
        self.collector.set_targets(targets)

    async def __aenter__(self) -> Collector:
        await self.collector.start()
        return self.collector

    async def __aexit__(self, *_error: object) -> None:
        await self.collector.stop()


async def test_a_replica_is_scraped_again_and_again_at_its_interval():
    record = Record()
    async with server(answer()) as port, Running(record, {f"127.0.0.1:{port}": Target()}):
        await record.until(lambda: len(record.samples) >= 5)
    address, sample = record.samples[0]
    assert (address, sample.running, sample.waiting, sample.kv_used) == (f"127.0.0.1:{port}", 3.0, 1.0, None)
    assert record.failures == []
    times = [sample.at for _, sample in record.samples]
    assert times[4] - times[0] >= 0.25, "four intervals of 0.1 s; the first answer may have been late"


async def test_a_connection_is_used_again():
    ports = set()

    async def handler(request: web.Request) -> web.Response:
        ports.add(request.transport.get_extra_info("peername")[1])
        return web.Response(body=VLLM)

    record = Record()
    async with server(handler) as port, Running(record, {f"127.0.0.1:{port}": Target()}):
        await record.until(lambda: len(record.samples) >= 4)
    assert len(ports) == 1


async def test_one_hanging_and_one_flooding_replica_leave_98_others_fresh_within_two_intervals():
    """Interval 0.5 s: no age of a healthy replica exceeds 1.0 s, while one never answers and one sends 100 MB."""
    sent = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        if request.path == "/hangs":
            await asyncio.Event().wait()
        if request.path != "/floods":
            return web.Response(body=VLLM)
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(1600):  # of 64 KiB
            await response.write(b"vllm:num_requests_running 1\n" * 2340)
            sent += 65520
        return response

    record = Record()
    async with server(handler) as port:
        base = f"http://127.0.0.1:{port}"
        targets = {f"10.0.0.{i}:8000": Target(url=f"{base}/{i}") for i in range(98)}
        targets |= {"hangs": Target(url=f"{base}/hangs"), "floods": Target(url=f"{base}/floods")}
        began = time.monotonic()
        async with Running(record, targets, Scraping(interval=0.5, timeout=1.0)):
            await record.until(lambda: time.monotonic() - began > 3.0)
            ended = time.monotonic()
        assert set(record.reasons("hangs")) == {"timeout"}
        assert set(record.reasons("floods")) == {"too_large"}
    scrapes = len(record.reasons("floods")) + 1
    assert sent < scrapes * 20 * 2**20, "more was read than the limit of 4 MiB and what sockets hold"
    longest = []
    for address in list(targets)[:98]:
        times = [began, *(sample.at for sample in record.of(address)), ended]
        longest.append(max(after - before for before, after in itertools.pairwise(times)))
    assert statistics.median(longest) <= min(bar(1.0), 2.5), sorted(longest)[::10]
    assert not {address for address, _ in record.failures} - {"hangs", "floods"}


async def test_the_scrapes_of_many_replicas_are_spread_over_the_interval():
    """40 replicas in 0.5 s: were they asked at once, all would be within some milliseconds."""
    spread = 0.0
    for _ in range(5):  # on a machine that stands still at that moment they are all asked after it
        record = Record()
        async with server(answer()) as port:
            targets = {f"r{i}": Target(url=f"http://127.0.0.1:{port}/") for i in range(40)}
            async with Running(record, targets, Scraping(interval=0.5)):
                await record.until(lambda r=record: len({address for address, _ in r.samples}) == 40)
        first = [record.of(address)[0].at for address in targets]
        spread = max(spread, max(first) - min(first))
        if spread > 0.25:
            break
    assert spread > 0.25


async def test_four_replicas_share_each_moment_and_moments_leave_no_wide_gap():
    """16 replicas, 1 s: four moments, a golden ratio of a second apart, so at 0, 0.618, 0.236 and 0.854 of one."""
    scraping = collector(Record(), Scraping(interval=1.0))
    times = [scraping.moment() for _ in range(16)]
    groups = [times[i : i + 4] for i in range(0, 16, 4)]
    assert all(len(set(group)) == 1 for group in groups)
    after = [round((group[0] - times[0]) % 1.0, 3) for group in groups]
    assert after == [0.0, 0.618, 0.236, 0.854]


async def test_a_dead_replica_is_asked_ever_less_often_and_is_back_at_its_interval_at_once():
    """Interval 50 ms: after 7 failures the waits are 1.6 to 3.2 s, and after one good answer 50 ms again."""
    record = Record()
    port = free_port()  # nobody listens there
    target = {f"127.0.0.1:{port}": Target()}
    async with Running(record, target, Scraping(interval=0.05)):
        began = time.monotonic()
        await record.until(lambda: len(record.failures) == 6)
        assert time.monotonic() - began > 0.75 * 0.05 * (1 + 2 + 4 + 8 + 16)
        assert {reason for _, reason in record.failures} == {"connect"}
        async with server(answer(), port=port, reuse_address=True):
            await record.until(lambda: len(record.samples) >= 4)
            times = [sample.at for _, sample in record.samples]
            assert times[3] - times[0] < bar(1.0)


async def test_the_wait_for_a_dead_replica_never_exceeds_five_seconds():
    rounds = _Rounds(collector(Record()), "10.0.0.1:8000", Target())
    rounds._failures = 1000
    assert 3.75 <= rounds._next(0.0, 100.0) - 100.0 <= 5.0


async def test_scrapes_that_took_long_are_followed_by_the_next_whole_interval():
    rounds = _Rounds(collector(Record(), Scraping(interval=0.5)), "10.0.0.1:8000", Target())
    assert rounds._next(10.0, 10.2) == 10.5
    assert rounds._next(10.0, 11.2) == 11.5


async def test_a_restarted_replica_on_the_same_port_is_read_again_over_a_new_connection():
    record = Record()
    settings = Scraping(interval=0.05)
    async with server(answer()) as port:
        target = Running(record, {f"127.0.0.1:{port}": Target()}, settings)
        running = await target.__aenter__()
        await record.until(lambda: len(record.samples) >= 2)
    await record.until(lambda: "connect" in record.reasons(f"127.0.0.1:{port}"))
    seen = len(record.samples)
    async with server(answer(b"vllm:num_requests_running 7\n"), port=port, reuse_address=True):
        await record.until(lambda: len(record.samples) > seen)
        assert record.samples[-1][1].running == 7.0
        await running.stop()


async def _closes(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    return


def _says(text: bytes):
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(text)
        await writer.drain()

    return talk


@pytest.mark.parametrize(
    ("talk", "reason"),
    [
        (_closes, "broken"),
        (_says(b"SSH-2.0-OpenSSH_9.2\r\n"), "broken"),
        (_says(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\nvllm:num_requests_running 1"), "broken"),
        (_says(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nvllm:\r\n"), "broken"),
        (_says(b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n"), "broken"),
        (_says(b"HTTP/1.1 200 OK\r\nx-long: " + b"a" * 100_000 + b"\r\n\r\n"), "broken"),
        (_says(b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 2\r\n\r\nxx"), "broken"),
        (_says(b"HTTP/1.1 200 OK\r\ncontent-length: 104857600\r\n\r\n"), "too_large"),
        (_says(b"HTTP/1.1 200 OK\r\ncontent-length: 18\r\n\r\n<html>hello</html>"), "unparsable"),
        (_says(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"), "unparsable"),
        (
            _says(b"HTTP/1.1 200 OK\r\ncontent-length: 30\r\n\r\nvllm:num_requests_running NaN\n"),
            "unparsable",
        ),
        (_says(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"), "status_404"),
        (_says(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"), "status_401"),
        (_says(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n"), "status_503"),
        (_says(b"HTTP/1.1 418 Teapot\r\ncontent-length: 0\r\n\r\n"), "status_4xx"),
        (
            _says(b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"),
            "status_3xx",
        ),
    ],
)
async def test_every_fault_has_its_word(talk, reason):
    record = Record()
    async with raw_server(talk) as port, Running(record, {f"127.0.0.1:{port}": Target()}):
        await record.until(lambda: len(record.failures) >= 2)
    assert {told for _, told in record.failures} == {reason}
    assert record.samples == []


@pytest.mark.parametrize(
    "text",
    [
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nvllm:\r\n"
            b"16\r\nnum_requests_running 4\r\n0\r\n\r\n"
        ),
        b"HTTP/1.1 200 OK\r\n\r\nvllm:num_requests_running 4",
        b"HTTP/1.0 200 OK\r\nContent-Length: 27\r\n\r\nvllm:num_requests_running 4",
    ],
)
async def test_chunked_unframed_and_http_1_0_answers_are_read(text):
    record = Record()
    async with raw_server(_says(text)) as port, Running(record, {f"127.0.0.1:{port}": Target()}):
        await record.until(lambda: len(record.samples) >= 2)
    assert record.samples[0][1].running == 4.0


async def test_an_answer_that_trickles_in_ends_at_the_deadline():
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        while not reader.at_eof():
            writer.write(b"v")
            await writer.drain()
            await asyncio.sleep(0.02)

    record = Record()
    async with raw_server(trickle) as port:
        began = time.monotonic()
        async with Running(record, {f"127.0.0.1:{port}": Target()}, Scraping(timeout=0.2)):
            await record.until(lambda: len(record.failures) >= 1)
        assert time.monotonic() - began < bar(2)
    assert record.failures[0][1] == "timeout"


async def test_packed_answers_are_read_asked_for_or_not():
    record = Record()
    asked = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request.headers["accept-encoding"])
        return web.Response(body=gzip.compress(VLLM), headers={"content-encoding": "gzip"})

    async with server(handler) as port:
        for option in (False, True):
            async with Running(record, {f"127.0.0.1:{port}": Target()}, gzip=option):
                await record.until(lambda: len(record.samples) >= 1)
            assert record.samples.pop()[1].running == 3.0
            record.samples.clear()
    assert asked[0] == "identity"
    assert asked[-1] == "gzip"


def test_a_packed_answer_is_expanded_up_to_the_limit_and_no_further():
    bomb = gzip.compress(b"\0" * 100_000_000, 1)
    with pytest.raises(ScrapeFailed, match="too_large"):
        expand(bomb, "gzip", 4 * 2**20)
    assert expand(gzip.compress(b"a" * 10) + gzip.compress(b"b"), "GZIP", 11) == b"a" * 10 + b"b"
    with pytest.raises(ScrapeFailed, match="too_large"):
        expand(gzip.compress(b"a" * 12), "gzip", 11)
    for spoilt in (b"no gzip", gzip.compress(VLLM)[:-9]):
        with pytest.raises(ScrapeFailed, match="broken"):
            expand(spoilt, "gzip", 1000)
    with pytest.raises(ScrapeFailed, match="broken"):
        expand(b"", "zstd", 1000)


def test_a_packed_answer_of_more_members_than_anybody_sends_is_refused():
    assert expand(gzip.compress(b"a") * 16, "gzip", 1000) == b"a" * 16
    with pytest.raises(ScrapeFailed, match="broken"):
        expand(gzip.compress(b"") * 17, "gzip", 1000)


async def test_a_huge_answer_is_read_in_parts_and_means_the_same():
    """0.5 MB, 20,000 lines, the wanted ones at both ends."""
    filler = "".join(f'vllm:other_bucket{{le="{i}"}} {i}\n' for i in range(20_000)).encode()
    record = Record()
    handler = answer(VLLM + filler + b"vllm:kv_cache_usage_perc 0.5")
    async with server(handler) as port, Running(record, {f"127.0.0.1:{port}": Target()}):
        await record.until(lambda: len(record.samples) >= 1)
    sample = record.samples[0][1]
    assert (sample.running, sample.waiting, sample.kv_used) == (3.0, 1.0, 0.5)


async def test_the_engine_is_found_out_and_found_out_anew_when_another_takes_the_address():
    bodies = [b"vllm:num_requests_running 1\n", b"other_metric 1\n", b"vllm:num_requests_running 2\n"]

    async def handler(_request: web.Request) -> web.Response:
        return web.Response(body=bodies[min(len(record.samples) + len(record.failures), 2)])

    record = Record()
    async with server(handler) as port, Running(record, {f"127.0.0.1:{port}": Target()}):
        await record.until(lambda: len(record.samples) >= 2)
    assert [sample.running for _, sample in record.samples[:2]] == [1.0, 2.0]
    assert [reason for _, reason in record.failures] == ["unparsable"]


async def test_a_named_engine_and_an_engine_object_are_used_as_given():
    record = Record()
    async with server(answer()) as port:
        targets = {
            "named": Target(url=f"http://127.0.0.1:{port}/", engine="vllm"),
            "given": Target(url=f"http://127.0.0.1:{port}/", engine=get("vllm")),
        }
        async with Running(record, targets):
            await record.until(lambda: {address for address, _ in record.samples} == {"named", "given"})


async def test_ipv6_replicas_are_scraped():
    record = Record()
    async with server(answer(), host="::1") as port, Running(record, {f"[::1]:{port}": Target()}):
        await record.until(lambda: len(record.samples) >= 1)
    assert record.samples[0][0] == f"[::1]:{port}"


async def test_a_changed_set_of_replicas_ends_and_begins_the_right_loops():
    record = Record()
    async with server(answer()) as port:
        url = f"http://127.0.0.1:{port}/"
        async with Running(record, {"stays": Target(url=url), "goes": Target(url=url)}) as running:
            await record.until(lambda: {address for address, _ in record.samples} == {"stays", "goes"})
            stays = running._tasks["stays"]
            running.set_targets({"stays": Target(url=url), "comes": Target(url=url)})
            record.samples.clear()
            await record.until(lambda: len(record.of("comes")) >= 3 and len(record.of("stays")) >= 3)
            assert record.of("goes") == []
            assert running._tasks["stays"] is stays
            running.set_targets({"stays": Target(url=url + "elsewhere")})
            assert running._tasks["stays"] is not stays


async def test_without_the_lease_nothing_is_scraped_and_with_it_scraping_begins():
    record, held, asked = Record(), False, []

    def lease(pool: str, address: str) -> bool:
        asked.append((pool, address))
        record._news.set()
        return held

    async with (
        server(answer()) as port,
        Running(record, {f"127.0.0.1:{port}": Target(pool="chat")}, lease=lease),
    ):
        await record.until(lambda: len(asked) >= 3)
        assert record.samples == record.failures == []
        held = True
        await record.until(lambda: len(record.samples) >= 1)
    assert set(asked) == {("chat", f"127.0.0.1:{port}")}


async def test_a_callback_that_raises_ends_no_loop():
    record = Record()

    def on_sample(address: str, sample) -> None:
        record.on_sample(address, sample)
        raise RuntimeError("a fault in the core")

    async with server(answer()) as port:
        watching = Collector(Scraping(), on_sample, record.on_failure, time.monotonic)
        watching.set_targets({f"127.0.0.1:{port}": Target()})
        await watching.start()
        await record.until(lambda: len(record.samples) >= 3)
        await watching.stop()


async def test_a_parser_that_raises_is_a_failure_and_ends_no_loop():
    class Faulty:
        name, wanted = "faulty", ("up",)

        def recognises(self, _text: bytes) -> bool:
            return True

        def parse(self, _text: bytes, _at: float):
            raise ZeroDivisionError

    record = Record()
    async with server(answer()) as port, Running(record, {f"127.0.0.1:{port}": Target(engine=Faulty())}):
        await record.until(lambda: len(record.failures) >= 2)
    assert {reason for _, reason in record.failures} == {"internal"}


@pytest.mark.filterwarnings("error::ResourceWarning")
async def test_stopping_in_the_middle_of_scrapes_leaves_no_task_and_no_connection():
    record, connected = Record(), 0
    all_gone = asyncio.Event()

    async def never_answers(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        nonlocal connected
        connected += 1
        record._news.set()
        try:
            await reader.read()  # up to the end of the connection
        finally:
            connected -= 1
            if connected == 0:
                all_gone.set()

    async with raw_server(never_answers) as port:
        watching = collector(record, Scraping(interval=0.05, timeout=30))
        watching.set_targets({f"r{i}": Target(url=f"http://127.0.0.1:{port}/{i}") for i in range(20)})
        for _ in range(2):  # a collector that was stopped can be started again
            all_gone.clear()
            await watching.start()
            await record.until(lambda: connected == 20)
            began = time.monotonic()
            await watching.stop()
            assert time.monotonic() - began < bar(1)
            await asyncio.wait_for(all_gone.wait(), patient(5))
            assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("scrape")]
    gc.collect()  # what was left open would warn here, and warnings are errors
    assert record.samples == record.failures == []


async def test_starting_twice_scrapes_once():
    record = Record()
    async with server(answer()) as port, Running(record, {f"127.0.0.1:{port}": Target()}) as running:
        task = running._tasks[f"127.0.0.1:{port}"]
        await running.start()
        assert running._tasks[f"127.0.0.1:{port}"] is task


# -- secured metrics -------------------------------------------------------------------------------------------


async def guarded(request: web.Request) -> web.Response:
    good = request.headers.get("authorization") in ("Bearer first-token", "Bearer second")
    return web.Response(body=VLLM) if good else web.Response(status=401)


async def test_a_token_is_sent():
    record = Record()
    settings = Scraping(token="first-token")
    async with server(guarded) as port, Running(record, {f"127.0.0.1:{port}": Target()}, settings):
        await record.until(lambda: len(record.samples) >= 1)


async def test_a_wrong_token_is_told_by_the_status():
    record = Record()
    settings = Scraping(token="wrong")
    async with server(guarded) as port, Running(record, {f"127.0.0.1:{port}": Target()}, settings):
        await record.until(lambda: len(record.failures) >= 1)
    assert {reason for _, reason in record.failures} == {"status_401"}


async def test_a_token_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("ENGINE_TOKEN", "first-token")
    record = Record()
    settings = Scraping(token="env:ENGINE_TOKEN")
    async with server(guarded) as port, Running(record, {f"127.0.0.1:{port}": Target()}, settings):
        await record.until(lambda: len(record.samples) >= 1)


def test_a_token_file_is_read_anew_when_it_changed_and_kept_when_it_is_gone(tmp_path):
    now = 0.0
    path = tmp_path / "token"
    path.write_text("first\n")
    bearer = Bearer("", str(path), lambda: now)
    assert bearer.header() == "Bearer first"
    path.write_text("second\n")
    assert bearer.header() == "Bearer first"
    now = 6.0
    assert bearer.header() == "Bearer second"
    path.unlink()
    now = 12.0
    assert bearer.header() == "Bearer second"
    path.write_text("bad token\n")
    now = 18.0
    assert bearer.header() == "Bearer second"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Scraping(token="env:NO_SUCH_NAME"), "has no NO_SUCH_NAME; set it"),
        (Scraping(token_file="/no/such/file"), "/no/such/file can't be read"),
        (Scraping(token="secret\r\nx-evil: 1"), "metrics.token holds no bearer token"),
        (Scraping(ca_file="/no/such/ca.pem"), "/no/such/ca.pem is no PEM file"),
    ],
)
def test_secrets_that_cannot_be_had_are_a_fault_of_the_configuration_that_shows_no_secret(settings, message):
    with pytest.raises(ConfigError, match=message) as caught:
        collector(Record(), settings)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["ftp://host/x", "http://", "http://[::1", "host:80", "http://h:99999/", "http://user:secret@h/"]
)
def test_a_url_that_is_none_changes_nothing_and_is_named(url):
    watching = collector(Record())
    watching.set_targets({"10.0.0.1:8000": Target()})
    with pytest.raises(ConfigError, match="is no URL; write") as caught:
        watching.set_targets({"10.0.0.2:8000": Target(url=url)})
    assert list(watching._targets) == ["10.0.0.1:8000"]
    assert "secret" not in str(caught.value)


def test_an_engine_that_is_not_known_is_named_with_its_pool():
    with pytest.raises(ConfigError, match=r"pools\.chat: engine 'vlm' is not known"):
        collector(Record()).set_targets({"10.0.0.1:8000": Target(engine="vlm", pool="chat")})


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for 127.0.0.1, made by the openssl command."""
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    make += ["-days", "2", "-subj", "/CN=replica", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = subprocess.run(
        [*make, "-keyout", key, "-out", cert], capture_output=True, timeout=patient(30), check=False
    )
    if made.returncode:
        pytest.skip("no openssl command here to make a certificate with")
    return key, cert


async def test_https_replicas_are_read_with_their_ca_and_refused_without(certificate):
    key, cert = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    record = Record()
    async with server(answer(), ssl_context=context) as port:
        targets = {"secured": Target(url=f"https://127.0.0.1:{port}/metrics")}
        async with Running(record, targets, Scraping(ca_file=str(cert))):
            await record.until(lambda: len(record.samples) >= 2)
        async with Running(record, targets):
            await record.until(lambda: len(record.failures) >= 1)
    assert {reason for _, reason in record.failures} == {"tls"}

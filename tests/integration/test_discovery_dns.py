"""DNS against a small real server on UDP and TCP: addresses, SRV, TTLs, failures, lost packets, long answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest

from extproc.errors import ConfigError
from extproc.io.discovery import DnsSource, Failed, Found
from tests.integration.patience import bar, patient


class Server(asyncio.DatagramProtocol):
    """Answers from a zone: "NAME TYPE" -> (ttl, records). What is not there does not exist."""

    def __init__(self) -> None:
        self.zone: dict[str, tuple[int, list[str]]] = {}
        self.glue: dict[str, tuple[int, list[str]]] = {}
        self.rcodes: dict[str, int] = {}
        self.drop = 0
        self.truncate = False
        self.asked: list[str] = []
        self.over_tcp = 0
        self.port = 0

    # asyncio.DatagramProtocol
    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self.transport = transport

    def datagram_received(self, data: bytes, peer: tuple[str, int]) -> None:
        if self.drop:
            self.drop -= 1
            return
        answer = self.answer(dns.message.from_wire(data))
        if self.truncate:
            answer.flags |= dns.flags.TC
            answer.answer.clear()
        self.transport.sendto(answer.to_wire(), peer)

    async def tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(2))
        self.over_tcp += 1
        wire = self.answer(dns.message.from_wire(await reader.readexactly(size))).to_wire(max_size=65535)
        writer.write(len(wire).to_bytes(2) + wire)
        await writer.drain()
        writer.close()

    def answer(self, query: dns.message.Message) -> dns.message.Message:
        question = query.question[0]
        name, kind = question.name.to_text(omit_final_dot=True), question.rdtype.name
        key = f"{name} {kind}"
        self.asked.append(key)
        answer = dns.message.make_response(query)
        if key in self.rcodes:
            answer.set_rcode(self.rcodes[key])
        elif key in self.zone:
            answer.answer = self.records({key: self.zone[key]})
            answer.additional = self.records(self.glue) if kind == "SRV" else []
        elif not any(known.startswith(f"{name} ") for known in self.zone):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        return answer

    @staticmethod
    def records(zone: dict[str, tuple[int, list[str]]]) -> list[dns.rrset.RRset]:
        made = []
        for key, (ttl, texts) in zone.items():
            name, kind = key.split()
            if texts:
                made.append(dns.rrset.from_text(f"{name}.", ttl, "IN", kind, *texts))
        return made

    def source(self, host: str = "engines.test", **options: object) -> DnsSource:
        given = {"server": f"127.0.0.1:{self.port}", "least": 0.05, "most": 0.2, "deadline": 2.0, **options}
        return DnsSource(host, **given)  # type: ignore[arg-type]


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    """A server on one port of both protocols."""
    loop = asyncio.get_running_loop()
    for _ in range(20):
        server = Server()
        tcp = await asyncio.start_server(server.tcp, "127.0.0.1", 0)
        server.port = tcp.sockets[0].getsockname()[1]
        try:
            udp, _protocol = await loop.create_datagram_endpoint(
                lambda made=server: made, local_addr=("127.0.0.1", server.port)
            )
        except OSError:
            tcp.close()
            continue
        break
    try:
        yield server
    finally:
        udp.close()
        tcp.close()
        await tcp.wait_closed()


async def looks(source: DnsSource, count: int) -> list[Found | Failed]:
    """The first so many things a source says."""
    said: list[Found | Failed] = []
    async with asyncio.timeout(patient(20)), aclosing(source.watch()) as answers:
        async for answer in answers:
            said.append(answer)
            if len(said) == count:
                break
    return said


async def look(source: DnsSource) -> list[str]:
    """The addresses of a first look, in order."""
    (answer,) = await looks(source, 1)
    assert isinstance(answer, Found), answer
    return sorted(endpoint.address for endpoint in answer.endpoints)


async def fault(source: DnsSource) -> Failed:
    """The failure of a first look."""
    (answer,) = await looks(source, 1)
    assert isinstance(answer, Failed), answer
    return answer


# -- addresses -----------------------------------------------------------------------------------------------


async def test_addresses_of_both_families_get_the_port() -> None:
    async with serving() as server:
        server.zone["engines.test A"] = (5, ["10.0.0.1", "10.0.0.2"])
        server.zone["engines.test AAAA"] = (5, ["FD00:0:0::3"])
        assert await look(server.source(port=8000)) == ["10.0.0.1:8000", "10.0.0.2:8000", "[fd00::3]:8000"]
        assert await look(server.source(port=8000, family="ipv4")) == ["10.0.0.1:8000", "10.0.0.2:8000"]
        assert await look(server.source(port=8000, family="ipv6")) == ["[fd00::3]:8000"]


async def test_an_alias_is_followed_and_no_engine_is_at_the_unspecified_address() -> None:
    async with serving() as server:
        server.zone["real.test A"] = (5, ["10.0.0.1", "0.0.0.0"])
        server.zone["engines.test A"] = (5, [])
        server.records = lambda zone: [  # type: ignore[method-assign]
            dns.rrset.from_text("engines.test.", 5, "IN", "CNAME", "real.test."),
            dns.rrset.from_text("real.test.", 5, "IN", "A", "10.0.0.1", "0.0.0.0"),
        ]
        assert await look(server.source(port=80, family="ipv4")) == ["10.0.0.1:80"]


async def test_a_name_that_does_not_exist_and_one_without_records_are_empty_answers() -> None:
    async with serving() as server:
        assert await look(server.source("nobody.test", port=80)) == []
        server.zone["engines.test TXT"] = (5, ["x"])
        assert await look(server.source(port=80)) == []


# -- SRV -----------------------------------------------------------------------------------------------------


async def test_srv_records_have_their_own_ports_and_targets_are_looked_up() -> None:
    async with serving() as server:
        server.zone["_http._tcp.engines.test SRV"] = (5, ["0 10 8001 a.test.", "5 0 8002 b.test."])
        server.zone["a.test A"] = (5, ["10.0.0.1"])
        server.zone["b.test AAAA"] = (5, ["fd00::2"])
        source = server.source("_http._tcp.engines.test")
        (answer,) = await looks(source, 1)
        assert isinstance(answer, Found)
        found = {e.address: dict(e.labels) for e in answer.endpoints}
        assert found == {"10.0.0.1:8001": {"host": "a.test"}, "[fd00::2]:8002": {"host": "b.test"}}


async def test_addresses_that_come_along_with_srv_records_are_not_asked_for() -> None:
    async with serving() as server:
        server.zone["engines.test SRV"] = (5, ["0 0 8001 a.test.", "0 0 8002 b.test."])
        server.glue = {"a.test A": (5, ["10.0.0.1"]), "b.test A": (5, ["10.0.0.2"])}
        assert await look(server.source()) == ["10.0.0.1:8001", "10.0.0.2:8002"]
        assert server.asked == ["engines.test SRV"]


async def test_a_srv_target_that_is_gone_gives_nothing_and_a_root_target_means_none() -> None:
    async with serving() as server:
        server.zone["engines.test SRV"] = (5, ["0 0 8001 a.test.", "0 0 8002 gone.test."])
        server.zone["a.test A"] = (5, ["10.0.0.1"])
        assert await look(server.source()) == ["10.0.0.1:8001"]
        server.zone["engines.test SRV"] = (5, ["0 0 0 ."])
        assert await look(server.source()) == []


async def test_one_target_that_cannot_be_resolved_fails_the_whole_look() -> None:
    async with serving() as server:
        server.zone["engines.test SRV"] = (5, ["0 0 8001 a.test.", "0 0 8002 b.test."])
        server.zone["a.test A"] = (5, ["10.0.0.1"])
        server.rcodes["b.test A"] = dns.rcode.SERVFAIL
        assert (await fault(server.source())).reason == "refused"


# -- time ----------------------------------------------------------------------------------------------------


async def test_a_name_is_looked_up_again_when_its_ttl_is_over() -> None:
    async with serving() as server:
        server.zone["engines.test A"] = (1, ["10.0.0.1"])
        loop = asyncio.get_running_loop()
        began = loop.time()
        await looks(server.source(port=80, family="ipv4", most=30.0), 2)
        assert 1.0 <= loop.time() - began < bar(10.0)
        assert len(server.asked) == 2


@pytest.mark.parametrize(("ttl", "pause"), [(0, 0.3), (86400, 0.6)])
async def test_a_ttl_holds_within_its_bounds(ttl: int, pause: float) -> None:
    async with serving() as server:
        server.zone["engines.test A"] = (ttl, ["10.0.0.1"])
        loop = asyncio.get_running_loop()
        began = loop.time()
        await looks(server.source(port=80, family="ipv4", least=0.3, most=0.6), 3)
        assert 2 * pause <= loop.time() - began < bar(2 * pause + 2.0)


async def test_a_change_is_seen_at_the_next_look() -> None:
    async with serving() as server:
        server.zone["engines.test A"] = (0, ["10.0.0.1"])
        said: list[list[str]] = []
        async with (
            asyncio.timeout(patient(20)),
            aclosing(server.source(port=80, family="ipv4").watch()) as answers,
        ):
            async for answer in answers:
                assert isinstance(answer, Found)
                said.append([e.address for e in answer.endpoints])
                server.zone["engines.test A"] = (0, ["10.0.0.2"])
                if len(said) == 2:
                    break
        assert said == [["10.0.0.1:80"], ["10.0.0.2:80"]]


# -- what goes wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rcode", [dns.rcode.SERVFAIL, dns.rcode.REFUSED, dns.rcode.FORMERR])
async def test_a_server_that_refuses_is_a_failure_and_no_empty_answer(rcode: int) -> None:
    async with serving() as server:
        server.rcodes["engines.test A"] = rcode
        failed = await fault(server.source(port=80))
        assert failed.reason == "refused"
        assert "engines.test" in failed.detail


async def test_half_an_answer_is_a_failure() -> None:
    """Were AAAA failing taken for AAAA having none, half of the fleet would leave."""
    async with serving() as server:
        server.zone["engines.test A"] = (5, ["10.0.0.1"])
        server.rcodes["engines.test AAAA"] = dns.rcode.SERVFAIL
        assert (await fault(server.source(port=80))).reason == "refused"


async def test_one_lost_packet_is_asked_for_again_and_silence_ends_at_the_deadline() -> None:
    async with serving() as server:
        server.zone["engines.test A"] = (5, ["10.0.0.1"])
        server.drop = 1
        assert await look(server.source(port=80, family="ipv4")) == ["10.0.0.1:80"]
        server.drop = 1000
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert (await fault(server.source(port=80, deadline=0.3))).reason == "timeout"
        assert loop.time() - began < bar(3.0)


async def test_it_recovers_by_itself() -> None:
    async with serving() as server:
        server.zone["engines.test A"] = (5, ["10.0.0.1"])
        server.rcodes["engines.test A"] = dns.rcode.SERVFAIL
        kinds = []
        async with (
            asyncio.timeout(patient(20)),
            aclosing(server.source(port=80, family="ipv4").watch()) as answers,
        ):
            async for answer in answers:
                kinds.append(type(answer))
                server.rcodes.clear()
                if isinstance(answer, Found):
                    break
        assert kinds == [Failed, Found]


async def test_a_long_answer_comes_over_tcp() -> None:
    async with serving() as server:
        hosts = [f"10.0.{n // 250}.{n % 250 + 1}" for n in range(1000)]
        server.zone["engines.test A"] = (5, hosts)
        server.truncate = True
        assert len(await look(server.source(port=80, family="ipv4"))) == 1000
        assert server.over_tcp == 1


async def test_more_records_than_the_limit_are_not_kept() -> None:
    async with serving() as server:
        server.zone["engines.test A"] = (5, [f"10.0.0.{n}" for n in range(1, 200)])
        server.truncate = True
        assert (
            len(await look(server.source(port=80, family="ipv4", limit=10))) == 11
        )  # one too many, to be told


async def test_cancelling_in_the_middle_of_a_look_leaves_no_task() -> None:
    async with serving() as server:
        server.drop = 1000
        before = asyncio.all_tasks()
        task = asyncio.create_task(looks(server.source(port=80), 1))
        async with asyncio.timeout(patient(5)):
            while server.drop > 998:
                await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert asyncio.all_tasks() == before


@pytest.mark.parametrize("host", ["", ".", "a..b", "x" * 64, "10.0.0.1", "fd00::1"])
def test_what_is_no_name_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=r"discovery\.dns"):
        DnsSource(host, port=80)


@pytest.mark.parametrize("server", ["dns.test:53", "10.0.0.1", "fd00::1:53"])
def test_a_server_must_be_given_by_address(server: str) -> None:
    with pytest.raises(ConfigError, match="the server"):
        DnsSource("engines.test", port=80, server=server)

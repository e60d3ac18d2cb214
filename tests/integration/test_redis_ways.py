"""Gateways share through Redis, however it is run: users, databases, RESP2, a socket, TLS, Sentinel, Cluster."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from redis import exceptions

from extproc.config import RedisSettings
from extproc.demo.processes import Child, StackError, free_port
from extproc.demo.stack import redis_program
from tests.integration.certificates import make_certificates
from tests.integration.conftest import until, until_async
from tests.integration.gates import Gate, agree, fleet, share
from tests.integration.redis_server import PROGRAMS, redis_server

#: Pairs of a snapshot: what is written must come back.
HASHES = range(1000, 1030)


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> str:
    """A server, of each kind that there is."""
    return str(request.param)


async def shares(settings: RedisSettings) -> None:
    """Two gateways see what the other does, one of them holds the lease, and a third is warm by its snapshot."""
    async with fleet(settings, 2) as gates:
        keys = [gate.place(*HASHES) for gate in gates]
        await agree(gates)
        assert gates[0].holders(*HASHES) == gates[1].holders(*HASHES) != set()
        holder = await until_async(lambda: _holder(gates), 5, "one holds the lease of the snapshot")
        assert await holder.sharing.snapshots.write(holder.pool) is not None
        assert holder.sharing.snapshots.written == len(holder.pool.index)
        late = Gate(settings, "late")
        assert await late.sharing.snapshots.load() == len(holder.pool.index)
        await late.sharing.stop()
        for gate, key in zip(gates, keys, strict=True):
            gate.end(key)
        await agree(gates)
        await share(gates)


async def _holder(gates: list[Gate]) -> Gate | None:
    return next((gate for gate in gates if gate.lease.held), None)


async def test_one_server_with_a_user_a_database_and_a_prefix(tmp_path: Path, program: str) -> None:
    with redis_server(tmp_path, program=program) as (port, _), redis.Redis(port=port) as root:
        documented = Path("docs/redis.md").read_text().partition("ACL SETUSER kvsteer ")[2].partition("\n")[0]
        rules = documented.replace("PASSWORD", "s3cret").replace("kvsteer", "fleet-a").split()
        root.execute_command("ACL", "SETUSER", "ours", *rules)
        (tmp_path / "password").write_text("s3cret\n")
        await shares(RedisSettings(
            url=f"redis://127.0.0.1:{port}/3", username="ours", password_file=str(tmp_path / "password"),
            prefix="fleet-a", deadline=1.0,
        ))  # fmt: skip
        assert root.info("keyspace").keys() == {"db3"}, "nothing outside of the database that was named"
        root.execute_command("SELECT", 3)
        keys = root.keys()
        assert keys
        assert all(key.startswith(b"fleet-a:") for key in keys)


@pytest.mark.parametrize("protocol", [2, 3])
async def test_both_protocols(tmp_path: Path, program: str, protocol: Any) -> None:
    with redis_server(tmp_path, program=program) as (port, _):
        await shares(RedisSettings(url=f"redis://127.0.0.1:{port}", protocol=protocol, deadline=1.0))


async def test_a_socket(tmp_path: Path, program: str) -> None:
    path = tmp_path / "s"
    with redis_server(tmp_path, "--unixsocket", str(path), program=program):
        await shares(RedisSettings(url=f"unix://{path}", deadline=1.0))


async def test_tls_of_the_server_itself(tmp_path: Path, program: str) -> None:
    made = make_certificates(tmp_path)
    port = free_port()
    files = {"--tls-ca-cert-file": "ca.pem", "--tls-cert-file": "server.pem", "--tls-key-file": "server.key"}
    options = [word for name, file in files.items() for word in (name, str(made / file))]
    with ExitStack() as stack:
        try:
            stack.enter_context(redis_server(tmp_path, "--tls-port", str(port), *options, program=program))
        except StackError as error:
            if "tls" not in str(error).lower():
                raise
            pytest.skip("this server was built without TLS")
        await shares(RedisSettings(
            url=f"rediss://127.0.0.1:{port}", ca_file=str(made / "ca.pem"), cert_file=str(made / "client.pem"),
            key_file=str(made / "client.key"), deadline=1.0,
        ))  # fmt: skip


# -- Sentinel ----------------------------------------------------------------------------------------------


@contextmanager
def sentinels(folder: Path, program: str, master: int) -> Iterator[list[int]]:
    """Three Sentinels that watch a master as `main`, two of which must agree; their ports."""
    with ExitStack() as stack:
        ports = [free_port() for _ in range(3)]
        for port in ports:
            home = folder / f"sentinel-{port}"
            home.mkdir()
            (home / "sentinel.conf").write_text(
                f"port {port}\nbind 127.0.0.1\ndir {home}\nsentinel monitor main 127.0.0.1 {master} 2\n"
                "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n"
            )
            argv = [program or redis_program(), str(home / "sentinel.conf"), "--sentinel"]
            stack.callback(Child(f"sentinel-{port}", argv, folder).kill)
        for port in ports:
            until(
                lambda port=port: _sentinel_is_ready(port), 20, "a Sentinel knows the others and the replica"
            )  # type: ignore[misc]
        yield ports


def _sentinel_is_ready(port: int) -> bool:
    try:
        with redis.Redis(port=port, decode_responses=True) as asked:
            said = asked.execute_command("SENTINEL", "MASTER", "main")
    except exceptions.RedisError:
        return False
    found = said if isinstance(said, dict) else dict(zip(said[::2], said[1::2], strict=True))
    return (int(found["num-slaves"]), int(found["num-other-sentinels"])) == (1, 2)


async def test_sentinels_and_a_failover(tmp_path: Path, program: str) -> None:
    with (
        redis_server(tmp_path, program=program) as (first, child),
        redis_server(tmp_path, "--replicaof", "127.0.0.1", str(first), program=program) as (second, _),
        sentinels(tmp_path, program, first) as ports,
    ):
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        settings = RedisSettings(url=f"redis+sentinel://{hosts}/main/1", deadline=1.0)
        await shares(settings)
        async with fleet(settings, 2) as gates:
            gates[0].place(1, 2)
            await agree(gates)
            child.kill()
            gates[1].place(3, 4)
            await agree(gates, 20)
            assert gates[0].holders(3, 4) == gates[1].holders(3, 4) != set()
            await until_async(lambda: _holder(gates), 10, "the lease has a holder on the new master")
            with redis.Redis(port=second, db=1) as promoted:
                assert promoted.info("replication")["role"] == "master"
                assert promoted.exists("kvsteer:journal")


# -- Cluster -----------------------------------------------------------------------------------------------


class Cluster:
    """Three masters, a third of the slots each."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        self.nodes = [redis.Redis(port=port, decode_responses=True) for port in ports]
        bounds = [0, 5461, 10923, 16384]
        for node, start, stop in zip(self.nodes, bounds, bounds[1:], strict=False):
            node.execute_command("CLUSTER", "ADDSLOTS", *range(start, stop))
            node.execute_command("CLUSTER", "MEET", "127.0.0.1", ports[0], self._bus(0))
        self.ids = [str(node.execute_command("CLUSTER", "MYID")) for node in self.nodes]
        until(lambda: all(map(self._is_whole, self.nodes)), 20, "the cluster is whole")

    def _bus(self, number: int) -> int:
        return self.ports[number] + 10_000

    def _is_whole(self, node: "redis.Redis") -> bool:
        said = str(node.execute_command("CLUSTER", "INFO"))
        return "cluster_state:ok" in said and "cluster_known_nodes:3" in said

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def keys(self) -> list[int]:
        """How many keys each node has."""
        return [int(str(node.dbsize())) for node in self.nodes]

    def move(self, slot: int, source: int, target: int) -> None:
        """Move a slot with all its keys, as `redis-cli --cluster reshard` does."""
        here, there = self.nodes[source], self.nodes[target]
        there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.ids[source])
        here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.ids[target])
        while keys := list(here.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 10)):  # type: ignore[call-overload]
            here.execute_command("MIGRATE", "127.0.0.1", self.ports[target], "", 0, 5000, "KEYS", *keys)
        for node in (there, here, *self.nodes):
            node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", self.ids[target])


@pytest.fixture
def cluster(tmp_path: Path, program: str) -> Iterator[Cluster]:
    with ExitStack() as stack:
        ports = []
        for number in range(3):
            folder = tmp_path / f"node-{number}"
            folder.mkdir()
            started = redis_server(folder, "--cluster-enabled", "yes", program=program)
            ports.append(stack.enter_context(started)[0])
        made = Cluster(ports)
        stack.callback(made.close)
        yield made


async def test_a_cluster_of_three_masters_keeps_all_keys_on_one_and_follows_their_slot_to_another(
    cluster: Cluster,
) -> None:
    hosts = ",".join(f"127.0.0.1:{port}" for port in cluster.ports)
    settings = RedisSettings(url=f"redis+cluster://{hosts}", deadline=1.0)
    await shares(settings)
    counts = cluster.keys()
    assert sorted(counts)[:2] == [0, 0], f"every key is on one node: {counts}"
    home = counts.index(max(counts))
    slot = int(str(cluster.nodes[0].execute_command("CLUSTER", "KEYSLOT", "{kvsteer}:journal")))
    async with fleet(settings, 2) as gates:
        gates[0].place(1, 2)
        await agree(gates)
        await asyncio.to_thread(cluster.move, slot, home, (home + 1) % 3)
        gates[1].place(3, 4)
        await agree(gates, 10)
        assert gates[0].holders(3, 4) == gates[1].holders(3, 4) != set()
        await until_async(lambda: _holder(gates), 10, "the lease has a holder on the new node")
        assert cluster.keys()[home] == 0
        await share(gates)


async def test_a_cluster_is_found_although_the_first_node_named_is_dead(cluster: Cluster) -> None:
    url = f"redis+cluster://127.0.0.1:1,127.0.0.1:{cluster.ports[2]}"
    await shares(RedisSettings(url=url, deadline=1.0))

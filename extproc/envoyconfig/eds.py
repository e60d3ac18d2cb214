"""EDS files: which replicas a pool has, re-read by Envoy whenever one is renamed into place."""

import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from extproc.addresses import parse_address
from extproc.config import PoolSettings
from extproc.envoyconfig.names import Tree, pool_cluster, typed
from extproc.envoyconfig.yamltext import to_yaml
from extproc.errors import ConfigError


def endpoint(address: str) -> Tree:
    """One `lb_endpoints` entry for `ip:port`.

    Raises:
        ConfigError: the host is a name. `override_host` compares the picked `ip:port` with the addresses of
            the cluster's hosts, so a name would never be found and every pick silently ignored.
    """
    host, port = parsed = parse_address(address)
    if not parsed.is_ip:
        raise ConfigError(
            f"replica {address}: is a host name, which Envoy can't steer to; write the replica's IP address"
        )
    return {"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}}


def load_assignment(pool: str, addresses: Iterable[str]) -> Tree:
    """The `ClusterLoadAssignment` of a pool's cluster, in order of address.

    Raises:
        ConfigError: an address holds a host name.
    """
    entries = [endpoint(address) for address in sorted(set(addresses))]
    return {"cluster_name": pool_cluster(pool), "endpoints": [{"lb_endpoints": entries}]}


def eds_text(pool: str, addresses: Iterable[str]) -> str:
    """A pool's EDS file for these replicas (`ip:port`, any order).

    `version_info` is a digest of the content, so it changes exactly when the replicas do.

    Raises:
        ConfigError: an address holds a host name.
    """
    resource = typed("config.endpoint.v3.ClusterLoadAssignment", **load_assignment(pool, addresses))
    body = to_yaml({"resources": [resource]})
    version = hashlib.sha256(body.encode()).hexdigest()[:16]
    return to_yaml({"version_info": version}) + body


def answering(pool: PoolSettings) -> list[str]:
    """Addresses of the listed replicas that Envoy may send requests to: not of those that only compute prompts, which
    the proxies in front of the others ask themselves (docs/prefill-decode.md)."""
    return [replica.address for replica in pool.replicas if replica.role != "prefill"]


def eds_document(pool: PoolSettings) -> str:
    """A pool's EDS file for the replicas its settings name.

    Raises:
        ConfigError: a replica is given by host name.
    """
    return eds_text(pool.name, answering(pool))


def eds_path(folder: str | Path, pool: str) -> Path:
    """Where a pool's EDS file is kept in `envoy.eds_dir`."""
    return Path(folder) / f"{pool}.yaml"


def write_eds(folder: str | Path, pool: str, text: str) -> bool:
    """Put a pool's EDS file in place by atomic rename, which is what Envoy watches for.

    Readers see the old file or the new one, never a part. The folder is made if missing. Returns whether
    anything changed.

    Raises:
        OSError: the folder can't be written.
    """
    path = eds_path(folder, pool)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        _fill(descriptor, text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return True


def _fill(descriptor: int, text: str) -> None:
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o644)  # Envoy often runs as another user
        file.write(text)
        file.flush()
        os.fsync(descriptor)

"""The sources of a pool, as its settings say."""

from extproc.config import GatewaySettings, PoolSettings
from extproc.core.membership import Endpoint
from extproc.io.discovery import (
    DnsSource,
    EnvoySays,
    FileSource,
    InferencePoolSource,
    KubernetesSource,
    RedisSource,
    Source,
    StaticSource,
    in_cluster,
    pods,
    service_slices,
)  # fmt: skip
from extproc.io.discovery.kube_api import Access, KubeApi
from extproc.settings.discovery import (
    ApiServerSettings,
    DnsDiscoverySettings,
    InferencePoolDiscoverySettings,
    KubernetesDiscoverySettings,
)


def build(pool: PoolSettings, settings: GatewaySettings) -> list[Source]:
    """Every source the pool's settings name. Raises ConfigError."""
    found, sources = pool.discovery, list[Source]()
    if pool.replicas:
        sources.append(StaticSource([Endpoint(address=r.address, metrics=r.metrics) for r in pool.replicas]))
    if found.dns:
        sources.append(_dns(found.dns, found.limit))
    if found.file:
        sources.append(FileSource(found.file.path, cluster=found.file.cluster, limit=found.limit))
    if found.redis.enabled:
        sources.append(RedisSource(settings.redis, pool.name, limit=found.limit))
    if found.kubernetes:
        sources.append(_kubernetes(found.kubernetes, found.limit))
    if found.inference_pool:
        told = EnvoySays(protocol=pool.app_protocol, failure_mode=settings.envoy.failure_mode)
        sources.append(_inference_pool(found.inference_pool, found.limit, told))
    return sources


def _dns(dns: DnsDiscoverySettings, limit: int) -> DnsSource:
    return DnsSource(
        dns.host, port=dns.port or None, family=dns.family, server=dns.server,
        deadline=dns.deadline, least=dns.least, most=dns.most, limit=limit,
    )  # fmt: skip


def _kubernetes(kube: KubernetesDiscoverySettings, limit: int) -> KubernetesSource:
    access = _access(kube)
    if kube.service:
        resource = service_slices(kube.service, access.namespace, kube.port, kube.family)
    else:
        resource = pods(kube.selector, access.namespace, kube.port, kube.family)
    return KubernetesSource(KubeApi(access, deadline=kube.deadline), resource, limit=limit)


def _inference_pool(
    pool: InferencePoolDiscoverySettings, limit: int, envoy: EnvoySays
) -> InferencePoolSource:
    access = _access(pool)
    api = KubeApi(access, deadline=pool.deadline)
    return InferencePoolSource(api, pool.name, access.namespace, family=pool.family, limit=limit, envoy=envoy)


def _access(server: ApiServerSettings) -> Access:
    if not server.api:
        return in_cluster(server.namespace)
    return Access(
        url=server.api, namespace=server.namespace, token_file=server.token_file, ca_file=server.ca_file
    )

"""The sources of a pool, as its settings say."""

from extproc.config import RedisSettings, ReplicaSettings
from extproc.core.membership import Endpoint
from extproc.io.discovery import (
    DnsSource,
    FileSource,
    KubernetesSource,
    RedisSource,
    Source,
    StaticSource,
    in_cluster,
    pods,
    service_slices,
)  # fmt: skip
from extproc.io.discovery.kube_api import Access, KubeApi
from extproc.settings.discovery import DiscoverySettings, DnsDiscoverySettings, KubernetesDiscoverySettings


def build(
    pool: str, replicas: list[ReplicaSettings], settings: DiscoverySettings, redis: RedisSettings
) -> list[Source]:
    """Every source the settings name. Raises ConfigError."""
    sources: list[Source] = []
    if replicas:
        sources.append(StaticSource([Endpoint(address=r.address, metrics=r.metrics) for r in replicas]))
    if settings.dns:
        sources.append(_dns(settings.dns, settings.limit))
    if settings.file:
        sources.append(FileSource(settings.file.path, cluster=settings.file.cluster, limit=settings.limit))
    if settings.redis.enabled:
        sources.append(RedisSource(redis, pool, limit=settings.limit))
    if settings.kubernetes:
        sources.append(_kubernetes(settings.kubernetes, settings.limit))
    return sources


def _dns(dns: DnsDiscoverySettings, limit: int) -> DnsSource:
    return DnsSource(
        dns.host, port=dns.port or None, family=dns.family, server=dns.server,
        deadline=dns.deadline, least=dns.least, most=dns.most, limit=limit,
    )  # fmt: skip


def _kubernetes(kube: KubernetesDiscoverySettings, limit: int) -> KubernetesSource:
    if kube.api:
        access = Access(
            url=kube.api, namespace=kube.namespace, token_file=kube.token_file, ca_file=kube.ca_file
        )
    else:
        access = in_cluster(kube.namespace)
    if kube.service:
        resource = service_slices(kube.service, access.namespace, kube.port, kube.family)
    else:
        resource = pods(kube.selector, access.namespace, kube.port, kube.family)
    return KubernetesSource(KubeApi(access, deadline=kube.deadline), resource, limit=limit)

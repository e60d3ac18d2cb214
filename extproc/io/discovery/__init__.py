"""Where replicas are found: each source yields complete sets of endpoints (docs/discovery.md)."""

from extproc.core.membership import Changes, Endpoint, SourceStatus
from extproc.io.discovery.base import Discovery, Failed, Found, Source, SourceFailed
from extproc.io.discovery.dns import DnsSource
from extproc.io.discovery.file import FileSource
from extproc.io.discovery.inference_pool import EnvoySays, InferencePoolSource
from extproc.io.discovery.kubernetes import KubernetesSource, in_cluster, pods, service_slices
from extproc.io.discovery.redis_source import RedisSource
from extproc.io.discovery.registration import Registration
from extproc.io.discovery.static import StaticSource

__all__ = [
    "Changes",
    "Discovery",
    "DnsSource",
    "Endpoint",
    "EnvoySays",
    "Failed",
    "FileSource",
    "Found",
    "InferencePoolSource",
    "KubernetesSource",
    "RedisSource",
    "Registration",
    "Source",
    "SourceFailed",
    "SourceStatus",
    "StaticSource",
    "in_cluster",
    "pods",
    "service_slices",
]

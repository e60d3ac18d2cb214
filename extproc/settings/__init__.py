"""Every setting, with its default, its range and what it means."""

from extproc.settings.admission import AdmissionSettings
from extproc.settings.base import Settings
from extproc.settings.envoy import EnvoySettings
from extproc.settings.feedback import FeedbackSettings
from extproc.settings.grpc import GrpcSettings
from extproc.settings.pools import IndexSettings, PolicySettings, PoolSettings, ShadowSettings
from extproc.settings.redis import RedisSettings
from extproc.settings.redis_url import RedisPlace
from extproc.settings.replicas import CapacitySettings, HeadroomSettings, MetricsSettings, ReplicaSettings
from extproc.settings.server import (
    AdminSettings,
    LimitSettings,
    LogSettings,
    RequestSettings,
)
from extproc.settings.tree import GatewaySettings

__all__ = [
    "AdminSettings",
    "AdmissionSettings",
    "CapacitySettings",
    "EnvoySettings",
    "FeedbackSettings",
    "GatewaySettings",
    "GrpcSettings",
    "HeadroomSettings",
    "IndexSettings",
    "LimitSettings",
    "LogSettings",
    "MetricsSettings",
    "PolicySettings",
    "PoolSettings",
    "RedisPlace",
    "RedisSettings",
    "ReplicaSettings",
    "RequestSettings",
    "Settings",
    "ShadowSettings",
]

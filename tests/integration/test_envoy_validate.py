"""A real Envoy accepts every shape of the bootstrap."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.config import parse
from extproc.envoyconfig import eds_document, render, write_eds
from tests.integration.patience import patient

ENVOY = Path(sys.executable).with_name("envoy")
TRACED = {"endpoint": "http://127.0.0.1:4318/v1/traces"}
POOL = {"replicas": ["10.0.0.1:8000", "10.0.0.2:8000"]}

SHAPES: dict[str, dict[str, Any]] = {
    "one pool": {},
    "three pools, one with a name YAML takes for a boolean": {
        "pools": [
            {"name": "chat", "models": ["llama"], "replicas": ["10.0.0.1:8000"]},
            {"name": "n", "models": ["qwen"], "replicas": ["10.0.0.2:8000"]},
            {"name": "123", "replicas": ["10.0.0.3:8000"]},
        ]
    },
    "two pools and a header with the model": {
        "pools": [
            {"name": "chat", "models": ["org/llama-3.1:8b"], "replicas": ["10.0.0.1:8000"]},
            {"name": "rest", "replicas": ["10.0.0.2:8000"]},
        ],
        "envoy": {"model_header": "x-model"},
    },
    "IPv6 everywhere": {
        "pools": [{"replicas": ["[fd00::1]:8000", "[fd00::2]:8000"]}],
        "grpc": {"address": "[::]:50051"},
        "envoy": {"listen": "[::]:8080", "admin": "[::1]:9901"},
    },
    "no replica header": {"requests": {"replica_header": ""}},
    "fallback round_robin": {"envoy": {"fallback": "round_robin"}},
    "fallback random": {"envoy": {"fallback": "random"}},
    "one gateway": {"envoy": {"gateways": ["10.0.0.9:50051"]}},
    "many gateways": {"envoy": {"gateways": [f"10.0.1.{i}:50051" for i in range(1, 33)]}},
    "gateways by name": {"envoy": {"gateways": ["gateway-1:50051", "gateway-2:50051"]}},
    "identity by a claim": {
        "admission": {
            "mode": "on",
            "identity": {"source": "metadata", "namespace": "jwt", "path": ["payload", "sub"]},
        }
    },
    "identity by a certificate": {"admission": {"mode": "on", "identity": {"source": "certificate"}}},
    "identity by a key": {"admission": {"mode": "on", "identity": {"source": "api_key"}}},
    "no retries": {"envoy": {"retries": 0}},
    "most of everything": {
        "limits": {"body": "1GiB", "expanded_body": "2GiB"},
        "envoy": {
            "concurrent": 10_000_000,
            "retries": 5,
            "idle_timeout": "24h",
            "message_timeout": "1m",
            "connect_timeout": "1m",
        },
    },
    "least of everything": {
        "limits": {"body": "1KiB", "expanded_body": "1KiB"},
        "envoy": {
            "concurrent": 1024,
            "idle_timeout": "1s",
            "message_timeout": "50ms",
            "connect_timeout": "50ms",
        },
    },
    "limits of time": {
        "pools": [{**POOL, "timeouts": {"first_byte": "2s", "silence": "1s", "total": "1h"}}],
        "envoy": {"retries": 0},
    },
    "late binding": {"pools": [{**POOL, "late_binding": {"enabled": True, "longest_wait": "30m"}}]},
    "spans": {"tracing": TRACED},
    "spans, in conformance tests": {"tracing": TRACED, "requests": {"test_selection": True}},
    "spans, and prompts computed apart": {
        "tracing": TRACED,
        "pools": [
            {
                "replicas": [
                    {"address": "10.0.0.1:8000", "role": "prefill"},
                    {"address": "10.0.0.2:8000", "role": "decode"},
                ],
                "prefill": {"enabled": True, "header": "x-prefiller-host-port"},
            }
        ],
    },
    "an observer": {"feedback": {"observer": True}},
    "an observer alone": {"feedback": {"source": "off", "observer": True}},
    "bodies in full duplex": {"envoy": {"request_body_mode": "full_duplex", "retries": 0}},
    "by address": {
        "pools": [
            {"name": "chat", "models": ["llama"], "replicas": ["10.0.0.1:8000", "[fd00::1]:8000"]},
            {**POOL, "timeouts": {"first_byte": "2s"}},
        ],
        "requests": {"fallbacks": 0},
        "envoy": {"steering": "original_dst"},
    },
    "by address within networks": {
        "requests": {"fallbacks": 0},
        "envoy": {"steering": "original_dst", "reachable": ["10.0.0.0/8:8000", "[fd00::/8]:8000"]},
    },
    "conformance tests": {"requests": {"test_selection": True}},
    "prompts apart": {"pools": [{**POOL, "prefill": {"enabled": True}}]},
    "prompts apart, told both, in tests": {
        "pools": [
            {**POOL, "prefill": {"enabled": True, "decode_header": "x-data-parallel-host-port"}},
            {**POOL, "name": "other", "models": ["m"], "prefill": {"enabled": True, "header": "x-kvsteer-p"}},
        ],
        "requests": {"test_selection": True},
    },
    "a gateway id": {"gateway_id": "gw-1"},
    "1000 replicas": {"pools": [{"replicas": [f"10.1.{i // 250}.{i % 250}:8000" for i in range(1000)]}]},
}


def accepted(folder: Path, text: str) -> None:
    path = folder / "envoy.yaml"
    path.write_text(text)
    command = [str(ENVOY), "--mode", "validate", "--log-level", "warn", "-c", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(60), check=False)
    assert done.returncode == 0, done.stderr
    assert "OK" in done.stdout
    assert "deprecated" not in done.stderr.lower(), done.stderr


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("source", ["trailers", "access_log", "body", "headers", "off"])
def test_envoy_accepts(shape: str, source: str, tmp_path: Path) -> None:
    tree = {"pools": [POOL], "feedback": {"source": source}, **SHAPES[shape]}
    accepted(tmp_path, render(parse(yaml.safe_dump(tree), shape)))


def test_envoy_accepts_eds_files(tmp_path: Path) -> None:
    envoy = {"eds_dir": str(tmp_path / "eds")}
    settings = parse(yaml.safe_dump({"pools": [POOL], "envoy": envoy}), "eds")
    write_eds(settings.envoy.eds_dir, "default", eds_document(settings.pools[0]))
    accepted(tmp_path, render(settings))


def test_envoy_refuses_a_broken_bootstrap(tmp_path: Path) -> None:
    """So that acceptance means something."""
    text = render(parse(yaml.safe_dump({"pools": [POOL]}), "broken"))
    with pytest.raises(AssertionError, match="has unknown fields"):
        accepted(tmp_path, text.replace("failure_mode_allow", "failure_mode_allowed"))

"""kvsteer: an Envoy external processor that steers LLM requests to the replica with headroom and a warm cache."""

__version__ = "0.1.0"

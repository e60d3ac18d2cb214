"""An emulated vLLM server: real HTTP, real queueing and caching, no model. See docs/emulated-engine.md."""

from extproc.sim.emulated.server import EmulatedEngine
from extproc.sim.emulated.settings import EngineSettings

__all__ = ["EmulatedEngine", "EngineSettings"]

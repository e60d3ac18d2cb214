"""What Envoy is told: its bootstrap, and the EDS files that list a pool's replicas while it runs."""

from extproc.envoyconfig.bootstrap import bootstrap, render
from extproc.envoyconfig.eds import eds_document, eds_path, eds_text, write_eds

__all__ = ["bootstrap", "eds_document", "eds_path", "eds_text", "render", "write_eds"]

"""What Envoy must tell the gateway so that it knows who sends a request: only what the settings name."""

from extproc.core.admission.identity import SUBJECT
from extproc.envoyconfig.names import Tree
from extproc.settings.admission import AdmissionSettings

_EXT_PROC = "envoy.filters.http.ext_proc"


def with_identity(chain: list[Tree], admission: AdmissionSettings) -> list[Tree]:
    """The filter chain, with identities sent to the gateway where admission is on."""
    if not admission.is_on:
        return chain
    config = next(each for each in chain if each["name"] == _EXT_PROC)["typed_config"]
    identity, deadline = admission.identity, admission.queue.deadline_header
    headers = ["content-length", *([deadline] if deadline else [])]
    if identity.source in ("api_key", "header"):
        headers.append(identity.header)
    config["forward_rules"]["allowed_headers"]["patterns"] += [{"exact": name} for name in headers]
    if identity.source == "metadata":
        spaces = config["metadata_options"].setdefault("forwarding_namespaces", {})
        spaces["untyped"] = [*spaces.get("untyped", []), identity.namespace]
    if identity.source == "certificate":
        config["request_attributes"] = [*config.get("request_attributes", []), SUBJECT]
    return chain

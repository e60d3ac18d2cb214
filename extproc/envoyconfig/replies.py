"""Envoy's own error answers in the shape OpenAI clients read.

Only answers Envoy made itself are reworded, told by their response code details; a global format would wrap
the gateway's own JSON a second time.
"""

from extproc.envoyconfig.names import Tree, typed

_TIMEOUTS = (
    "response_timeout",
    "upstream_per_try_timeout",
    "upstream_per_try_idle_timeout",
    "stream_idle_timeout",
    "request_overall_timeout",
    "request_header_timeout",
    "max_duration_timeout",
)
_CLIENT = "invalid_request_error"
_SERVER = "server_error"
_UNAVAILABLE = ("no_healthy_upstream", "cluster_not_found", "maintenance_mode", "overload")


def local_reply_config(body_limit: int) -> Tree:
    """The mappers; `body_limit` in bytes is named in the 413."""
    too_large = f"The request body is larger than {body_limit} bytes."
    details = "response.code_details"
    return {
        "mappers": [
            _mapper(f"{details} == 'request_payload_too_large'", too_large, _CLIENT, "payload_too_large"),
            _mapper(f"{details} in {list(_TIMEOUTS)}", "No answer came in time.", _SERVER, "timeout"),
            _mapper(
                f"{details} in {list(_UNAVAILABLE)} || {details}.startsWith('upstream_reset')",
                "No replica could answer.",
                _SERVER,
                "upstream_unavailable",
                retry_after=1,
            ),
            _mapper(
                f"{details}.startsWith('ext_proc_error')",
                "The routing service failed.",
                _SERVER,
                "gateway_error",
            ),
        ]
    }


def _mapper(expression: str, message: str, kind: str, code: str, *, retry_after: int | None = None) -> Tree:
    cel = typed("extensions.access_loggers.filters.cel.v3.ExpressionFilter", expression=expression)
    extension = {"name": "envoy.access_loggers.extension_filters.cel", "typed_config": cel}
    error = {"message": message, "type": kind, "code": code}
    header = {"header": {"key": "retry-after", "value": str(retry_after)}}
    return {
        "filter": {"extension_filter": extension},
        "body_format_override": {"json_format": {"error": error}},
        **({"headers_to_add": [header]} if retry_after is not None else {}),
    }

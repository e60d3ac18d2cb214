"""Why full duplex and a retry policy are refused together: Envoy 1.40 sends a body twice that ends by trailers.

Not a promise of ours but a fact about Envoy (its issue 45470): where the first case fails, Envoy was mended, and the
refusal in the settings can go. That bodies arrive once otherwise: test_duplex_envoy.py.
"""

from typing import Any

import pytest
import yaml

from extproc.demo.stack import StackSettings
from tests.integration.patience import until
from tests.integration.witness import Witnesses, WitnessStack, http2, witnesses

BODY = b'{"model": "demo", "messages": [{"role": "user", "content": "hello"}]}'
ROUTES: dict[str, Any] = {
    "never retried": {"retry_policy": {"retry_on": "connect-failure", "num_retries": 0}},
    "mirrored": {
        "request_mirror_policies": [
            {"cluster": "kvsteer_pool_demo", "runtime_fraction": {"default_value": {"numerator": 100}}}
        ]
    },
}


class _Patched(WitnessStack):
    """The generated configuration, and something beside on its route that the generator would not write."""

    def __init__(self, running: Witnesses, beside: dict[str, Any]) -> None:
        super().__init__(running, StackSettings(envoy={"request_body_mode": "full_duplex", "retries": 0}))
        self._beside = beside

    def bootstrap(self) -> str:
        tree = yaml.safe_load(super().bootstrap())
        manager = tree["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"].update(self._beside)
        return str(yaml.safe_dump(tree))


@pytest.mark.parametrize(("route", "times"), [("never retried", 2), ("mirrored", 1)])
def test_how_often_a_body_that_ends_by_trailers_arrives(route: str, times: int) -> None:
    with witnesses(1) as running, _Patched(running, ROUTES[route]) as stack:

        def is_steered() -> bool:
            return ask() == 200 and bool(running.seen[-1].all("x-kvsteer-request-id"))

        def ask(trailers: list[tuple[str, str]] | None = None) -> int:
            return http2(stack.port, "/v1/chat/completions", BODY, trailers=trailers).status

        until(is_steered, 10, "Envoy has found the gateway well")
        assert ask([("x-checksum", "1")]) == 200
        assert running.seen[-1].body == BODY * times

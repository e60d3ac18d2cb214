"""A real Prometheus of a test's own, with the rules of deploy/ made quick, and what plays a sick gateway."""

import json
import re
import shutil
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from extproc.demo.processes import Child, free_port
from tests.integration.patience import patient

#: So many times as fast as they are written do rules run; a `for` is a second at least, a rate's range five.
TIMES = 120
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+)([smhd])")


def quick(duration: str) -> str:
    """A duration as written in rules and dashboards, divided by TIMES; a second at least."""
    count, unit = _DURATION.fullmatch(duration).groups()  # type: ignore[union-attr]
    return f"{max(int(count) * _UNITS[unit] * 1000 // TIMES, 1000)}ms"


def quick_expression(text: str) -> str:
    """The same for the ranges and offsets of an expression; rates look at five seconds at least."""

    def ranged(found: re.Match[str]) -> str:
        return f"{found[1]}{max(int(quick(found[2])[:-2]), 5000)}ms"

    return re.sub(r"(\[|offset )(\d+[smhd])", ranged, text)


def quick_rules(path: Path) -> str:
    """A file of rules, quick."""
    tree = yaml.safe_load(path.read_text())
    for group in tree["groups"]:
        group["interval"] = "500ms"
        for rule in group["rules"]:
            rule["expr"] = quick_expression(rule["expr"])
            if "for" in rule:
                rule["for"] = quick(rule["for"])
    return yaml.safe_dump(tree)


class PrometheusServer:
    """Started at once, listening when made. Raises StackError where it does not start.

    Args:
        folder: for its configuration, data and log.
        jobs: job -> (metrics path, targets).
        rules: the text of its rules.
    """

    def __init__(self, folder: Path, jobs: Mapping[str, tuple[str, Iterable[str]]], rules: str) -> None:
        self.port = free_port()
        (folder / "rules.yml").write_text(rules)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(_configuration(jobs)))
        program = shutil.which("prometheus")
        assert program is not None
        argv = [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        argv += [f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"]
        argv += ["--enable-feature=exemplar-storage"]
        self.child = Child("prometheus", argv, folder)
        try:
            self.child.wait_until(lambda: self._is_ready(), patient(30))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End it."""
        self.child.kill()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query, now. Fails with Prometheus' words."""
        data = self._ask("/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        result = data["result"]
        return result if data["resultType"] == "vector" else [{"metric": {}, "value": result}]

    def exemplars(self, expression: str, seconds: float = 600.0) -> list[dict[str, str]]:
        """Labels of the exemplars of the last seconds."""
        now = time.time()
        span = {"query": expression, "start": now - seconds, "end": now + seconds}
        found = self._ask("/api/v1/query_exemplars?" + urllib.parse.urlencode(span))
        return [exemplar["labels"] for series in found for exemplar in series["exemplars"]]

    def firing(self, job: str = "") -> set[str]:
        """Names of the alerts that fire now, of one job's or of any."""
        alerts = self._ask("/api/v1/alerts")["alerts"]
        names = (alert["labels"] for alert in alerts if alert["state"] == "firing")
        return {labels["alertname"] for labels in names if not job or labels["job"] == job}

    def rules(self) -> list[dict[str, Any]]:
        """All rules as Prometheus knows them."""
        return [rule for group in self._ask("/api/v1/rules")["groups"] for rule in group["rules"]]

    def names(self) -> set[str]:
        """Names of all metrics that were ever exposed, also of those that have no series yet."""
        told = set(
            self._ask("/api/v1/metadata")
        )  # OpenMetrics describes families, without their samples' endings
        told |= {f"{name}{ending}" for name in told for ending in ("_bucket", "_total")}
        return told | set(self._ask("/api/v1/label/__name__/values"))

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/-/ready", timeout=patient(2)
            ) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _ask(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=patient(10)) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.read().decode()}") from None


def _configuration(jobs: Mapping[str, tuple[str, Iterable[str]]]) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [
            {"job_name": job, "metrics_path": path, "static_configs": [{"targets": list(targets)}]}
            for job, (path, targets) in jobs.items()
        ],
    }


class Played:
    """A port with the metrics of a gateway that is well, or sick in every way that no fault brings about in seconds.

    Attributes:
        sick: which.
        target: host:port.
    """

    def __init__(self, well: str, sick: str) -> None:
        self.sick = False
        self._texts, self._shown, self._lock = (well, sick), 0, threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def target(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def text(self) -> str:
        """What a scrape is told now; N in it counts up while it is sick, as counters do."""
        with self._lock:
            self._shown += self.sick
            return self._texts[self.sick].replace(" N", f" {self._shown}")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        played = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = played.text().encode()
                self.send_response(200)
                self.send_header("content-type", "text/plain; version=0.0.4")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        return Handler

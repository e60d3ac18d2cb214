"""Settings reach the parts they are for: whom to scrape and who reports, engines by names, costs, the favour."""

from extproc.building import build_steering, modes, takes_reports, targets
from extproc.config import PoolSettings, parse
from extproc.core.bias import Cold
from extproc.engines import Generic

A, B, C, FOUND = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.9:8000"
OWN = f'replicas: ["{A}", {{address: "{B}", telemetry: both}}, {{address: "{C}", telemetry: push}}]'


def pool(text: str) -> PoolSettings:
    return parse(f"pools: [{{{text}}}]", "here").pools[0]


def scraped(telemetry: str) -> set[str]:
    return set(targets(pool(f"telemetry: {telemetry}, {OWN}"), dict.fromkeys((A, B, C, FOUND), "")))


def test_who_only_reports_is_not_scraped() -> None:
    assert scraped("pull") == {A, B, FOUND}
    assert scraped("both") == {A, B, FOUND}
    assert scraped("push") == {B}, "its own entry says both"


def test_each_replicas_mode_is_its_own_or_its_pools() -> None:
    mode = modes([pool(f"telemetry: push, {OWN}")])
    assert [mode("default", address) for address in (A, B, C, FOUND)] == ["push", "both", "push", "push"]
    assert mode("other", A) == "pull"


def test_reports_are_read_only_for_pools_where_somebody_may_report() -> None:
    assert not takes_reports(pool(f'replicas: ["{A}"]'))
    assert takes_reports(pool(OWN))
    assert takes_reports(pool(f'telemetry: both, replicas: ["{A}"]'))


def test_a_scrape_goes_to_the_replica_or_to_where_its_entry_says() -> None:
    made = targets(pool(f'engine: vllm, replicas: ["{A}"]'), {A: "", B: "http://10.0.0.2:9000/m"})
    assert (made[A].url, made[A].engine, made[A].pool) == (f"http://{A}/metrics", "vllm", "default")
    assert made[B].url == "http://10.0.0.2:9000/m"


def test_an_engine_by_names_reads_these_names() -> None:
    settings = pool(f'engine: generic, names: {{running: "my:active"}}, replicas: ["{A}"]')
    engine = targets(settings, {A: ""})[A].engine
    assert isinstance(engine, Generic)
    sample = engine.parse(b"my:active 3\n", 1.0)
    assert (sample.running, sample.waiting) == (3.0, None)


def test_costs_favour_and_length_shift_reach_the_pool() -> None:
    text = (
        "pools: [{cold: {favour: 0.2, span: 10m}, headroom: {length_shift: 0.25}, "
        f'replicas: [{{address: "{A}", cost: 1.5}}, "{B}"]}}]'
    )
    made = build_steering(parse(text, "here"), 0.0).pools[0]
    assert made.traits.cold == Cold(favour=0.2, span=600.0)
    assert made.traits.weights.shift == 0.25
    assert [(r.address, r.cost) for r in made.replicas] == [(A, 1.5), (B, 1.0)]

"""The documentation says what there is: commands, policies, metrics, dialects, engines, links, layout, examples.

Settings, dialects' paths, engines' names and the emulated engine have their own tests beside their code.
"""

import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import get_args

import click
import pytest

from benchmarks.guarantees import rows
from extproc.app import Gateway
from extproc.cli import COMMANDS
from extproc.cli import main as kvsteer
from extproc.config import parse
from extproc.core import fleet, states
from extproc.core.adapters import NOT_LISTED
from extproc.core.dialects import DIALECTS
from extproc.core.lifecycle import HEALTHY, STATES
from extproc.core.policies import POLICIES, policy_settings
from extproc.engines import NAMES
from extproc.errors import ConfigError
from extproc.settings import PoolSettings

ROOT = Path(__file__).resolve().parents[2]
#: Written pages; those below hidden folders, such as that of the environment, are not ours.
FOLDERS = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in folder.rglob("*.md"))])
TEXTS = {str(path.relative_to(ROOT)): path.read_text() for path in PAGES}
FILES = {
    "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "docs/commands.md",
    "docs/configuration.md", "docs/dialects.md", "docs/emulated-engine.md", "docs/engines.md", "docs/guarantees.md",
    "docs/metrics.md", "docs/operations.md", "docs/performance.md", "docs/policies.md",
}  # fmt: skip


def section(page: str, heading: str) -> str:
    """The text below a heading of the second level, up to the next one."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", TEXTS[page], re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no section {heading!r}"
    return found[1]


def blocks(text: str, language: str) -> list[str]:
    """Code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


# -- commands ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented_with_its_options_and_exit_statuses(name: str) -> None:
    text = section("docs/commands.md", f"kvsteer {name}")
    command: click.Command = import_module(COMMANDS[name][0]).command
    options = [word for option in command.params for word in (*option.opts, *option.secondary_opts)]
    missing = [word for word in options if word.startswith("-") and not re.search(rf"`{word}[` ]", text)]
    assert missing == []
    assert "Exit status: 0" in text


def test_the_table_of_commands_names_every_command_with_a_link() -> None:
    table = TEXTS["docs/commands.md"].partition("\n## ")[0]
    assert [name for name in COMMANDS if f"[`{name}`](#kvsteer-{name})" not in table] == []


def test_every_documented_command_has_its_file() -> None:
    for name in re.findall(r"^## kvsteer (\S+)$", TEXTS["docs/commands.md"], re.MULTILINE):
        assert (ROOT / "extproc" / "cli" / f"{name.replace('-', '_')}.py").is_file(), name


def test_every_documented_option_exists() -> None:
    for name in COMMANDS:
        command: click.Command = import_module(COMMANDS[name][0]).command
        known = {word for option in command.params for word in (*option.opts, *option.secondary_opts)}
        cells = re.findall(r"^\| (`-.*?) \|", section("docs/commands.md", f"kvsteer {name}"), re.MULTILINE)
        documented = {word for cell in cells for word in re.findall(r"`(--?[a-z-]+)", cell)}
        assert documented <= known, f"kvsteer {name}"


def command_lines() -> Iterator[tuple[str, str]]:
    for page, text in TEXTS.items():
        for block in [*blocks(text, "sh"), *blocks(text, "")]:
            for line in block.splitlines():
                if re.match(r"(\.venv/bin/)?kvsteer ", line):
                    yield page, line


@pytest.mark.parametrize(("page", "line"), sorted(set(command_lines())))
def test_every_command_line_shown_is_one_that_would_run(page: str, line: str) -> None:
    name, *arguments = [word for word in shlex.split(line, comments=True)[1:] if word != "&"]
    assert (ROOT / "extproc" / "cli" / f"{name.replace('-', '_')}.py").is_file()
    if name in COMMANDS:
        context = click.Context(kvsteer)
        command = kvsteer.get_command(context, name)
        assert command is not None
        command.make_context(name, arguments, parent=context)  # refuses what it does not know


def typed(text: str) -> Iterator[str]:
    """What a page shows to be typed: lines of shell, without remarks, and words in backticks."""
    for block in [*blocks(text, "sh"), *blocks(text, "")]:
        yield from (re.split(r"(?:^|\s+)# ", line)[0] for line in block.splitlines())
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def bare(line: str) -> list[str]:
    """Addresses of a line in which zsh and bash would take `?`, `*` or `&` for something else."""
    return re.findall(r"(?<![\S'\"])https?://[^\s'\"]*[?&*][^\s'\"]*", line)


def test_addresses_that_a_shell_would_take_apart_are_quoted() -> None:
    assert bare("curl -s http://127.0.0.1:9095/decisions?last=1") == [
        "http://127.0.0.1:9095/decisions?last=1"
    ]
    assert bare("curl -s 'http://127.0.0.1:9095/decisions?last=1'") == []
    shown = [(page, line) for page, text in TEXTS.items() for line in typed(text)]
    assert [(page, found) for page, line in shown for found in bare(line)] == []


def test_kvsteer_comes_onto_the_path_before_it_is_typed() -> None:
    for page, text in TEXTS.items():
        assert ".venv/bin/kvsteer " not in text, page
    first = blocks(TEXTS["docs/quickstart.md"], "sh")
    assert [block.splitlines()[0].split("  ")[0] for block in first[:2]] == [
        "make demo",
        "source .venv/bin/activate",
    ]


def test_every_make_target_named_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page, text in TEXTS.items():
        shown = [*re.findall(r"`([^`\n]*)`", text), *"\n".join(blocks(text, "sh")).splitlines()]
        named = {name for piece in shown for name in re.findall(r"(?:^|&& )make(?: -C \S+)? ([a-z]+)", piece)}
        assert named <= targets, page


def test_every_benchmark_named_exists() -> None:
    for page, text in TEXTS.items():
        for name in re.findall(r"benchmarks[./](\w+)", text):
            assert (ROOT / "benchmarks" / f"{name}.py").is_file(), f"{page}: {name}"


# -- policies, dialects, engines ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_documented_with_its_settings_and_defaults(name: str) -> None:
    text = section("docs/policies.md", name)
    for setting, default in policy_settings(name).items():
        assert f"| `{setting}` | {default:g} |" in text, setting
    for what in ("When:", "ost"):
        assert what in text, f"{name} does not say {what}"


def test_every_documented_policy_exists_with_those_settings() -> None:
    table = re.findall(r"^\| \[`(\w+)`\]\(#(\w+)\) \|.*\| (.*) \|$", TEXTS["docs/policies.md"], re.MULTILINE)
    assert {name for name, _, _ in table} == set(POLICIES)
    for name, anchor, settings in table:
        assert name == anchor
        assert re.findall(r"`(\w+)`", settings) == list(policy_settings(name)), name


def test_every_dialect_is_in_the_table_of_dialects() -> None:
    named = re.findall(r"^\| `(\w+)` \| `/", TEXTS["docs/dialects.md"], re.MULTILINE)
    assert sorted(named) == sorted(dialect.NAME for dialect in DIALECTS)


def test_every_engine_is_documented_and_can_be_set() -> None:
    named = re.findall(r"^\| field \| .*?\(`(\w+)`\)", TEXTS["docs/engines.md"], re.MULTILINE)
    assert sorted(named) == sorted(NAMES)
    assert set(get_args(PoolSettings.model_fields["engine"].annotation)) == {"auto", "generic", *NAMES}


# -- metrics -----------------------------------------------------------------------------------------------


def exposed() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Name as a scrape shows it -> type and labels; those that show only once counted are counted here."""
    text = (
        'grpc: {transport: fast}\nredis: {url: "redis://127.0.0.1:1"}\n'
        'tracing: {endpoint: "http://127.0.0.1:1"}\npools: [{replicas: ["10.0.0.1:8000"]}]'
    )
    gateway = Gateway(parse(text, "docs"))
    metrics = gateway.metrics
    metrics.scrape_failures.labels("connect").inc()
    metrics.task_failures.labels("sweep").inc()
    gateway.steering.pools[0].replicas[0].headroom = 1.0
    session = gateway.exchanges.session()
    session.receive(b"")  # not ext_proc: a sample of the counter of exchanges
    found = {}
    for family in gateway.prometheus.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if name.startswith("process_"):
            continue  # every Prometheus client has them
        labels = [*family.samples[0].labels] if family.samples else []
        found[name] = (family.type, tuple(label for label in labels if label != "le"))
    return found


def documented() -> dict[str, tuple[str, tuple[str, ...]]]:
    table = re.findall(r"^\| `(kvsteer_\w+)` \| (\w+) \| (.*?) \|", TEXTS["docs/metrics.md"], re.MULTILINE)
    return {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in table}


def test_every_metric_exposed_is_documented_with_type_and_labels() -> None:
    real, written = exposed(), documented()
    assert set(real) == set(written)
    for name, (kind, labels) in real.items():
        assert written[name][0] == kind, name
        assert not labels or written[name][1] == labels, name


def test_every_metric_named_anywhere_exists() -> None:
    known = set(exposed())
    known |= {f"{name}_bucket" for name in known}
    for page, text in TEXTS.items():
        for name in re.findall(r"`?(kvsteer_[a-z_]+)", text):
            if not name.startswith(("kvsteer_pool", "kvsteer_gateways")):  # Envoy's clusters
                assert name in known, f"{page}: {name}"


def test_every_outcome_is_documented() -> None:
    """ENDED_EARLY apart, which is never counted."""
    outcomes = {getattr(states, name) for name in states.__annotations__ if name.isupper()}
    assert len(outcomes) == 13
    table = re.findall(
        r"^\| `(\w+)` \|", section("docs/metrics.md", "Requests").partition("Outcomes:")[2], re.M
    )
    assert set(table) == {"outcome", *outcomes} - {states.ENDED_EARLY}  # the heading is in backticks too


def test_every_reason_to_be_no_candidate_is_documented() -> None:
    """The words of core/fleet.py and core/adapters.py and the states but healthy: in operations as a table."""
    words = {getattr(fleet, name) for name in fleet.__annotations__ if isinstance(getattr(fleet, name), str)}
    assert {fleet.STALE, fleet.KV_CEILING, *fleet.SOFT} <= words | set(STATES)
    reasons = words | {NOT_LISTED, *STATES} - {HEALTHY}
    table = (
        section("docs/operations.md", "The admin port").partition("| `excluded` |")[2].partition("\n\n")[0]
    )
    assert set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == reasons


def test_what_has_a_count_and_no_decision_is_documented() -> None:
    """`unknown_model` is not in /decisions, and was said to have passed unsteered."""
    text = section("docs/operations.md", "Why did this request go there?")
    outcomes = {getattr(states, name) for name in states.__annotations__ if name.isupper()}
    decided = {
        states.STEERED, states.UNREADABLE, states.NO_BODY, states.NOT_ADMITTED,
        states.ENDED_EARLY, states.OBSERVED,  # never counted, and no exchange
    }  # fmt: skip
    assert [word for word in outcomes - decided if f"`{word}`" not in text] == []


# -- pages -------------------------------------------------------------------------------------------------


def test_the_pages_are_there() -> None:
    assert set(TEXTS) >= FILES


def anchors(text: str) -> set[str]:
    """GitHub's anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", TEXTS)
def test_every_relative_link_leads_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", TEXTS[page], flags=re.DOTALL)):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        path = ((ROOT / page).parent / name).resolve() if name else ROOT / page
        assert path.exists(), f"{page} links to {target}"
        if anchor:
            assert anchor in anchors(path.read_text()), f"{page} links to {target}"


def test_every_page_of_docs_is_linked_from_the_readme() -> None:
    for page in TEXTS:
        if page.startswith("docs/"):
            assert f"]({page})" in TEXTS["README.md"], page


def test_the_readme_comes_to_the_point() -> None:
    first, found, _ = TEXTS["README.md"].partition("\n## Details\n")
    assert found
    assert len(first.splitlines()) <= 100


def test_every_configuration_shown_is_good_or_refused_for_missing_pools_alone() -> None:
    shown = [(page, block) for page, text in TEXTS.items() for block in blocks(text, "yaml")]
    assert any(page == "README.md" for page, _ in shown)
    for page, block in shown:
        if re.search(r"^pools:", block, re.MULTILINE):
            try:
                parse(block, page)
            except ConfigError as error:
                pytest.fail(f"{page} shows a faulty configuration: {error}")


def test_the_guarantees_name_commands_whose_files_exist() -> None:
    table = rows(TEXTS["docs/guarantees.md"])
    assert len(table) >= 12
    for row in table:
        for path in re.findall(r"tests/\S+\.py", row.command):
            assert (ROOT / path).is_file(), path
        for word in re.findall(r"pytest (\S+) .*?-k (\w+)", row.command):
            assert re.search(rf"def test_\w*{word[1]}", (ROOT / word[0]).read_text()), row.command


# -- layout ------------------------------------------------------------------------------------------------


def layout() -> tuple[set[str], set[str]]:
    """Files and whole folders (given as `name/*`) that ARCHITECTURE.md's layout names, from `extproc/` on."""
    tree = next(block for block in blocks(TEXTS["ARCHITECTURE.md"], "") if block.startswith("extproc/"))
    files: set[str] = set()
    folders: set[str] = set()
    parents: list[str] = []
    for line in tree.splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        parents = parents[:depth]
        path = "/".join([*parents, name.rstrip("/*")])
        if name.endswith("/*"):
            folders.add(path)
        elif name.endswith("/"):
            parents.append(name.rstrip("/"))
        elif name.endswith(".py"):
            files.add(path)
    return files, folders


def test_the_layout_names_every_module() -> None:
    files, folders = layout()
    for path in sorted((ROOT / "extproc").rglob("*.py")):
        name, folder = path.relative_to(ROOT).as_posix(), path.parent.relative_to(ROOT).as_posix()
        assert name in files or folder in folders, f"ARCHITECTURE.md's layout does not name {name}"


def test_the_layout_names_only_what_is_there() -> None:
    files, folders = layout()
    assert [name for name in files if not (ROOT / name).is_file()] == []
    assert [name for name in folders if not (ROOT / name).is_dir()] == []

"""What a command says when there is nothing that it could write."""

from pathlib import Path

from click.testing import CliRunner

from extproc.cli import simulate, tune

SMALL = ["--generate", "chat:rate=5,requests=40", "--seeds", "0"]


def test_a_page_on_standard_output_is_refused_before_the_run() -> None:
    done = CliRunner().invoke(simulate.command, [*SMALL, "--html", "-"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "name one" in done.stderr


def test_tune_says_when_nothing_was_measured(tmp_path: Path) -> None:
    trace = tmp_path / "one.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 100, "output_length": 5, "hash_ids": [1]}\n')
    done = CliRunner().invoke(tune.command, [str(trace), "--seeds", "0", "--try", "gain=2:3"])
    assert "Nothing was measured" in done.stdout, done.output

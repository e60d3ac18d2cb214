"""docs/emulated-engine.md names every setting, fault and path, and the command has an option for each setting."""

import dataclasses
from pathlib import Path

from click.testing import CliRunner

from extproc.cli.engine import command
from extproc.sim.emulated.faults import Control
from extproc.sim.emulated.settings import EngineSettings

DOCS = (Path(__file__).parents[2] / "docs" / "emulated-engine.md").read_text()


def test_every_setting_is_documented():
    for field in dataclasses.fields(EngineSettings):
        assert f"`{field.name}`" in DOCS, field.name


def test_every_fault_is_documented():
    for name in Control.model_fields:
        assert f"`{name}`" in DOCS, name


def test_every_setting_is_an_option_with_the_same_default():
    defaults = command.make_context("engine", []).params
    for field in dataclasses.fields(EngineSettings):
        assert defaults[field.name] == field.default, field.name


def test_help_says_what_each_option_is():
    text = CliRunner().invoke(command, ["--help"]).output
    assert "--tokens-per-chunk" in text
    assert "prompt tokens computed a second" in text

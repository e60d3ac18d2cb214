"""kvsteer undrain."""

from extproc.cli.drain import undrain as command

__all__ = ["command"]

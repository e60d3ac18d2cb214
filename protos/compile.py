"""Compile protos/ into extproc/pb/ (`make protos`); the output is committed.

Run with another folder as its only argument, it writes there instead: the tests compare the two.
"""

import re
import sys
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "kvsteer"
PACKAGE = ROOT.parent / "extproc" / "pb"
INIT = '"""Wire messages, generated from protos/ by protos/compile.py; not to be edited."""\n'


def main(arguments: list[str]) -> int:
    """Write the generated modules; exit status 0, or protoc's own."""
    target = Path(arguments[0]) if arguments else PACKAGE
    with tempfile.TemporaryDirectory() as folder:
        status = _protoc(Path(folder))
        if status == 0:
            _write(Path(folder) / "kvsteer", target)
    return status


def _protoc(folder: Path) -> int:
    well_known = resources.files("grpc_tools") / "_proto"
    flags = [f"-I{ROOT}", f"-I{well_known}", f"--python_out={folder}", f"--pyi_out={folder}"]
    return int(protoc.main(["protoc", *flags, *(str(path) for path in sorted(SOURCES.glob("*.proto")))]))


def _write(generated: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name, text in _modules(generated):
        (target / name).write_text(text, encoding="utf-8")


def _modules(generated: Path) -> Iterator[tuple[str, str]]:
    """Name and text of every module of the package."""
    yield "__init__.py", INIT
    for path in sorted(generated.iterdir()):
        text = _into_package(path.read_text(encoding="utf-8"))
        yield path.name, _typed_mappings(text) if path.suffix == ".pyi" else text


def _into_package(text: str) -> str:
    """Imports of each other and the modules of classes name the package the files really are in."""
    text = re.sub(r"^from kvsteer import ", "from extproc.pb import ", text, flags=re.MULTILINE)
    return re.sub(r"'kvsteer\.(\w+_pb2)'", r"'extproc.pb.\1'", text)


def _typed_mappings(stub: str) -> str:
    """The stub generator writes a bare Mapping, which strict type checks refuse."""
    stub = re.sub(r"\b_Mapping(?=\])", "_Mapping[str, _Any]", stub)
    return stub.replace("from typing import ", "from typing import Any as _Any, ", 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

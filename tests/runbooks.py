"""The queries that docs/runbooks.md shows, for tests that hold them against what is exposed."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "runbooks.md"


def queries() -> list[tuple[str, str]]:
    """Heading and query; one begins in the first column of a code block and goes on while lines are indented."""
    found = []
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        heading = section.partition("\n")[0]
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
            shown = [] if language else re.split(r"\n(?=\S)", block.strip())
            found += [(heading, " ".join(query.split())) for query in shown]
    return found

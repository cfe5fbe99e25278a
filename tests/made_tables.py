"""Tables in the documentation that a command makes, so that a test can hold them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TYPES = Path(__file__).resolve().parents[1] / "docs" / "types.md"
_END = "<!-- end -->"


@dataclass(frozen=True, slots=True)
class MadeTable:
    """A table between two comments, of which the first says how it is made again."""

    document: Path
    command: str

    def read(self) -> str:
        """Return the table that the documentation holds."""
        _, table, _ = self._parts()
        return table.strip()

    def write(self, table: str) -> None:
        """Put a table into the documentation."""
        before, _, after = self._parts()
        self.document.write_text(f"{before}\n{table}\n{after}")

    def _parts(self) -> tuple[str, str, str]:
        text = self.document.read_text()
        begin = f"<!-- made by `{self.command}` -->"
        start = text.index(begin) + len(begin)
        end = text.index(_END, start)
        return text[:start], text[start:end], text[end:]

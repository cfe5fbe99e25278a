"""The jars the broker runs on: coordinates and sha256 of each, read from one text file.

One line per jar, `group:artifact:version[:classifier] sha256`; `#` starts a comment. A jar is kept
under the name `group--artifact-version.jar`, so that two groups' artifacts of one name do not
collide.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

KAFKA = ("org.apache.kafka", "kafka_2.13")

HEADER = """\
# The jars of the embedded broker: Maven coordinates and sha256, the runtime closure of Kafka plus a
# binding for its log. Written by `python -m consumers.broker --pin` (--kafka VERSION chooses).
"""


@dataclass(frozen=True, slots=True, order=True)
class Pin:
    """One jar by coordinates and content."""

    group: str
    artifact: str
    version: str
    sha256: str
    classifier: str = ""

    @property
    def file_name(self) -> str:
        """The jar's name in the cache."""
        tail = f"-{self.classifier}" if self.classifier else ""
        return f"{self.group}--{self.artifact}-{self.version}{tail}.jar"


def pins_path() -> Path:
    """The wheel carries the pins inside the package; a checkout keeps them in `infra/`."""
    shipped = Path(__file__).with_name("kafka-jars.txt")
    return shipped if shipped.exists() else Path(__file__).parents[2] / "infra" / "kafka-jars.txt"


def read_pins() -> tuple[Pin, ...]:
    """Read the pins from where the product keeps them."""
    return parse_pins(pins_path().read_text(encoding="utf-8"))


def parse_pins(text: str) -> tuple[Pin, ...]:
    """Read pins from their text; a malformed line is a ValueError that shows it."""
    pins = []
    for line in text.splitlines():
        content = line.partition("#")[0].strip()
        if not content:
            continue
        coordinates, _, sha256 = content.partition(" ")
        if not re.fullmatch(r"[^:]+(:[^:]+){2,3}", coordinates) or len(sha256.strip()) != 64:
            raise ValueError(f"not a pin, want `group:artifact:version sha256`: {line!r}")
        group, artifact, version, *classifier = coordinates.split(":")
        known = {"sha256": sha256.strip(), "classifier": "".join(classifier)}
        pins.append(Pin(group, artifact, version, **known))
    return tuple(pins)


def format_pins(pins: Iterable[Pin]) -> str:
    """Write pins as text, header included."""
    lines = (f"{pin.group}:{pin.artifact}:{pin.version} {pin.sha256}\n" for pin in sorted(pins))
    return HEADER + "".join(lines)


def kafka_version(pins: Iterable[Pin]) -> str:
    """The version of Kafka that the pins name."""
    return next(pin.version for pin in pins if (pin.group, pin.artifact) == KAFKA)


def mismatches(folder: Path, pins: Iterable[Pin]) -> tuple[str, ...]:
    """Names of jars in a folder that are missing, not pinned, or of other content than pinned.

    An unpinned jar counts too: the class path is the whole folder.
    """
    expected = {pin.file_name: pin.sha256 for pin in pins}
    present = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    wrong = present ^ expected.keys()
    wrong |= {
        name for name in present & expected.keys() if _sha256(folder / name) != expected[name]
    }
    return tuple(sorted(wrong))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pin_of(path: Path) -> Pin:
    """The pin of a jar that is under its cache name."""
    group, _, rest = path.name.removesuffix(".jar").partition("--")
    artifact, _, version = rest.rpartition("-")
    # A version may hold a dash itself (1.5.7-17): it starts at the first part that is a digit.
    while "-" in artifact and artifact.rpartition("-")[2][0].isdigit():
        artifact, _, head = artifact.rpartition("-")
        version = f"{head}-{version}"
    return Pin(group, artifact, version, _sha256(path))

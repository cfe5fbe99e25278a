"""Fetch the broker's jars into the cache, or with --pin resolve Kafka again and rewrite the
pins."""

import argparse
import sys

from consumers.broker.errors import BrokerError
from consumers.broker.jars import ensure_jars, resolve_pins
from consumers.broker.java import find_java
from consumers.broker.pins import format_pins, kafka_version, pins_path


def main() -> int:
    """Do what the flags say; the folder of the jars, or the number of pins, goes to stdout."""
    parser = argparse.ArgumentParser(prog="python -m consumers.broker", description=__doc__)
    parser.add_argument("--pin", action="store_true", help="resolve anew and rewrite the pins")
    parser.add_argument("--kafka", default="4.+", help="version to pin (default: newest 4.x)")
    options = parser.parse_args()

    def show(message: str) -> None:
        print(message, file=sys.stderr)

    try:
        if options.pin:
            pins = resolve_pins(options.kafka, on_progress=show)
            pins_path().write_text(format_pins(pins), encoding="utf-8")
            print(f"{len(pins)} jars of Kafka {kafka_version(pins)} in {pins_path()}")
        else:
            print(ensure_jars(find_java(), on_progress=show))
    except BrokerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

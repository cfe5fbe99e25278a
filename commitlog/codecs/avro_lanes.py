"""The records that each commit writes and reads: in machine code, or else in generated Python."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from commitlog.codecs import avro_values as values
from commitlog.codecs import lanes
from commitlog.codecs.avro_compiled import Compiler, Decode, Encode, SchemaNames
from commitlog.codecs.avro_native import Plan, Planner
from commitlog.model.records import Code

if TYPE_CHECKING:
    from commitlog.codecs._native import Codec


def sha256(data: bytes) -> bytes:
    """Return the digest of 32 bytes."""
    return hashlib.sha256(data).digest()


class CompiledSchema:
    """The schema of a record that each commit writes and reads, made into functions.

    The last field is a record whose fields are the value's own.
    """

    def __init__(
        self,
        schema: Mapping[str, Any],
        prefix: bytes,
        native_codec: type[Codec] | None = lanes.CODEC,
    ) -> None:
        """Take the JSON of a schema, and what its records begin with."""
        self.prefix = prefix
        tail = schema["fields"][-1]["type"]
        classes = values.CLASSES
        self._schema, self._tail = schema, tail
        self._whole = SchemaNames(
            classes,
            inlined=frozenset({tail["name"]}),
            texts={"code": Code},
            derived={"Transaction": ("payload_hash", sha256)},
            sorted_pairs=values.SORTED_PAIRS,
        )
        own = {**classes, tail["name"]: classes[schema["name"]]}
        self._alone = replace(self._whole, classes=own, inlined=frozenset(), derived={})
        # What machine code leaves to Python is either no record of this schema or rare.
        self._native: Codec | None = None
        self._native_tail: Codec | None = None
        if native_codec is not None:
            self._native = native_codec(Planner(self._whole).plan(schema), prefix)
            self._native_tail = native_codec(Planner(self._alone).plan(tail), b"")

    # Made when they are needed first: with machine code a writer's start does without them.
    @cached_property
    def _python(self) -> tuple[Encode, Decode]:
        return Compiler(self._whole).compile(self._schema)

    @cached_property
    def _python_tail(self) -> Encode:
        return Compiler(self._alone).compile(self._tail)[0]

    def shape(self, fields: Sequence[str]) -> tuple[Plan, bytes, tuple[int, ...]]:
        """Return the schema's plan, what its records begin with, and the numbers of some fields."""
        plan = Planner(self._whole).plan(self._schema)
        return plan, self.prefix, tuple(map(plan[2].index, fields))

    def encode(self, value: Any) -> bytes:
        """Return a value's record."""
        made = None if self._native is None else self._native.write(value)
        return self.prefix + self._python[0](value) if made is None else made

    def encode_tail(self, value: Any) -> bytes:
        """Return the last field of a value's record."""
        made = None if self._native_tail is None else self._native_tail.write(value)
        return self._python_tail(value) if made is None else made

    def read(self, data: bytes) -> tuple[Any, int] | None:
        """Return a record's value and where its last field begins.

        None if it has another schema or is broken; the Python reader then finds the reason.
        """
        if not data.startswith(self.prefix):
            return None
        if self._native is not None and (found := self._native.read(data)) is not None:
            return found
        try:
            value, end, tail = self._python[1](data, len(self.prefix))
        except Exception:  # broken bytes make nearly every kind
            return None
        return (value, tail) if end == len(data) else None

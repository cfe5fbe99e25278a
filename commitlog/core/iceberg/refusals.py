"""Why an Iceberg change cannot be applied. These never leave the core."""

from __future__ import annotations


class Invalid(Exception):
    """The request is wrong as it stands: 400. The message names the place in the document."""


class Stale(Exception):
    """The request carries values that the table has moved past: 409, read again and redo."""

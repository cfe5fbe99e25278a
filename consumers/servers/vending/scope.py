"""What of a store a table has: the objects below its location, and what may be done with them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from consumers.servers.security.grants import Access

SCHEMES = ("s3", "s3a")
_PATTERNS = frozenset("*?$")
"""What a policy doesn't take by the letter."""
_DECODED_MAX = 5
_READS = ("s3:GetObject",)
_WRITES = ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload")


@dataclass(frozen=True, slots=True)
class Scope:
    """The objects of one table."""

    bucket: str
    folder: str
    """Without a slash at its ends; all of the table's keys begin with it and a slash."""

    def holds(self, bucket: str, key: str) -> bool:
        """Return True if an object is the table's."""
        return bucket == self.bucket and key.startswith(f"{self.folder}/") and is_plain(key)

    @property
    def has_policy(self) -> bool:
        """Whether a policy can name it: no character of it would stand for others."""
        return not _PATTERNS & set(self.folder)

    def policy(self, access: Access) -> str:
        """Return the policy of a session that reaches these objects alone."""
        bucket = f"arn:aws:s3:::{self.bucket}"
        actions = [*_READS, *(_WRITES if access >= Access.WRITE else ())]
        below = {"s3:prefix": [f"{self.folder}/", f"{self.folder}/*"]}
        statements: list[dict[str, Any]] = [
            {"Effect": "Allow", "Action": actions, "Resource": f"{bucket}/{self.folder}/*"},
            {
                "Effect": "Allow",
                "Action": ["s3:ListBucket"],
                "Resource": bucket,
                "Condition": {"StringLike": below},
            },
        ]
        document = {"Version": "2012-10-17", "Statement": statements}
        return json.dumps(document, separators=(",", ":"))


def scope_of(location: str) -> Scope | None:
    """Return what a location in S3 has; None if it is elsewhere, a whole bucket, or ambiguous."""
    scheme, separator, rest = location.partition("://")
    bucket, _, folder = rest.rstrip("/").partition("/")
    if not separator or scheme.lower() not in SCHEMES or not bucket or not folder:
        return None
    if "@" in bucket or ":" in bucket or not is_plain(folder):
        return None
    return Scope(bucket, folder)


def is_plain(key: str) -> bool:
    """Return True if a key has one meaning, however often somebody on the way decodes it."""
    for _ in range(_DECODED_MAX):
        if "\\" in key or not key.isprintable():
            return False
        if any(part in ("", ".", "..") for part in key.split("/")):
            return False
        decoded = unquote(key)
        if decoded == key:
            return True
        key = decoded
    return False

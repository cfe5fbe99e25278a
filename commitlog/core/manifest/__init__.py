"""A version's manifest, in memory and as bytes, and what changes it."""

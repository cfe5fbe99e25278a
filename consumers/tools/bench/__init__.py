"""Benchmarks: our commits beside a peer's, on the same work in the same run."""

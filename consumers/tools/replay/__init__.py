"""Rebuilds manifests, Iceberg's metadata files and the index from the log alone."""

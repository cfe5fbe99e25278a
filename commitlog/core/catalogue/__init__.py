"""Decides what makes, ends and names tables and namespaces."""

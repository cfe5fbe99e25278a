"""Keeps tables fast and their histories short, by the policies of their properties."""

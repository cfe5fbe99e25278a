"""Transactions made of what callers ask for, and submitted until they have their outcome."""

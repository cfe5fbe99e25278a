"""Deterministic simulation: the real program on a simulated log, store, disk and clock.

One seed decides everything: which task runs next, how the time passes, what fails. The code under
test is the product's own, driven step by step without threads. `python -m tests.simulation --help`
runs as many seeds as asked for.
"""

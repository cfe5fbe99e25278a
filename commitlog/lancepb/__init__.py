"""Lance's messages and our manifest delta as Python classes, generated from `schemas/`.

Regenerate with `make proto`; a test compares the result with what is here.
"""

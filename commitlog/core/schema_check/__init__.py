"""Whether Lance can open what an operation brings."""

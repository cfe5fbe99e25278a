"""Tables kept fast by their policies."""

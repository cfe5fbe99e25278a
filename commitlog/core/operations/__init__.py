"""Lance's operations, a module each: all that is particular to one of them."""

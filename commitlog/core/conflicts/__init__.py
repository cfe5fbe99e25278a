"""Which concurrent operations may both commit."""

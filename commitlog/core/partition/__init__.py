"""The state machine of one partition."""

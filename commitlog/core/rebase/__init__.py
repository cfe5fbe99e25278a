"""Carries an operation over what was committed since it read the table."""

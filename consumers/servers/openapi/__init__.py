"""What this server serves, said as OpenAPI and as a page."""

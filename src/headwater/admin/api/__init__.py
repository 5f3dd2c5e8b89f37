"""The HTTP API: what administrators and scripts ask of a broker, as JSON, under /v1."""

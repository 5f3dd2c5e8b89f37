"""Handlers, and those who run them: `bus.handler`, `bus.consume`, `bus.run`, `headwater work`."""

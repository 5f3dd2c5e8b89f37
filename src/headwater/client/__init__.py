"""The client of a served bus: one core for asyncio, and a thin shell for threads."""

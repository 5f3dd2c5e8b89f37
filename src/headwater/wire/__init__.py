"""The native protocol: bytes in, values out, and back. No I/O, no asyncio."""

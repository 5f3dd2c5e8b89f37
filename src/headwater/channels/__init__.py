"""Channels: messages that the server pushes to receivers, over TCP and HTTP."""

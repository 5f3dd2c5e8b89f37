"""Headwater's own protocol, served: its connection and its session."""

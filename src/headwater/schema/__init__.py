"""Schemas: what the payloads of topics have to be, in one form that needs no Python class."""

"""Publishes on their way to disk: roots, groups that are committed together, what is shown early, what is retained."""

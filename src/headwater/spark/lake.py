"""The lake by the name that users know it by."""

from headwater.lake.lake import open_lake

__all__ = ["open_lake"]

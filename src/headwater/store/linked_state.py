"""A way to a state whose folder takes no writes: a private folder with links to its files.

RocksDB's binding writes a small file of its own into whatever folder it opens, also where it only reads.
"""

from __future__ import annotations

from headwater.store.files import DiskFiles

OWN = "rocksdict-config.json"
"""What the binding writes, and so is copied."""
LEFT_OUT = ("LOG", "LOCK")


class Linked:
    """The links; they keep up with an owner who writes there all the same, as where a mount alone takes no writes."""

    def __init__(self, files: DiskFiles, path: str, private: str) -> None:
        self.path = f"{private}/links"
        self._files = files
        self._from = path
        files.make_folder(self.path)
        if files.exists(f"{path}/{OWN}"):
            files.write(f"{self.path}/{OWN}", files.read(f"{path}/{OWN}"))
        self.refresh()

    def refresh(self) -> None:
        """Have a link to each file that is new."""
        there = set(self._files.list(self.path))
        for name in self._files.list(self._from):
            if name not in there and not name.startswith(LEFT_OUT):
                self._files.lead_to(f"{self._from}/{name}", f"{self.path}/{name}")

"""Fuzz the wire with atheris, which looks for bytes that reach new code.

    pip install atheris                                  # no dependency: it has wheels for some Pythons only
    python tests/fuzz/fuzz_wire.py -max_total_time=60    # any option of libFuzzer; folders hold a corpus

The seeds are the vectors of docs/reference/protocol.md, in a folder that is made for the run. `make soak` runs it for a
minute where atheris can be imported (tests/fuzz/test_fuzz_wire.py); `make test` runs the same check with hypothesis.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def write_seeds(folder: Path) -> int:
    """One file for each vector, and one with all of them; how many."""
    from wire.vectors import read_vectors

    seeds = {vector.name: vector.data for vector in read_vectors()}
    seeds["all"] = b"".join(seeds.values())
    for name, data in seeds.items():
        (folder / name).write_bytes(b"\x07" + data)
    return len(seeds)


def main(arguments: list[str]) -> None:
    """Fuzz until an option says to stop, or something is found."""
    sys.path.insert(0, str(TESTS))
    import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]  # where there is a wheel

    with atheris.instrument_imports(include=["headwater.wire"]):
        from fuzz.wire_input import check

    with tempfile.TemporaryDirectory(prefix="headwater-fuzz-") as folder:
        write_seeds(Path(folder))
        atheris.Setup([sys.argv[0], *arguments, folder], check)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])

"""`headwater bench cluster`: three nodes beside the engine that they stand on, alone, by turns, in one run."""

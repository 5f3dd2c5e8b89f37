"""Several nodes for one bus: one leads, the others follow, and each has all of it."""

"""The lake: what was archived of each root, as Iceberg tables, which are read here without Spark."""

"""Pipelines: jobs on Spark that come with Headwater. `headwater pipeline --help` runs them."""

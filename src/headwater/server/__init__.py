"""The served broker: the embedded bus behind TCP."""

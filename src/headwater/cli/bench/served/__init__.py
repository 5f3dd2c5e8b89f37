"""The served broker, measured over loopback: the broker is one process, the load others."""

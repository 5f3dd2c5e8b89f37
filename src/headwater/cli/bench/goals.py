"""What is to be reached wherever it is measured: by `headwater bench`, and beside other brokers by `bench/peers`."""

LOOK_UPS_WARM_PER_S = 3_000_000
LOOK_UPS_COLD_PER_S = 150_000
SUBSCRIPTION_BYTES = 400
START_S = 0.5
"""However much is stored."""
IDLE_KIB = 12
"""Of the broker's memory, for a connection with a subscription."""
SUBSCRIBERS = (1, 10, 100)
"""Of what is fanned out."""

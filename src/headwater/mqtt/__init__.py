"""MQTT 3.1.1 and 5: any device and language is a client."""

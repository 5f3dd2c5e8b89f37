"""Delivery: subscriptions, their cursors and states, retries, dead letters, replay."""

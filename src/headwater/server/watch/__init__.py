"""Figures, lags, levels and health of a running server, for those who look at it."""

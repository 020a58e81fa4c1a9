"""A run's report, one HTML page."""

"""From data and options to the best of several optimised starts."""

"""One offline page for a fitted model."""

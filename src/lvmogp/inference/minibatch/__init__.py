"""Data beyond memory and beyond one machine."""

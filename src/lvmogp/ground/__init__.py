"""What every floor stands on: compiled functions, files written whole."""

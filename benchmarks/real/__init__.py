"""Real grouped data: how well conditions, known and new, are predicted, beside the rivals."""

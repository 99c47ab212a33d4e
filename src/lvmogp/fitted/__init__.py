"""A fitted model and what it answers, in the user's units."""

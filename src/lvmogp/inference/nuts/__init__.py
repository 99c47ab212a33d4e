"""Draws of latents and hyperparameters from their posterior."""

"""Conditions, trained and new: inferring them, and the curves and joint distributions that answer for them."""

"""Axis names and array aliases shared by every module.

Axes, as in the paper (see ``docs/notation.md``):

================  =====================================================
``N``             inputs of a grid
``D``             conditions
``n``             observations, or rows of a prediction
``Q_X``           columns of an input
``Q_H``           coordinates of a condition, Q_L + Q_F
``Q_L``           latents of a condition, which are inferred
``Q_F``           coordinates of a condition that come from its features
``Q_U``           coordinates of a new condition that are not known
``M_X``           inducing inputs
``M_H``           inducing latents
``MM``            inducing points in all, M_X · M_H
``blocks places`` blocks of observations, and observations in a block
``P``             particles, the weighted latents of a new condition
``draws``         posterior draws
================  =====================================================
"""

import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

__all__ = ["Array", "Bool", "Float", "HostFloat", "HostInt", "Int", "Scalar"]

Scalar = Float[Array, ""]
# Arrays outside traced code.
HostFloat = np.ndarray
HostInt = np.ndarray

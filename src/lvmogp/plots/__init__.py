"""Pictures of a fitted model: each function draws on given axes, or on new ones, and returns them.

``plot_curve``, ``plot_data`` and ``plot_latents`` are parts to be laid over each other, and draw on pyplot's current
axes unless told otherwise. All others are pictures of their own, and make a new figure unless given axes.
"""

from lvmogp.plots.checks import plot_calibration, plot_convergence, plot_relevance, plot_variance_shares
from lvmogp.plots.curves import default_grid, observed, plot_curve, plot_curves, plot_data, plot_parts, plot_surface
from lvmogp.plots.latents import plot_latent_space, plot_latents, plot_new_condition
from lvmogp.plots.style import COLOURS, LINE_STYLES, MARKERS

__all__ = [
    "COLOURS",
    "LINE_STYLES",
    "MARKERS",
    "default_grid",
    "observed",
    "plot_calibration",
    "plot_convergence",
    "plot_curve",
    "plot_curves",
    "plot_data",
    "plot_latent_space",
    "plot_latents",
    "plot_new_condition",
    "plot_parts",
    "plot_relevance",
    "plot_surface",
    "plot_variance_shares",
]

"""Models that LVMOGP is compared with, on the same kernels, noise options and optimiser."""

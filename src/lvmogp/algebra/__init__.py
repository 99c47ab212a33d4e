"""Matrix factors, Kronecker products, Gaussians, and free vectors of constrained values."""

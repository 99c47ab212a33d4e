"""The model: layouts of data, parameters, expected likelihood, bounds, and the process given data."""

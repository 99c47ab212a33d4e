// Covariance functions on points, as in kernels.py.

const CORRELATIONS = {
  rbf: (squared) => Math.exp(-squared / 2),
  matern12: (squared) => Math.exp(-Math.sqrt(squared)),
  matern32: (squared) => {
    const scaled = Math.sqrt(3 * squared);
    return (1 + scaled) * Math.exp(-scaled);
  },
  matern52: (squared) => {
    const scaled = Math.sqrt(5 * squared);
    return (1 + scaled + (5 * squared) / 3) * Math.exp(-scaled);
  },
  "rational-quadratic": (squared, kernel) => Math.exp(-kernel.shape * Math.log1p(squared / (2 * kernel.shape))),
};

// A hyperparameter is one number, or one per column.
function ofColumn(values, place) {
  return typeof values === "number" ? values : values[place];
}

function covarianceOfPoints(kernel, first, second) {
  if (kernel.kind === "sum")
    return kernel.terms.reduce((sum, term) => sum + covarianceOfPoints(term, first, second), 0);
  if (kernel.kind === "product")
    return kernel.terms.reduce((product, term) => product * covarianceOfPoints(term, first, second), 1);
  if (kernel.kind === "constant") return kernel.variance;
  let total = 0;
  const n = kernel.columns === null ? first.length : kernel.columns.length;
  for (let place = 0; place < n; place++) {
    const column = kernel.columns === null ? place : kernel.columns[place];
    const x = first[column],
      y = second[column];
    if (kernel.kind === "linear") total += ofColumn(kernel.variance, place) * x * y;
    else if (kernel.kind === "periodic") {
      const sine = Math.sin((Math.PI * (x - y)) / ofColumn(kernel.period, place));
      total += (sine / ofColumn(kernel.lengthscale, place)) ** 2;
    } else total += ((x - y) / ofColumn(kernel.lengthscale, place)) ** 2;
  }
  if (kernel.kind === "linear") return total;
  if (kernel.kind === "periodic") return kernel.variance * Math.exp(-2 * total);
  return kernel.variance * CORRELATIONS[kernel.kind](total, kernel);
}

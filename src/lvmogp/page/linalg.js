// Linear algebra for small matrices, stored row by row in flat arrays.

const JITTER_STEP = 10;
const JITTER_LIMIT = 1e-2;

function dot(first, second) {
  let total = 0;
  for (let i = 0; i < first.length; i++) total += first[i] * second[i];
  return total;
}

function row(matrix, number, width) {
  return matrix.subarray(number * width, (number + 1) * width);
}

function rowsOf(matrix, width) {
  return Array.from({ length: matrix.length / width }, (_, number) => row(matrix, number, width));
}

// Rows · rightᵀ, for rows (n × k) and right (m × k).
function timesTransposed(left, right, width) {
  const n = left.length / width,
    m = right.length / width;
  const product = new Float64Array(n * m);
  for (let i = 0; i < n; i++)
    for (let j = 0; j < m; j++) product[i * m + j] = dot(row(left, i, width), row(right, j, width));
  return product;
}

function transposed(matrix, width) {
  const height = matrix.length / width;
  const result = new Float64Array(matrix.length);
  for (let i = 0; i < height; i++) for (let j = 0; j < width; j++) result[j * height + i] = matrix[i * width + j];
  return result;
}

// Lower factor of A + shift·I, or null where that is not positive.
function plainCholesky(matrix, size, shift) {
  const lower = new Float64Array(size * size);
  for (let i = 0; i < size; i++) {
    for (let j = 0; j <= i; j++) {
      let value = matrix[i * size + j] + (i === j ? shift : 0);
      for (let k = 0; k < j; k++) value -= lower[i * size + k] * lower[j * size + k];
      if (i !== j) lower[i * size + j] = value / lower[j * size + j];
      else if (value > 0) lower[i * size + i] = Math.sqrt(value);
      else return null;
    }
  }
  return lower;
}

// As `cholesky` of linalg.py: the smallest jitter of a ladder that succeeds, relative to `scale`.
function cholesky(matrix, size, scale, smallestJitter) {
  for (let jitter = smallestJitter; ; jitter *= JITTER_STEP) {
    const factor = plainCholesky(matrix, size, jitter * scale);
    if (factor !== null || jitter >= JITTER_LIMIT) return { factor, shift: jitter * scale };
  }
}

// As `factor_beside_errors` of linalg.py: rows are scaled to the variances that they have without the errors.
function factorBesideErrors(matrix, errors, size, scale, smallestJitter) {
  if (errors.every((error) => error === 0)) return cholesky(matrix, size, scale, smallestJitter);
  const own = Float64Array.from(errors, (error, i) => {
    const variance = matrix[i * size + i];
    return Math.sqrt(variance / (variance + error));
  });
  const scaled = matrix.map((value, place) => {
    const [i, j] = [Math.floor(place / size), place % size];
    return (value + (i === j ? errors[i] : 0)) * own[i] * own[j];
  });
  const { factor, shift } = cholesky(scaled, size, scale, smallestJitter);
  return { factor: factor?.map((value, place) => value / own[Math.floor(place / size)]) ?? null, shift };
}

// L⁻¹b, in place.
function whiten(lower, size, vector) {
  for (let i = 0; i < size; i++) {
    let value = vector[i];
    for (let j = 0; j < i; j++) value -= lower[i * size + j] * vector[j];
    vector[i] = value / lower[i * size + i];
  }
  return vector;
}

// L⁻ᵀb, in place.
function unwhiten(lower, size, vector) {
  for (let i = size - 1; i >= 0; i--) {
    let value = vector[i];
    for (let j = i + 1; j < size; j++) value -= lower[j * size + i] * vector[j];
    vector[i] = value / lower[i * size + i];
  }
  return vector;
}

// Eigenvalues and eigenvectors (columns) of a small symmetric matrix by Jacobi's rotations.
function eigenSymmetric(matrix, size) {
  const a = Float64Array.from(matrix);
  const vectors = new Float64Array(size * size);
  for (let i = 0; i < size; i++) vectors[i * size + i] = 1;
  const rotate = (target, first, second, cosine, sine) => {
    const x = target[first],
      y = target[second];
    target[first] = cosine * x - sine * y;
    target[second] = sine * x + cosine * y;
  };
  for (let sweep = 0; sweep < 60; sweep++) {
    let off = 0,
      on = 0;
    for (let i = 0; i < size; i++)
      for (let j = 0; j < size; j++) i === j ? (on += a[i * size + j] ** 2) : (off += a[i * size + j] ** 2);
    if (off <= 1e-30 * on) break;
    for (let p = 0; p < size; p++) {
      for (let q = p + 1; q < size; q++) {
        const apq = a[p * size + q];
        if (apq === 0) continue;
        const slope = (a[q * size + q] - a[p * size + p]) / (2 * apq);
        const tangent = (slope >= 0 ? 1 : -1) / (Math.abs(slope) + Math.hypot(slope, 1));
        const cosine = 1 / Math.hypot(tangent, 1),
          sine = tangent * cosine;
        for (let k = 0; k < size; k++) rotate(a, k * size + p, k * size + q, cosine, sine);
        for (let k = 0; k < size; k++) rotate(a, p * size + k, q * size + k, cosine, sine);
        for (let k = 0; k < size; k++) rotate(vectors, k * size + p, k * size + q, cosine, sine);
      }
    }
  }
  return { values: Float64Array.from({ length: size }, (_, i) => a[i * size + i]), vectors };
}

function logSumExp(values) {
  let most = -Infinity;
  for (const value of values) if (value > most) most = value;
  if (most === -Infinity) return most;
  let total = 0;
  for (const value of values) total += Math.exp(value - most);
  return most + Math.log(total);
}

// Φ(z), the standard normal distribution function, to about 1e-7 of its value (Numerical Recipes' erfc).
const ERFC_SERIES = [
  -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223,
  0.17087277,
];

function normalDensity(z) {
  return Math.exp((-z * z) / 2) / Math.sqrt(2 * Math.PI);
}

function normalBelow(z) {
  const size = Math.abs(z) / Math.SQRT2;
  const t = 1 / (1 + size / 2);
  let series = 0;
  for (let i = ERFC_SERIES.length - 1; i >= 0; i--) series = series * t + ERFC_SERIES[i];
  const tail = (t * Math.exp(-size * size + series)) / 2;
  return z < 0 ? tail : 1 - tail;
}

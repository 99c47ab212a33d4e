// What q(v)'s covariance S says: aᵀ(δ_jk I − S_jk)a' = B_jk for pairs of inputs with features a, a'.
//
// For latent features c the covariance of a curve is k_H(h, h) k_X(x, x') − cᵀBc. cᵀBc is an inner product of numbers
// that depend on c only (`products`) with numbers that depend on the pair of inputs only (`own`, `cross`). The latter are
// computed once, which is what makes dragging quick.

// Of several terms, a is that of the term of each latent feature, and rows of features hold those of all.

function covarianceForm(stored, nInputs, termOf) {
  return stored.kind === "kronecker"
    ? kroneckerForm(stored, nInputs, termOf.length)
    : denseForm(stored.missing, nInputs, termOf);
}

// S = (U_H ⊗ U_X) diag(W) (U_H ⊗ U_X)ᵀ: cᵀBc = Σ_j (U_Hᵀc)_j² Σ_i (U_Xᵀa)_i (U_Xᵀa')_i (1 − W_ij).
function kroneckerForm(stored, nInputs, nLatents) {
  const inputRotation = transposed(stored.inputBasis, nInputs);
  const latentRotation = transposed(stored.latentBasis, nLatents);
  const contract = (target, first, second) => {
    for (let i = 0; i < nInputs; i++) {
      const product = first[i] * second[i];
      for (let j = 0; j < nLatents; j++) target[j] += product * stored.missing[i * nLatents + j];
    }
  };
  const pairs = (first, second, n, m, own) => {
    const left = timesTransposed(first, inputRotation, nInputs),
      right = timesTransposed(second, inputRotation, nInputs);
    const result = new Float64Array(n * (own ? 1 : m) * nLatents);
    for (let i = 0, place = 0; i < n; i++)
      for (let j = own ? i : 0; j < (own ? i + 1 : m); j++, place++)
        contract(row(result, place, nLatents), row(left, i, nInputs), row(right, j, nInputs));
    return result;
  };
  return {
    size: nLatents,
    products: (c) => timesTransposed(c, latentRotation, nLatents).map((value) => value * value),
    // diag(U_Hᵀ T U_H)
    ofSecondMoment: (second) => {
      const result = new Float64Array(nLatents);
      for (let j = 0; j < nLatents; j++) {
        const direction = row(latentRotation, j, nLatents);
        for (let k = 0; k < nLatents; k++) result[j] += direction[k] * dot(row(second, k, nLatents), direction);
      }
      return result;
    },
    own: (features, n) => pairs(features, features, n, n, true),
    cross: (first, second, n, m) => pairs(first, second, n, m, false),
  };
}

// I − S as the upper triangle of one matrix with blocks of M_X × M_X: the products are those of all pairs c_j c_k, j ≤ k.
function denseForm(packed, nInputs, termOf) {
  const nLatents = termOf.length,
    total = nInputs * nLatents;
  const missing = new Float64Array(total * total);
  for (let i = 0, place = 0; i < total; i++)
    for (let j = i; j < total; j++, place++) missing[i * total + j] = missing[j * total + i] = packed[place];
  const size = (nLatents * (nLatents + 1)) / 2;
  // (I − S)(I ⊗ a): M × M_H
  const applied = (a) => {
    const result = new Float64Array(total * nLatents);
    for (let i = 0; i < total; i++)
      for (let k = 0; k < nLatents; k++) {
        const start = i * total + k * nInputs,
          first = termOf[k] * nInputs;
        let value = 0;
        for (let y = 0; y < nInputs; y++) value += missing[start + y] * a[first + y];
        result[i * nLatents + k] = value;
      }
    return result;
  };
  const contract = (target, a, other) => {
    const block = new Float64Array(nLatents * nLatents);
    for (let j = 0; j < nLatents; j++) {
      const own = row(a, termOf[j], nInputs);
      for (let x = 0; x < nInputs; x++) {
        const weight = own[x],
          start = (j * nInputs + x) * nLatents;
        for (let k = 0; k < nLatents; k++) block[j * nLatents + k] += weight * other[start + k];
      }
    }
    for (let j = 0, place = 0; j < nLatents; j++)
      for (let k = j; k < nLatents; k++, place++)
        target[place] = (block[j * nLatents + k] + block[k * nLatents + j]) / 2;
  };
  const packedTwice = (entry) => {
    const result = new Float64Array(size);
    for (let j = 0, place = 0; j < nLatents; j++)
      for (let k = j; k < nLatents; k++, place++) result[place] = (j === k ? 1 : 2) * entry(j, k);
    return result;
  };
  return {
    size,
    products: (c) => packedTwice((j, k) => c[j] * c[k]),
    ofSecondMoment: (second) => packedTwice((j, k) => second[j * nLatents + k]),
    own: (features, n, width) => {
      const result = new Float64Array(n * size);
      for (let i = 0; i < n; i++) {
        const a = row(features, i, width);
        contract(row(result, i, size), a, applied(a));
      }
      return result;
    },
    cross: (first, second, n, m, width) => {
      const result = new Float64Array(n * m * size);
      for (let j = 0; j < m; j++) {
        const other = applied(row(second, j, width));
        for (let i = 0; i < n; i++) contract(row(result, i * m + j, size), row(first, i, width), other);
      }
      return result;
    },
  };
}

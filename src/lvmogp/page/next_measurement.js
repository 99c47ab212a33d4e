// Where to measure a new condition next, as conditions/expected_variance.py finds it for one measurement; the candidates
// are the region as well.

const N_CANDIDATES = 25;
const NEGLIGIBLE = 1e-12;

// Covariances of f between all pairs of prepared inputs under each particle, given the evidence (equation 22).
function pairCovariances(model, prepared, curves, nSeen) {
  const { n } = prepared;
  const pairs = model.form.cross(prepared.features, prepared.features, n, n, model.nFeatures);
  const found = curves.map(() => new Float64Array(n * n));
  for (let i = 0; i < n; i++)
    for (let j = 0; j <= i; j++) {
      const prior = priorBetween(model, prepared.points[i], prepared.points[j]);
      const own = row(pairs, i * n + j, model.form.size);
      curves.forEach(({ at, explained }, p) => {
        const given = dot(row(explained, i, nSeen), row(explained, j, nSeen));
        found[p][i * n + j] = found[p][j * n + i] = dot(at.scale, prior) - dot(own, at.products) - given;
      });
    }
  return found;
}

// Quasi-random outcomes of a measurement: the first coordinate picks the particle, in order of mean.
function imaginedOutcomes(nodes, weights, means, variances) {
  const order = d3.range(means.length).sort((p, q) => means[p] - means[q]);
  let total = 0;
  const ends = order.map((p) => (total += weights[p]));
  return d3.range(nodes.length / 2).map((k) => {
    const place = d3.bisectLeft(ends, nodes[2 * k] * total);
    const p = order[Math.min(place, order.length - 1)];
    return means[p] + Math.sqrt(variances[p]) * nodes[2 * k + 1];
  });
}

// Mean variance of the curve over all inputs, now and as expected after a measurement at each of them (equation 47).
function expectedVariances(model, inputs, condition) {
  const prepared = prepare(model, inputs);
  const { weights, noises, curves } = particleCurves(model, prepared, condition);
  const covariances = pairCovariances(model, prepared, curves, condition.evidence.n);
  const { n } = prepared;
  const centre = d3.range(n).map((t) => d3.sum(curves, ({ mean }, p) => weights[p] * mean[t]));
  const before = d3.mean(centre, (middle, t) =>
    d3.sum(curves, ({ mean, variance }, p) => weights[p] * (variance[t] + (mean[t] - middle) ** 2)),
  );
  const after = d3.range(n).map((x) => {
    const means = curves.map(({ mean }) => mean[x]);
    const variances = curves.map(({ variance }, p) => variance[x] + noises[p]);
    const outcomes = imaginedOutcomes(model.outcomeNodes, weights, means, variances);
    const within = d3.sum(curves, ({ variance }, p) => {
      const left = (t) => Math.max(variance[t] - covariances[p][x * n + t] ** 2 / variances[p], 0);
      return weights[p] * d3.mean(d3.range(n), left);
    });
    const between = d3.mean(outcomes, (outcome) => {
      const logWeights = weights.map(
        (weight, p) => Math.log(weight) - (Math.log(variances[p]) + (outcome - means[p]) ** 2 / variances[p]) / 2,
      );
      const total = logSumExp(logWeights);
      const expected = new Float64Array(n); // ⟨f | y⟩, and its square under each particle
      const squares = new Float64Array(n);
      logWeights.forEach((value, p) => {
        const weight = Math.exp(value - total);
        if (weight < NEGLIGIBLE) return;
        const push = (outcome - means[p]) / variances[p];
        for (let t = 0; t < n; t++) {
          const own = curves[p].mean[t] - centre[t] + push * covariances[p][x * n + t];
          expected[t] += weight * own;
          squares[t] += weight * own * own;
        }
      });
      return d3.mean(squares, (value, t) => value - expected[t] ** 2);
    });
    return Math.min(within + between, before);
  });
  return { before, after };
}

// Standard deviations in the units of what is modelled.
function expectedDeviations(model, inputs, condition) {
  const { before, after } = expectedVariances(model, inputs, condition);
  const inUnits = (variance) => Math.sqrt(variance) * model.scaling.outputScale;
  return { before: inUnits(before), after: after.map(inUnits) };
}

// The best of some inputs along the shown axis, the others as the sliders say.
function nextMeasurement(model, state) {
  const axis = model.inputs[state.inputAxis];
  const values = evenInputs(axis, [axis.low, axis.high], N_CANDIDATES);
  const inputs = values.map((value) => {
    const input = Array.from(state.slice);
    input[state.inputAxis] = value;
    return input;
  });
  const { before, after } = expectedDeviations(model, inputs, state.posterior);
  const best = d3.minIndex(after);
  return { value: values[best], before, after: after[best] };
}

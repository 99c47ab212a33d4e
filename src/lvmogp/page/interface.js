// What other programs can ask of the page.

// For the curious: the same numbers as Python's methods of these names, as plain arrays.
function interfaceOf(model, state) {
  const plain = (found) =>
    Object.fromEntries(Object.entries(found).map(([name, values]) => [name, Array.from(values)]));
  return {
    conditions: model.conditions.map(({ name }) => name),
    predictAtLatent: (inputs, latent, includeNoise = true) =>
      plain(predictAtLatent(model, prepare(model, inputs), latent, includeNoise)),
    predictCondition: (name, inputs, includeNoise = true) => {
      const condition = model.conditions.find((candidate) => candidate.name === name);
      return plain(predictCondition(model, prepare(model, inputs), condition, includeNoise));
    },
    newCondition: (inputs, outputs) => {
      const found = inferCondition(model, inputs, outputs);
      const { mean, sd } = latentMoments(found);
      return {
        latentMean: mean,
        latentSd: sd,
        latents: found.latents.map((latent) => Array.from(latent)),
        weights: Array.from(found.weights),
        noises: Array.from(found.noises),
        owns: Array.from(found.owns),
        predict: (points, includeNoise = true) =>
          plain(predictParticles(model, prepare(model, points), found, includeNoise)),
        expectedDeviations: (points) => expectedDeviations(model, points, found),
      };
    },
    // What is shown now.
    shown: () => ({
      active: state.active,
      condition: model.conditions[state.selected].name,
      latent: Array.from(state.probe),
      next: state.next,
      ...plain(state.curve),
    }),
  };
}

// The words around the pictures.

function spaceInWords(model) {
  const n = model.latentRelevance.length,
    features = model.featureRelevance.map(([name]) => name);
  const latent = `a latent space of ${n} dimension${n === 1 ? "" : "s"}`;
  if (features.length === 0) return latent;
  const known = `the known feature${features.length === 1 ? "" : "s"} ${features.join(", ")} (standardised)`;
  return n === 0 ? `the space of ${known}` : `${latent} beside ${known}`;
}

function writeWords(model) {
  byId("title").textContent = model.title;
  const n = d3.sum(model.conditions, ({ nObservations }) => nObservations);
  byId("lead").textContent =
    `${n > 0 ? `${d3.format(",")(n)} observations of ` : ""}${model.conditions.length} conditions, each a point ` +
    `in ${spaceInWords(model)}. ${model.inputNames.length > 1 ? "Inputs" : "Input"}: ${model.inputNames.join(", ")}.`;
  byId("latent").setAttribute(
    "aria-label",
    "Latent space; arrow keys move the point, with shift in larger steps, Home to the middle",
  );
  byId("latent-help").textContent =
    `Drag anywhere, or use the arrow keys: the curve follows. ${model.nLatent === 1 ? "Bars" : "Ellipses"}: two standard deviations` +
    `${model.nLatent === 1 ? "." : " (dashed: of the prior)."}`;
  byId("curve").setAttribute("aria-label", `Predicted ${model.outputName} against ${model.inputNames.join(", ")}`);
  byId("new-help").textContent =
    "Type or click a few observations of a condition that the model has not seen. The trained model stays as it is.";
  if (model.fromDraws)
    byId("new-help").textContent +=
      " Curves of conditions are those of the posterior draws; at the point and of a new condition, of the variational fit.";
  byId("observations-label").textContent =
    `One observation a line: ${[...model.inputNames, model.outputName].join(", ")}`;
  byId("observations-message").textContent = NOTHING_TYPED;
  byId("footer").textContent =
    `Made with lvmogp ${model.version}. All curves are computed in this page; it needs no network.`;
  model.conditions.forEach(({ name }, number) => byId("condition").append(element("option", name, { value: number })));
}

// The words around the pictures.

function spaceInWords(model) {
  const n = model.latentRelevance.length,
    features = model.featureRelevance.map(([name]) => name);
  const latent = `a latent space of ${n} dimension${n === 1 ? "" : "s"}`;
  if (features.length === 0) return latent;
  const known = `the known feature${features.length === 1 ? "" : "s"} ${features.join(", ")} (standardised)`;
  return n === 0 ? `the space of ${known}` : `${latent} beside ${known}`;
}

// What a curve is the sum of, where that is more than one thing.
function sumInWords(model) {
  const n = model.latentBasis.kernels.length;
  const parts = [
    ...(model.latentBasis.constant ? ["one that all conditions share"] : []),
    ...(n > 0 ? [n === 1 ? "one that depends on the point" : `${n} that depend on the point`] : []),
    ...(model.hasOwn ? ["one of its own"] : []),
  ];
  if (model.nKernels === 1) return "";
  const last = parts.pop();
  return ` Each curve is a sum: ${parts.length === 0 ? last : `${parts.join(", ")} and ${last}`}.`;
}

// Without a latent space the curves are all there is to see.
function leaveOutLatents() {
  byId("latent").closest("section").hidden = true;
  byId("curve-heading").after(byId("condition").closest("label"));
  byId("curve").closest(".panels").classList.add("single");
}

function writeWords(model) {
  byId("title").textContent = model.title;
  const n = d3.sum(model.conditions, ({ nObservations }) => nObservations);
  byId("lead").textContent =
    `${n > 0 ? `${d3.format(",")(n)} observations of ` : ""}${model.conditions.length} conditions` +
    `${model.hasLatents ? `, each a point in ${spaceInWords(model)}` : ""}.${sumInWords(model)} ` +
    `${model.inputNames.length > 1 ? "Inputs" : "Input"}: ${model.inputNames.join(", ")}.`;
  byId("latent").setAttribute(
    "aria-label",
    "Latent space; arrow keys move the point, with shift in larger steps, Home to the middle",
  );
  byId("latent-help").textContent =
    `Drag anywhere, or use the arrow keys: the curve follows. ${model.nLatent === 1 ? "Bars" : "Ellipses"}: two standard deviations` +
    `${model.nLatent === 1 ? "." : " (dashed: of the prior)."}`;
  if (model.hasOwn && model.hasLatents)
    byId("latent-help").textContent += " At the point, nothing is known of the condition's own curve.";
  if (!model.hasLatents) leaveOutLatents();
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

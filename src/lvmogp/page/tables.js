// Tables, settings, remarks.

function tableOf(columns, rows) {
  const table = element("table");
  if (columns.length > 0) {
    const head = element("tr");
    columns.forEach(({ name, number }) =>
      head.append(element("th", name, { scope: "col", class: number ? "number" : "" })),
    );
    const group = element("thead");
    group.append(head);
    table.append(group);
  }
  const body = element("tbody");
  for (const cells of rows) {
    const line = element("tr");
    cells.forEach((cell, place) => {
      const holder = element("td", undefined, { class: columns[place]?.number ? "number" : "" });
      holder.append(cell);
      line.append(holder);
    });
    body.append(line);
  }
  table.append(body);
  const holder = element("div", undefined, { class: "scroll" });
  holder.append(table);
  return holder;
}

function meter(value) {
  const holder = element("span", undefined, { class: "meter", "aria-hidden": "true" });
  const filled = element("i");
  filled.style.width = `${100 * Math.min(1, Math.max(0, value))}%`;
  holder.append(filled);
  return holder;
}

function relevanceTable(name, rows) {
  const cells = rows.map(([label, value]) => [label, value.toFixed(3), meter(value)]);
  return tableOf([{ name }, { name: "relevance", number: true }, { name: "" }], cells);
}

function conditionTable(model, actions) {
  const latents = d3.range(model.hasLatents ? model.nLatent : 0).flatMap((q) => [
    { name: model.coordinateNames[q], number: true },
    { name: "± sd", number: true },
  ]);
  const columns = [
    { name: model.conditionName },
    { name: "observations", number: true },
    ...latents,
    { name: noiseHeading(model), number: true },
    { name: "" },
  ];
  const rows = model.conditions.map((condition, number) => {
    const name = element("button", condition.name, { type: "button" });
    name.addEventListener("click", () => actions.select(number, true));
    const pairs = latents.length === 0 ? [] : condition.latentMean.flatMap((mean, q) => [mean, condition.latentSd[q]]);
    const noise = Math.sqrt(condition.noise) * model.scaling.outputScale;
    return [
      name,
      String(condition.nObservations),
      ...pairs.map((value) => fixed(value, 2)),
      formatNumber(noise),
      condition.added ? "added later" : "",
    ];
  });
  return tableOf(columns, rows);
}

function fillTables(model, actions) {
  const into = (id, ...parts) => byId(id).append(...parts);
  if (model.remarks.length === 0) into("remarks", element("p", "Nothing unusual was noticed."));
  for (const remark of model.remarks) into("remarks", element("p", remark, { class: "remark" }));
  const columns = element("div", undefined, { class: "columns" });
  const relevances = element("div");
  relevances.append(
    relevanceTable("input", model.inputRelevance),
    ...[
      ["latent dimension", model.latentRelevance],
      ["feature", model.featureRelevance],
    ]
      .filter(([, rows]) => rows.length > 0)
      .map(([name, rows]) => relevanceTable(name, rows)),
    element(
      "p",
      "Relevance: share of the variance of the predictions in which it has a part; 0 means that it does not matter.",
      { class: "help" },
    ),
  );
  columns.append(tableOf([], model.facts), relevances);
  into("facts", columns);
  into("conditions", conditionTable(model, actions));
  const shown = model.conditions.filter(({ outputs, nObservations }) => outputs.length < nObservations).length;
  if (shown > 0)
    into(
      "conditions",
      element("p", `${shown} conditions have many observations; the page shows a random part of them.`, {
        class: "help",
      }),
    );
  into(
    "settings",
    tableOf([], [...model.settings, ...model.kernels.map(([name, text]) => [`Kernel ${name.toLowerCase()}`, text])]),
  );
}

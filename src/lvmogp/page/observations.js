// Observations of a new condition as text: one a line, inputs first, the output last.

function parseNumber(text, isDate) {
  if (isDate && /^\d{4}-\d{2}-\d{2}/.test(text))
    return Date.parse(text.length === 10 ? text : `${text.replace(" ", "T")}Z`) / DAY;
  return text === "" ? NaN : Number(text);
}

// Tabs and semicolons leave the comma free for decimals; otherwise commas and spaces separate.
function partsOf(line) {
  const divider = /[\t;]/.test(line) ? /\s*[\t;]\s*/ : /[\s,]+/;
  const decimalComma = /[\t;]/.test(line);
  return line
    .trim()
    .split(divider)
    .map((part) => (decimalComma ? part.replace(",", ".") : part));
}

function parseObservations(model, text) {
  const found = [];
  const lines = text.split("\n");
  const names = [...model.inputNames, model.outputName];
  for (let number = 0; number < lines.length; number++) {
    if (lines[number].trim() === "") continue;
    const parts = partsOf(lines[number]);
    const values = parts.map((part, q) => parseNumber(part, model.inputs[q]?.isDate));
    const where = `Line ${number + 1}`;
    if (parts.length !== names.length)
      return { error: `${where} must hold ${names.length} numbers (${names.join(", ")}), got ${parts.length}.` };
    const bad = values.findIndex((value) => !Number.isFinite(value));
    if (bad >= 0) return { error: `${where}: “${parts[bad]}” is not a number for ${names[bad]}.` };
    const nonPositive = model.inputs.findIndex(({ isLog }, q) => isLog && values[q] <= 0);
    if (nonPositive >= 0)
      return { error: `${where}: ${names[nonPositive]} must be positive, since its logarithm is modelled.` };
    const output = values[values.length - 1];
    const transform = transformOf(model);
    if (!transform.takes(output)) return { error: `${where}: ${model.outputName} ${transform.demand}.` };
    found.push({ input: values.slice(0, -1), output });
  }
  if (found.length > model.search.mostPoints)
    return {
      error: `The page takes up to ${model.search.mostPoints} observations; for more, use add_condition or lvmogp add-condition.`,
    };
  return { observations: found };
}

function observationLine(model, input, output) {
  const number = (value, size) =>
    String(Number(value.toPrecision(Math.max(4, Math.ceil(Math.log10(Math.abs(value) / size)) + 3))));
  const inputs = input.map((value, q) => {
    const { isDate, isLog } = model.inputs[q];
    if (isDate) return new Date(value * DAY).toISOString().slice(0, 16);
    return number(value, model.scaling.inputScale[q] * (isLog ? value : 1));
  });
  return [...inputs, number(output, transformOf(model).resolution(output, model.scaling.outputScale))].join(", ");
}

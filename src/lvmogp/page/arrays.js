// The embedded document: plain values, with arrays as base64 of little-endian numbers.

function decodeArray(stored) {
  const binary = atob(stored.base64);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  if (stored.type === "float64") return new Float64Array(bytes.buffer);
  // Fixed point: whole numbers of equal steps.
  return Float64Array.from(new Int32Array(bytes.buffer), (value) => value * stored.step);
}

function decodeDocument(value) {
  if (Array.isArray(value)) return value.map(decodeDocument);
  if (value === null || typeof value !== "object") return value;
  if ("base64" in value) return decodeArray(value);
  return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, decodeDocument(part)]));
}

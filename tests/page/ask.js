// The calculations of a page without its views: one line of JSON [code, arguments] in, one line with the answer out.

const { readFileSync } = require("fs");
const { createInterface } = require("readline");
const { runInThisContext } = require("vm");

const page = readFileSync(process.argv[2], "utf8");
const [data, library, code] = [...page.matchAll(/<script[^>]*>(.*?)<\/script>/gs)].map(([, text]) => text);
globalThis.text = data;
runInThisContext(library);
const start = code.lastIndexOf("startPage();");
runInThisContext(`${code.slice(0, start)}
  const model = trainedModel(decodeDocument(JSON.parse(text)));
  model.conditions.forEach((condition) => completeCondition(model, condition));
  globalThis.lvmogp = interfaceOf(model, null);
${code.slice(start + "startPage();".length)}`);
createInterface({ input: process.stdin }).on("line", (line) => {
  const [asked, given] = JSON.parse(line);
  globalThis.a = given;
  console.log(JSON.stringify(runInThisContext(asked)));
});

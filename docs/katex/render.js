// KaTeX 0.19.1 is kept in this folder (MIT, see LICENSE), with its fonts in woff2 only, so that nothing is fetched.
// Formulas stand in elements of the class "arithmatex".
for (const formula of document.querySelectorAll(".arithmatex")) {
  renderMathInElement(formula, {
    delimiters: [
      { left: "\\[", right: "\\]", display: true },
      { left: "\\(", right: "\\)", display: false },
    ],
  });
}

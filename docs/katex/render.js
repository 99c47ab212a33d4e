// Formulas stand in elements of the class "arithmatex"; everything needed is in this folder.
for (const formula of document.querySelectorAll(".arithmatex")) {
  renderMathInElement(formula, {
    delimiters: [
      { left: "\\[", right: "\\]", display: true },
      { left: "\\(", right: "\\)", display: false },
    ],
  });
}

"use strict";
(() => {
  const { figures, draw, start, choice } = Figures;
  start();
  const spectra = figures.spectra;
  if (!spectra) return;
  // The source draws its spectra over both scales (Figure 15).
  choice(document.querySelector(".axes"), ["logarithmic", "linear"], 0, (chosen) => {
    const linear = { type: "linear", dtick: undefined };
    spectra.layout.xaxis = { ...spectra.layout.xaxis, ...(chosen ? linear : { type: "log", dtick: 1 }), autorange: true };
    draw("spectra");
  });
})();

(() => {
  const { figures, draw, start, choice } = Figures;
  start();
  const training = figures.training;
  if (!training) return;
  choice(document.querySelector(".axes"), training.axes.map((axis) => axis.label), 0, (chosen) => {
    const axis = training.axes[chosen];
    training.data.forEach((trace, i) => { trace.x = axis.x[i]; });
    training.layout.xaxis = { ...training.layout.xaxis, ...axis.layout, autorange: true };
    draw("training");
  });
})();

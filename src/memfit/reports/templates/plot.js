/* What all charts share: layout, axes, and the strip of phases above the plot. */
memfit.margin = { l: 64, r: 14, t: 8, b: 40 };
memfit.marginUnderStrip = { ...memfit.margin, t: 32 };

memfit.draw = (box, traces, layout, doubleClick = "reset") => Plotly.react(box, traces, {
  margin: memfit.margin,
  paper_bgcolor: memfit.colour("card"),
  plot_bgcolor: memfit.colour("card"),
  font: {
    family: getComputedStyle(document.body).fontFamily, size: 12, color: memfit.colour("quiet"),
  },
  showlegend: false,
  hovermode: "x",
  /* On a touch screen a drag scrolls the page. */
  dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
  width: box.clientWidth,
  height: box.clientHeight,
  ...layout,
}, { displayModeBar: false, showTips: false, doubleClick });

memfit.axis = (changes) => ({
  gridcolor: memfit.colour("line"),
  zerolinecolor: memfit.colour("line"),
  linecolor: memfit.colour("line"),
  tickformat: ",d",
  ...changes,
});

memfit.title = (text) => ({ text, standoff: 8, font: { size: 12 } });

memfit.memoryAxis = (box, top) =>
  memfit.axis({ range: [0, top], fixedrange: true, ...memfit.ticks(top, box.clientHeight / 75) });

/* Each phase within the range: a bar above the plot, named as far as its width allows. */
memfit.phaseStrip = (box, phases, [from, to]) => {
  const { l, r, t, b } = memfit.marginUnderStrip;
  const pixels = (box.clientWidth - l - r) / (to - from);
  const bottom = 1.01, barHeight = 20 / (box.clientHeight - t - b);
  const shades = { forward: 0.15, backward: 0.3, optimizer: 0.46 };
  const shapes = [], annotations = [];
  for (const { label, start, stop } of phases) {
    const x0 = Math.max(start, from), x1 = Math.min(stop, to), width = (x1 - x0) * pixels;
    if (width < 1) continue;
    shapes.push({
      type: "rect", xref: "x", yref: "paper", x0, x1, y0: bottom, y1: bottom + barHeight,
      fillcolor: memfit.colour("quiet", shades[label] ?? 0.08), line: { width: 0 },
    });
    if (width > 30 && start > from) shapes.push({
      type: "line", xref: "x", yref: "paper", x0, x1: x0, y0: 0, y1: bottom,
      line: { width: 1, color: memfit.colour("quiet", 0.45), dash: "dot" },
    });
    const letters = Math.floor(width / 8.5);
    if (letters >= 2) annotations.push({
      xref: "x", yref: "paper", x: (x0 + x1) / 2, y: bottom + barHeight / 2, yanchor: "middle",
      text: letters >= label.length ? label : label[0].toUpperCase(),
      showarrow: false, font: { size: 12, color: memfit.colour("ink") },
    });
  }
  return { shapes, annotations };
};

/* The charts of lines: predicted over measured, losses, and the peaks of steps. */
(() => {
  const { comparison, training } = JSON.parse(document.getElementById("charts").textContent);
  const chart = (id, draw) => {
    const box = document.getElementById(id);
    if (!box) return;
    memfit.redraws.push(() => draw(box));
    draw(box);
  };
  const sizes = (curve) => curve.bytes.map(memfit.size);
  const hover = (name) => ({ hovertemplate: `${name} %{text}<extra></extra>`, hoverlabel: { bgcolor: memfit.colour("card"), font: { color: memfit.colour("ink") }, bordercolor: memfit.colour("line") } });

  chart("comparison-chart", (box) => {
    const { predicted, measured, phases } = comparison;
    const range = [0, predicted.x.at(-1)], top = 1.08 * Math.max(...predicted.bytes, ...measured.bytes);
    const line = (curve, name, style) => ({ x: curve.x, y: curve.bytes, text: sizes(curve), mode: "lines", line: { shape: "hv", ...style }, ...hover(name) });
    memfit.draw(box, [
      line(predicted, "predicted", { color: memfit.colour("predicted", 0.55), width: 5 }),
      line(measured, "measured", { color: memfit.colour("measured"), width: 1.5, dash: "dot" }),
    ], {
      margin: { l: 64, r: 14, t: 32, b: 40 }, ...memfit.phaseStrip(box, phases, range),
      xaxis: memfit.axis({ range, showgrid: false, title: memfit.title("events in order") }),
      yaxis: memfit.memoryAxis(box, top),
    });
  });

  chart("loss-chart", (box) => memfit.draw(box, [
    { ...training.loss, mode: "lines", line: { color: memfit.colour("predicted"), width: 1.5 }, text: training.loss.y.map((y) => y?.toFixed(3)), ...hover("training") },
    { ...training.eval, mode: "lines+markers", line: { color: memfit.colour("heldout"), width: 1 }, marker: { size: 7 }, text: training.eval.y.map((y) => y?.toFixed(3)), ...hover("held-out") },
  ], { xaxis: memfit.axis({ title: memfit.title("step"), showgrid: false }), yaxis: memfit.axis({ tickformat: "", fixedrange: true }) }));

  chart("step-peak-chart", (box) => {
    const { peak, predicted_bytes: predicted, budget_bytes: budget } = training;
    const top = 1.08 * Math.max(...peak.bytes, predicted ?? 0, budget ?? 0);
    const level = (bytes, layer, line) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: bytes, y1: bytes, layer, line });
    memfit.draw(box, [
      { x: peak.x, y: peak.bytes, text: sizes(peak), mode: "lines", line: { shape: "hvh", color: memfit.colour("measured"), width: 2, dash: "dot" }, ...hover("measured") },
    ], {
      shapes: [
        ...(predicted ? [level(predicted, "below", { color: memfit.colour("predicted", 0.55), width: 5 })] : []),
        ...(budget ? [level(budget, "above", { color: memfit.colour("bad"), width: 2, dash: "dash" })] : []),
      ],
      xaxis: memfit.axis({ title: memfit.title("step"), showgrid: false }), yaxis: memfit.memoryAxis(box, top),
    });
  });
})();

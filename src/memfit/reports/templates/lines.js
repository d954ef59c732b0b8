/* The charts of lines: predicted over measured, losses, and the peaks of steps. */
(() => {
  const { comparison, training } = JSON.parse(document.getElementById("charts").textContent);

  const chart = (id, draw) => {
    const box = document.getElementById(id);
    if (!box) return;
    memfit.redraws.push(() => draw(box));
    draw(box);
  };

  /* A line whose hover text is its name and a label for each point. */
  const curve = (name, x, y, label, style) => ({
    x,
    y,
    text: y.map(label),
    mode: "lines",
    hovertemplate: `${name} %{text}<extra></extra>`,
    hoverlabel: {
      bgcolor: memfit.colour("card"),
      bordercolor: memfit.colour("line"),
      font: { color: memfit.colour("ink") },
    },
    ...style,
  });
  const nats = (loss) => loss?.toFixed(3);
  const predictedLine = () => ({ color: memfit.colour("predicted", 0.55), width: 5 });
  const measuredLine = () => ({ color: memfit.colour("measured"), width: 1.5, dash: "dot" });
  const stepAxis = () => memfit.axis({ title: memfit.title("step"), showgrid: false });

  chart("comparison-chart", (box) => {
    const { predicted, measured, phases } = comparison;
    const range = [0, predicted.x.at(-1)];
    const top = 1.08 * Math.max(1, ...predicted.bytes, ...measured.bytes);
    const line = (name, { x, bytes }, style) =>
      curve(name, x, bytes, memfit.size, { line: { ...style, shape: "hv" } });
    memfit.draw(box, [
      line("predicted", predicted, predictedLine()),
      line("measured", measured, measuredLine()),
    ], {
      ...memfit.phaseStrip(box, phases, range),
      margin: memfit.marginUnderStrip,
      xaxis: memfit.axis({ range, showgrid: false, title: memfit.title("events in order") }),
      yaxis: memfit.memoryAxis(box, top),
    });
  });

  chart("loss-chart", (box) => {
    const { loss, eval: held } = training;
    memfit.draw(box, [
      curve("training", loss.x, loss.y, nats, {
        line: { color: memfit.colour("predicted"), width: 1.5 },
      }),
      curve("held-out", held.x, held.y, nats, {
        mode: "lines+markers",
        line: { color: memfit.colour("heldout"), width: 1 },
        marker: { size: 7 },
      }),
    ], { xaxis: stepAxis(), yaxis: memfit.axis({ tickformat: "", fixedrange: true }) });
  });

  chart("step-peak-chart", (box) => {
    const { peak, predicted_bytes: predicted, budget_bytes: budget } = training;
    const ends = [peak.x[0], peak.x.at(-1)];
    const top = 1.08 * Math.max(1, ...peak.bytes, predicted ?? 0, budget ?? 0);
    const level = (name, bytes, line) =>
      bytes ? [curve(name, ends, [bytes, bytes], memfit.size, { line })] : [];
    memfit.draw(box, [
      ...level("budget", budget, { color: memfit.colour("bad"), width: 2, dash: "dash" }),
      ...level("predicted", predicted, predictedLine()),
      curve("measured", peak.x, peak.bytes, memfit.size, {
        line: { ...measuredLine(), width: 2, shape: "hvh" },
      }),
    ], { xaxis: stepAxis(), yaxis: memfit.memoryAxis(box, top) });
  });
})();

// Sparklines: small charts as inline SVG.

import { svg } from "./dom.js";

const WIDTH = 120;
const HEIGHT = 20;

/** Return a sparkline of numbers, with null for a gap. The label is what a screen reader says. */
export function sparkline(values, label) {
  const known = values.filter((value) => Number.isFinite(value));
  const most = Math.max(...known, 0) || 1;
  const x = (index) => (values.length > 1 ? (index / (values.length - 1)) * (WIDTH - 4) + 2 : WIDTH / 2);
  const y = (value) => HEIGHT - 2 - (value / most) * (HEIGHT - 4);
  const runs = [];
  let run = [];
  values.forEach((value, index) => {
    if (Number.isFinite(value)) run.push([x(index), y(value)]);
    else if (run.length > 0) {
      runs.push(run);
      run = [];
    }
  });
  if (run.length > 0) runs.push(run);
  const chart = svg("svg", {
    class: "spark",
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": label,
  });
  const point = ([left, top]) => `${left.toFixed(1)} ${top.toFixed(1)}`;
  for (const points of runs) {
    // A single point is drawn as a short line.
    const line =
      points.length > 1
        ? points
        : [
            [points[0][0] - 1, points[0][1]],
            [points[0][0] + 1, points[0][1]],
          ];
    const path = `M${line.map(point).join("L")}`;
    const [first] = line;
    const last = line[line.length - 1];
    chart.append(
      svg("path", { class: "area", d: `${path}L${last[0].toFixed(1)} ${HEIGHT}L${first[0].toFixed(1)} ${HEIGHT}Z` }),
    );
    chart.append(svg("path", { class: "line", d: path }));
  }
  return chart;
}

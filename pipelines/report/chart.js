// Speed over time: small line charts, drawn to the width they have.

const CHARTS = [
  { key: "segments", title: "Segments a second", form: (v) => v.toFixed(v < 10 ? 1 : 0) },
  { key: "prompt", title: "Tokens read a second", form: (v) => count(Math.round(v)) },
  { key: "output", title: "Tokens written a second", form: (v) => count(Math.round(v)) },
  { key: "cached", title: "Tokens read from the prefix cache", form: (v) => `${Math.round(100 * v)}%`, top: 1 },
];

// The next round number that is not below `value`.
const ceiling = (value) => {
  const size = 10 ** Math.floor(Math.log10(value || 1));
  return [1, 2, 2.5, 5, 10].map((m) => m * size).find((m) => m >= value - 1e-9);
};

// Means are over time; the cache's share is one of tokens.
const meanOf = (key, points) => {
  const weight = (p, i) => (p.t - (i ? points[i - 1].t : 0)) * (key === "cached" ? p.prompt : 1);
  const total = points.reduce((sum, p, i) => sum + weight(p, i), 0);
  return total ? points.reduce((sum, p, i) => sum + p[key] * weight(p, i), 0) / total : 0;
};

const drawChart = (chart, points) => {
  const box = el("figure", { class: "chart" });
  const values = points.map((p) => p[chart.key]);
  const peak = Math.max(...values), mean = meanOf(chart.key, points);
  const last = points[points.length - 1].t;
  box.append(el("figcaption", {}, el("strong", {}, chart.title), el("span", { class: "sub" }, `mean ${chart.form(mean)} · peak ${chart.form(peak)}`)));
  const readout = el("output", { class: "readout", "aria-live": "off" });
  const draw = (width) => {
    const [left, right, top, height] = [52, 10, 8, 150];
    const bottom = height - 22, most = chart.top || ceiling(peak) || 1;
    const x = (t) => left + (t / (last || 1)) * (width - left - right);
    const y = (v) => bottom - (v / most) * (bottom - top);
    const line = points.map((p, i) => `${i ? "L" : "M"}${x(p.t).toFixed(1)} ${y(p[chart.key]).toFixed(1)}`).join("");
    const area = `${line}L${x(last).toFixed(1)} ${bottom}L${x(points[0].t).toFixed(1)} ${bottom}Z`;
    const cursor = svg("line", { class: "cursor", y1: top, y2: bottom, visibility: "hidden" });
    const dot = svg("circle", { class: "dot", r: 3.5, visibility: "hidden" });
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${chart.title} over ${clock(last)}: mean ${chart.form(mean)}, peak ${chart.form(peak)}` },
      [0, 0.5, 1].map((share) => [svg("line", { class: "rule", x1: left, x2: width - right, y1: y(share * most), y2: y(share * most) }),
        svg("text", { x: left - 8, y: y(share * most) + 4, "text-anchor": "end" }, chart.top ? chart.form(share * most) : count(share * most))]),
      [0, 0.5, 1].map((share) => svg("text", { x: x(share * last), y: height - 4, "text-anchor": ["start", "middle", "end"][share * 2] }, clock(share * last))),
      svg("path", { class: "area", d: area }), svg("path", { class: "line", d: line }), points.length === 1 ? svg("circle", { class: "dot", r: 3.5, cx: x(last), cy: y(values[0]) }) : null, cursor, dot);
    const point = (event) => {
      const rect = picture.getBoundingClientRect();
      const t = ((event.clientX - rect.left) / rect.width * width - left) / (width - left - right) * last;
      const near = points.reduce((a, b) => (Math.abs(b.t - t) < Math.abs(a.t - t) ? b : a));
      for (const [name, value] of [["x1", x(near.t)], ["x2", x(near.t)]]) cursor.setAttribute(name, value);
      dot.setAttribute("cx", x(near.t)); dot.setAttribute("cy", y(near[chart.key]));
      for (const node of [cursor, dot]) node.setAttribute("visibility", "visible");
      readout.textContent = `${chart.form(near[chart.key])} after ${clock(near.t)}`;
    };
    const leave = () => { for (const node of [cursor, dot]) node.setAttribute("visibility", "hidden"); readout.textContent = ""; };
    picture.addEventListener("pointermove", point);
    picture.addEventListener("pointerleave", leave);
    box.querySelector("svg")?.remove();
    box.append(picture);
  };
  box.firstChild.append(readout);
  let before = 0;
  new ResizeObserver(([entry]) => {
    const width = Math.max(240, Math.floor(entry.contentRect.width));
    if (width !== before) { before = width; draw(width); }
  }).observe(box);
  return box;
};

const buildCharts = () => {
  const points = data.progress;
  if (!points.length) {
    $("charts").replaceChildren(el("div", { class: "empty" }, el("p", {}, "Nothing was read in this run, or it ended within a second: there is no speed to show.")));
    return;
  }
  $("charts").replaceChildren(el("div", { class: "charts" }, CHARTS.map((chart) => drawChart(chart, points))));
};

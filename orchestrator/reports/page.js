// The report's own script. Without it the page still shows everything but the choice of a checkpoint.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const points = data.points;
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const one = (id) => document.getElementById(id);
  const fixed = (value, digits = 3) =>
    value == null ? "-" : Math.abs(value) < 1e6 ? value.toFixed(digits) : value.toPrecision(4);
  const span = (low, high) => (low == null ? "" : ` [${fixed(low)}, ${fixed(high)}]`);
  const words = { better: "better than the baseline", worse: "worse than the baseline", no_difference: "no difference shown" };

  // A drawing's frame: pixels and values at both ends of both axes, as Python drew it.
  const frames = new Map(all("svg[data-frame]").map((svg) => [svg, svg.dataset.frame.split(" ").map(Number)]));
  const scale = (value, from, to, low, high) => (high === low ? (from + to) / 2 : from + ((value - low) / (high - low)) * (to - from));
  const xOf = (svg, value) => { const f = frames.get(svg); return scale(value, f[0], f[1], f[2], f[3]); };
  const yOf = (svg, value) => { const f = frames.get(svg); return scale(value, f[4], f[5], f[6], f[7]); };
  const stepAt = (svg, event) => {
    const box = svg.getBoundingClientRect();
    const f = frames.get(svg);
    const pixel = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    return scale(pixel, f[2], f[3], f[0], f[1]);
  };

  const circle = (x, y, r = 5.5) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`;
  const mark = (svg, point) => {
    const f = frames.get(svg);
    const x = xOf(svg, point.step);
    svg.querySelector(".hair").setAttribute("d", `M${x} ${f[5]}V${f[4]}`);
    const heights = svg.classList.contains("trees")
      ? [...(data.walk ? [point.value] : []), ...Object.values(point.trees)].filter((value) => value != null)
      : point.value == null ? [] : [point.value];
    const rings = point.same || !svg.classList.contains("trees") ? heights : [];
    svg.querySelector(".ring").setAttribute("d", rings.map((value) => circle(x, yOf(svg, value))).join(""));
  };

  // -- the chosen checkpoint ---------------------------------------------------------------------------------------
  let chosen = points.length - 1;
  const slider = one("slider");

  const fact = (name, value, far = false) => {
    const row = document.createElement("div");
    if (far) row.className = "far";
    const term = document.createElement("dt");
    const said = document.createElement("dd");
    term.textContent = name;
    said.textContent = value;
    row.append(term, said);
    return row;
  };
  const facts = (point) => [
    fact(data.headline, fixed(point.value) + span(point.low, point.high)),
    fact("Baseline", fixed(point.base) + span(point.base_low, point.base_high)),
    fact("Against the baseline", words[point.verdict] || "nothing can be said"),
    fact("Training meanwhile", point.receipt),
    fact("Ended", point.ended),
    fact("Evaluation host", point.host),
    fact("Run", point.id),
    fact("Checkpoint", point.checkpoint),
    fact("Harness", data.harnesses[point.harness] + (point.same ? "" : " (other than the latest, or other data)")),
    fact("Data", data.datas[point.data]),
    fact("Receipt", data.reasons[point.reason], true),
    fact("Versions", data.versions[point.version], true),
  ];

  const drawPositions = () => {
    const measure = (all("input[name=measure]:checked")[0] || { value: "survival" }).value;
    const first = points.find((point) => point.same) || points[0];
    for (const svg of all("svg.positions")) {
      const rows = { first: first.positions, base: data.base_positions, ours: points[chosen].positions };
      for (const [kind, found] of Object.entries(rows)) {
        let pen = "M";
        let path = "";
        (found ? found[measure] : []).forEach((value, index) => {
          if (value == null) { pen = "M"; return; }
          path += `${pen}${xOf(svg, found.k[index]).toFixed(1)} ${yOf(svg, value).toFixed(1)}`;
          pen = "L";
        });
        svg.querySelector(`.line.${kind}`).setAttribute("d", path);
      }
    }
    all(".chosen-step").forEach((span) => { span.textContent = points[chosen].step; });
  };

  const choose = (index, { scroll = false } = {}) => {
    chosen = Math.max(0, Math.min(points.length - 1, index));
    const point = points[chosen];
    slider.value = chosen;
    slider.setAttribute("aria-valuetext", `step ${point.step}, ${data.headline} ${fixed(point.value)}${span(point.low, point.high)}`);
    one("chosen").textContent = `Step ${point.step}`;
    one("facts").replaceChildren(...facts(point));
    all("svg.curve, svg.trees").forEach((svg) => mark(svg, point));
    all("#runs tbody tr").forEach((row) => {
      const mine = Number(row.dataset.point) === chosen;
      row.classList.toggle("picked", mine);
      if (mine && scroll) {
        const box = row.closest(".scroll");
        box.scrollTop = row.offsetTop - box.clientHeight / 2;
      }
    });
    drawPositions();
  };

  // -- hover and click -------------------------------------------------------------------------------------------------
  const nearest = (step) => points.reduce((best, point, index) => (Math.abs(point.step - step) <= Math.abs(points[best].step - step) ? index : best), 0);
  const show = (svg, point) => {
    const tip = svg.closest("figure").querySelector(".tip");
    const rows = svg.classList.contains("trees")
      ? [...(data.walk ? [["no tree", point.value]] : []), ...Object.entries(point.trees)].map(([name, value]) => `${name}: ${fixed(value)}`)
      : [`${fixed(point.value)}${span(point.low, point.high)}`, words[point.verdict] || "", point.same ? "" : "other harness or data"];
    const title = document.createElement("b");
    title.textContent = `Step ${point.step}`;
    tip.replaceChildren(title, ...rows.filter(Boolean).flatMap((row) => [document.createTextNode(row), document.createElement("br")]));
    tip.hidden = false;
    const box = svg.getBoundingClientRect();
    const x = (xOf(svg, point.step) / svg.viewBox.baseVal.width) * box.width;
    const left = x + 14 + tip.offsetWidth > box.width ? x - 14 - tip.offsetWidth : x + 14;
    tip.style.left = `${Math.max(0, left)}px`;
    const f = frames.get(svg);
    const trees = svg.classList.contains("trees");
    const high = trees || point.value == null || yOf(svg, point.value) < (f[4] + f[5]) / 2; // the curve is above: the tip goes below
    const room = high ? (f[4] / svg.viewBox.baseVal.height) * box.height - tip.offsetHeight - 10 : 34;
    tip.style.top = `${box.top - svg.closest("figure").getBoundingClientRect().top + room}px`;
  };
  for (const svg of all("svg.curve, svg.trees")) {
    svg.addEventListener("pointermove", (event) => {
      const point = points[nearest(stepAt(svg, event))];
      mark(svg, point);
      show(svg, point);
    });
    svg.addEventListener("pointerleave", () => {
      svg.closest("figure").querySelector(".tip").hidden = true;
      mark(svg, points[chosen]);
    });
    svg.addEventListener("click", (event) => choose(nearest(stepAt(svg, event)), { scroll: true }));
  }
  slider.addEventListener("input", () => choose(Number(slider.value), { scroll: true }));
  one("back").addEventListener("click", () => choose(chosen - 1, { scroll: true }));
  one("forth").addEventListener("click", () => choose(chosen + 1, { scroll: true }));
  one("runs").addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-point]");
    if (row) choose(Number(row.dataset.point));
  });
  all("input[name=measure]").forEach((input) => input.addEventListener("change", drawPositions));

  // -- light and dark --------------------------------------------------------------------------------------------------
  const dark = () => {
    const said = document.documentElement.dataset.theme;
    return said ? said === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const theme = one("theme");
  const name = () => { theme.textContent = dark() ? "Light mode" : "Dark mode"; };
  theme.addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; name(); });
  name();

  all(".scripted").forEach((part) => { part.hidden = false; });
  choose(chosen);
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
})();

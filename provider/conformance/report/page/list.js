// The matrix: scenarios by kind and area, with a verdict per pairing. A scenario opens in place.

const kinds = {
  verbs: ["Verbs scenarios", "a program on either side, on each pairing of providers"],
  raw: ["Raw scenarios", "a scripted peer, which builds each frame by hand, against each provider"],
};

function showList(data) {
  const view = { data, rows: [], groups: [] };
  byId("list").append(filterBar(view), ...Object.keys(kinds).filter((k) => data.columns[k]).map((k) => kindTable(view, k)));
  applyFilters(view);
  return view;
}

function kindTable(view, kind) {
  const columns = view.data.columns[kind];
  const areas = new Map();
  for (const s of view.data.scenarios) {
    if (s.kind !== kind) continue;
    if (!areas.has(s.area)) areas.set(s.area, []);
    areas.get(s.area).push(s);
  }
  const box = el("div", { class: "matrix", style: null },
    el("h3", null, kinds[kind][0], el("span", { class: "soft" }, ": " + kinds[kind][1])),
    el("div", { class: "columns", "aria-hidden": "true" }, el("span", null, "scenario"), columns.map((c) => el("span", { class: "cell" }, c))),
    [...areas].map(([area, list]) => areaGroup(view, kind, area, list)));
  box.style.setProperty("--columns", columns.length);
  return box;
}

function areaGroup(view, kind, area, list) {
  const count = el("span", { class: "soft count" });
  const group = el("details", { class: "area", "data-area": area }, el("summary", null, el("b", null, area), " ",
    el("span", { class: "soft about" }, view.data.areas[area]), count), list.map((s) => scenarioRow(view, s)));
  view.groups.push({ group, count, kind, area, total: list.length });
  return group;
}

function scenarioRow(view, s) {
  const cells = view.data.columns[s.kind].map((name, i) => {
    const run = s.runs.find((r) => r.column === i);
    const cell = el("span", { class: "cell" }, el("span", { class: "pairing" }, name, " "), run
      ? el("span", { class: "v " + run.verdict.toLowerCase(), title: run.why || null }, verdictText(run.verdict))
      : el("span", { class: "soft" }, "not run"));
    return { run, cell };
  });
  const row = el("details", { class: "scenario", id: scenarioRoute(s) }, el("summary", null,
    el("span", { class: "name" }, code(s.slug), " ", el("span", { class: "title" }, s.title)), cells.map((c) => c.cell)));
  lazily(row, () => scenarioBody(view.data, s));
  const texts = [s.slug, s.title, s.kind, ...(s.requirements || [])];
  for (const r of s.runs) {
    texts.push(r.why, ...(r.divergences || []).flatMap((d) => [d.key, d.entry]));
  }
  view.rows.push({ s, row, cells, text: texts.filter(Boolean).join("\n").toLowerCase() });
  return row;
}

function filterBar(view) {
  const counts = {};
  const pairings = new Set(), areas = new Set();
  for (const s of view.data.scenarios) {
    areas.add(s.area);
    for (const r of s.runs) {
      counts[r.verdict] = (counts[r.verdict] || 0) + 1;
      pairings.add(pairingOf(r));
    }
  }
  const change = () => applyFilters(view);
  const choice = (label, all, values) => el("select", { "aria-label": label, onchange: change },
    el("option", { value: "" }, all), [...values].map((v) => el("option", { value: v }, v)));
  view.search = el("input", { type: "search", placeholder: "search: name, requirement, divergence, reason", "aria-label": "search scenarios; the key / leads here", oninput: change });
  view.area = choice("area", "all areas", areas);
  view.pairing = choice("pairing", "all pairings", pairings);
  view.verdicts = Object.keys(verdicts).filter((v) => counts[v]).map((v) => el("input", { type: "checkbox", value: v, onchange: change }));
  view.shown = el("output", null);
  return el("form", { class: "filters", role: "search", onsubmit: (e) => e.preventDefault(), onreset: () => setTimeout(change) },
    view.search,
    el("fieldset", null, el("legend", null, "only runs with verdict"), view.verdicts.map((box) =>
      el("label", { class: "chip " + box.value.toLowerCase() }, box, verdictText(box.value) + " " + counts[box.value]))),
    view.area, view.pairing, el("button", { type: "reset" }, "show all"), view.shown);
}

// applyFilters shows the scenarios that have a run with what is asked for.
function applyFilters(view) {
  const words = view.search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const chosen = view.verdicts.filter((b) => b.checked).map((b) => b.value);
  const narrowed = chosen.length > 0 || view.pairing.value !== "";
  const wanted = (run) => run && (chosen.length === 0 || chosen.includes(run.verdict)) &&
    (view.pairing.value === "" || pairingOf(run) === view.pairing.value);
  const perGroup = new Map();
  let shown = 0;
  for (const r of view.rows) {
    const fits = (view.area.value === "" || r.s.area === view.area.value) && words.every((w) => r.text.includes(w)) && r.s.runs.some(wanted);
    r.row.hidden = !fits;
    for (const c of r.cells) c.cell.classList.toggle("dim", narrowed && !wanted(c.run));
    if (!fits) continue;
    shown++;
    const key = r.s.kind + " " + r.s.area;
    perGroup.set(key, (perGroup.get(key) || 0) + 1);
  }
  const filtered = narrowed || words.length > 0 || view.area.value !== "";
  const wide = matchMedia("(min-width: 701px)").matches;
  for (const g of view.groups) {
    const n = perGroup.get(g.kind + " " + g.area) || 0;
    g.group.hidden = n === 0;
    g.group.open = wide || filtered;
    g.count.textContent = n === g.total ? n + (n === 1 ? " scenario" : " scenarios") : n + " of " + g.total + " scenarios";
  }
  for (const box of document.querySelectorAll(".matrix")) {
    box.hidden = ![...box.querySelectorAll("details.area")].some((d) => !d.hidden);
  }
  view.shown.textContent = shown + " of " + view.rows.length + " scenarios";
}

function clearFilters(view) {
  view.search.value = view.area.value = view.pairing.value = "";
  for (const box of view.verdicts) box.checked = false;
  applyFilters(view);
}

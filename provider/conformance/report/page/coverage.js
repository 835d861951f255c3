// Coverage by RFC, section and requirement.

function showCoverage(data) {
  const requirements = new Map();
  for (const r of data.requirements) {
    const key = r.document + " " + r.section;
    if (!requirements.has(key)) requirements.set(key, []);
    requirements.get(key).push(r);
  }
  byId("documents").append(...(data.documents || []).map((d) =>
    lazily(el("details", { id: "document/" + d.document }, el("summary", null, d.document + ", by section")), () =>
      el("div", { class: "body" }, d.sections.map((s) =>
        lazily(el("details", { id: "section/" + d.document + "/" + s.section, class: "section" }, el("summary", null,
          el("span", { class: "name" }, "§" + s.section), s.tallies.map((t) => tallyBar(s.musts, t)))), () =>
          requirementTable(data, requirements.get(d.document + " " + s.section) || [])))))));
}

function tallyBar(musts, t) {
  if (musts === 0) return el("span", { class: "tally soft" }, t.provider + ": no MUST");
  const parts = [["shown", t.shown, "shown"], ["exception", t.excepted, "excepted"], ["failed", t.failed, "failed"],
    ["other", t.other, "by tests or with a reason"], ["open", t.open, "open"]].filter((p) => p[1] > 0);
  const bar = el("span", { class: "bar", "aria-hidden": "true" }, parts.map(([name]) => el("i", { class: name })));
  parts.forEach((p, i) => { bar.children[i].style.flexGrow = p[1]; });
  return el("span", { class: "tally" }, el("span", { class: "provider" }, t.provider), bar,
    el("span", { class: "tallies" }, parts.map(([, n, word]) => n + " " + word).join(", ")));
}

const stateSigns = { shown: "✓", exception: "≈", failed: "✗", other: "–", open: "○" };
const stateText = (state) => el("span", { class: "v " + state }, stateSigns[state] + " " + (state === "other" ? "not in the suite" : state));

// unshownState is the state of a requirement for a provider on which no scenario about it was tried.
const unshownState = (r) => (r.scenarios || []).length === 0 && (r.tests || r.reason) ? "other" : "open";

function requirementTable(data, list) {
  return el("div", { class: "body" }, list.map((r) => el("article", { class: "requirement", id: "requirement/" + r.id, tabindex: -1 },
    el("p", null, code(r.id), " ", el("b", null, r.level), " ", r.text),
    (r.tests || r.reason) && el("p", { class: "soft" }, r.reason || ["tests of govs: ", r.tests.map((name) => [code(name), " "])]),
    data.providers.map((name) => {
      const s = (r.providers || {})[name];
      return el("div", { class: "standing" }, el("span", { class: "provider" }, name), " ", stateText(s ? s.state : unshownState(r)), " ",
        s && (s.entries || []).length > 0 && el("span", { class: "links" }, el("span", { class: "soft" }, "known divergences: "), s.entries.map((id) => [el("a", { href: "#entry/" + id }, code(id)), " "])),
        s ? el("span", { class: "links" }, el("span", { class: "soft" }, "scenarios: "), s.scenarios.map(scenarioLink)) : el("span", { class: "links" }, whyOpen(data, r, name)));
    }))));
}

const scenarioLink = (slug) => [el("a", { href: "#scenario/" + slug }, code(slug)), " "];

// whyOpen says why nothing shows whether a provider keeps a requirement.
function whyOpen(data, r, provider) {
  const named = r.scenarios || [];
  if (named.length === 0) return "no scenario names it";
  const tried = data.scenarios.filter((s) => named.includes(s.slug)).flatMap((s) => s.runs)
    .filter((run) => run.initiator === provider || run.responder === provider);
  const why = tried.length === 0 ? ["not run with " + provider] : [...new Set(tried.map((run) => run.verdict + ", " + run.why))];
  return [why.map((text) => [linked(text), "; "]), el("span", { class: "soft" }, "scenarios: "),
    named.map((slug) => data.scenarios.some((s) => s.slug === slug) ? scenarioLink(slug) : [code(slug), " "])];
}

// The page's beginning, and its addresses: #scenario/SLUG, #run/SLUG/INITIATOR/RESPONDER, #area/NAME,
// #document/NAME, #section/NAME/NUMBER, #requirement/ID, #entry/ID, #showing/ID.

async function start() {
  const data = await unpack();
  data.scenarios = data.scenarios || [];
  data.requirements = data.requirements || [];
  data.providers = data.providers || [];
  data.byRequirement = new Map(data.requirements.map((r) => [r.id, r]));
  data.byEntry = new Map((data.entries || []).map((e) => [e.id, e]));
  const view = showList(data);
  showCoverage(data);
  addEventListener("hashchange", () => go(view));
  document.addEventListener("click", (e) => { // on a link to where the page is already
    const link = e.target.closest("a");
    if (link && link.hash !== "" && link.hash === location.hash) go(view);
    const summary = !link && e.target.closest("summary");
    if (summary) follow(summary.parentElement);
  });
  addEventListener("beforeprint", () => {
    for (const g of view.groups) g.group.open = true;
  });
  document.addEventListener("keydown", (e) => {
    if (e.key !== "/" || e.ctrlKey || e.altKey || e.metaKey) return;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) return;
    e.preventDefault();
    view.search.focus();
  });
  document.documentElement.dataset.ready = "yes";
  go(view);
}

// follow makes the page's address the one of what a reader opens by hand.
function follow(details) {
  if (details.open) return; // and closes now
  const named = details.closest(".area:not([open]), .run, details[id]");
  if (!named) return;
  const name = named.id || "area/" + named.dataset.area;
  history.replaceState(null, "", "#" + name.split("/").map(encodeURIComponent).join("/"));
}

// go opens what the page's address names.
function go(view) {
  let hash = location.hash.slice(1);
  try {
    hash = decodeURIComponent(hash);
  } catch {
    return; // not an address of this page
  }
  const [word, ...rest] = hash.split("/");
  const name = rest.join("/");
  switch (word) {
    case "area":
      clearFilters(view);
      view.area.value = name;
      applyFilters(view);
      return reveal(byId("scenarios"));
    case "showing":
      clearFilters(view);
      view.search.value = name;
      applyFilters(view);
      return reveal(byId("scenarios"));
    case "scenario":
    case "run": {
      const row = view.rows.find((r) => r.s.slug === (word === "run" ? rest.slice(0, -2).join("/") : name));
      if (!row) return;
      if (row.row.hidden) clearFilters(view);
      row.row.closest("details.area").open = true;
      open(row.row);
      return reveal(byId(hash));
    }
    case "document":
      return reveal(openDetails(byId(hash)));
    case "section":
      openDetails(byId("document/" + rest.slice(0, -1).join("/")));
      return reveal(openDetails(byId(hash)));
    case "requirement": {
      const r = view.data.byRequirement.get(name);
      if (!r) return;
      openDetails(byId("document/" + r.document));
      openDetails(byId("section/" + r.document + "/" + r.section));
      return reveal(byId(hash));
    }
    case "entry":
      return reveal(byId(hash));
  }
}

function openDetails(details) {
  if (details) open(details);
  return details;
}

function reveal(e) {
  if (!e) return;
  e.scrollIntoView();
  (e.tagName === "DETAILS" ? e.firstElementChild : e).focus({ preventScroll: true });
}

start().catch((e) => {
  const note = byId("failed");
  note.textContent = "The scenarios can't be shown: " + e.message + ". report.json and junit.xml beside this page have the same data.";
  note.hidden = false;
});

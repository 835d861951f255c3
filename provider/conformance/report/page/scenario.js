// What is in an opened scenario.

function scenarioBody(data, s) {
  return el("div", { class: "body" },
    el("p", { class: "soft" }, s.kind + " scenario, level " + s.level + ". ", captureLinks(s)),
    requirementList(data, s.requirements || []),
    s.runs.map((run) => runSection(data, s, run)));
}

// captureLinks lead to the packets of all runs of a scenario, which are in files beside the page: those
// that were captured on this host, and on the other.
function captureLinks(s) {
  const far = captureLink(s.captureAtPeer);
  return [captureLink(s.capture) && ["Packets of all runs: ", captureLink(s.capture), ". "],
    far && ["Those at the other host, with the times of its clock: ", far, "."]];
}

function captureLink(name) {
  return /^[\w.-]+\.pcapng$/.test(name) ? el("a", { href: name }, name) : null;
}

function requirementList(data, ids) {
  if (ids.length === 0) return null;
  return el("ul", { class: "requirements" }, ids.map((id) => {
    const r = data.byRequirement.get(id);
    return el("li", null, el("a", { href: "#requirement/" + id }, code(id)), " ", r
      ? [el("span", { class: "soft" }, r.level + ", " + r.document + " §" + r.section + ": "), r.text]
      : "is not in the catalogue");
  }));
}

function runSection(data, s, run) {
  const bad = !isGood(run.verdict);
  return el("section", { class: "run", id: runRoute(s, run), tabindex: -1 },
    el("h4", null, el("span", { class: "v " + run.verdict.toLowerCase() }, verdictText(run.verdict)), " ", pairingOf(run),
      el("span", { class: "soft ms" }, run.ms + " ms")),
    run.why && el("p", null, linked(run.why)),
    divergenceTable(data, run),
    checkList(run, bad),
    section("observations: " + (run.observations || []).length, run.observations, false, () => el("table", { class: "pairs" },
      run.observations.map((o) => el("tr", null, el("th", { scope: "row" }, code(o.key)), el("td", null, o.value))))),
    section("log lines: " + (run.log || []).length, run.log, false, () => el("pre", { class: "log" }, run.log.map((l) => el("span", null, l + "\n")))),
    wireSection(data, s, run, bad),
    el("p", { class: "soft" }, captured(s, run), witnessed(run.witness)),
    el("p", { class: "again" }, "Again: ", code(run.replay)));
}

// section is a <details> whose contents are made when it is opened, or nothing if the list is empty.
function section(title, list, isOpen, contents) {
  if (!list || list.length === 0) return null;
  const d = lazily(el("details", null, el("summary", null, title)), () => el("div", { class: "body" }, contents()));
  if (isOpen) open(d);
  return d;
}

function captured(s, run) {
  if (!captureLink(s.capture) || !run.source) return null;
  return ["Packets ", run.source === "tap" ? "taken at the sockets" : "taken on the wire", run.interface && [", interface ", code(run.interface)],
    ": ", code("govs-verbs-test decode --port " + run.port + " " + s.capture), ". "];
}

function witnessed(w) {
  if (w.asked) return w.agrees ? "tshark agrees about " + w.frames + " frames." : "tshark disagrees: " + w.why;
  return w.why ? "tshark was not asked: " + w.why : null;
}

// divergenceTable has what is not as expected, or not as with the reference.
function divergenceTable(data, run) {
  const list = run.divergences || [];
  if (list.length === 0) return null;
  return el("table", { class: "stack divergences" },
    el("thead", null, el("tr", null, ["what", "expected", "actual", "explained by"].map((h) => el("th", null, h)))),
    el("tbody", null, list.map((d) => {
      const isCheck = d.key.startsWith("check:");
      return el("tr", null,
        el("td", null, isCheck ? "a check" : code(d.key), d.against && el("div", { class: "soft" }, "expected as " + d.against)),
        el("td", { "data-label": "expected" }, d.reference || "nothing"),
        el("td", { "data-label": "actual" }, d.got || (isCheck ? "it is not so" : "nothing")),
        el("td", { "data-label": "explained by" }, d.entry ? entryLink(data, d.entry) : el("strong", { class: "no" }, "✗ nothing")));
    })));
}

function entryLink(data, id) {
  const entry = data.byEntry.get(id);
  return [el("a", { href: "#entry/" + id }, code(id)), entry && el("div", { class: "soft" }, "of " + entry.provider + ": ", linked(entry.reason))];
}

// checkList shows the checks that did not hold, and the others when asked.
function checkList(run, bad) {
  const checks = run.checks || [], held = checks.filter((c) => c.ok).length;
  return section(held + " of " + checks.length + " checks hold", checks, bad && held < checks.length, () => el("ul", { class: "checks" },
    checks.map((c) => el("li", { class: c.ok ? null : "no" },
      el("span", { class: "tag" }, c.ok ? "✓ yes" : "✗ NO"), " ", c.what, c.got && el("span", { class: "got" }, c.got)))));
}

function wireSection(data, s, run, bad) {
  const ref = run.against ? s.runs.find((r) => pairingOf(r) === run.against) : null;
  const title = (ref ? "the wire beside that of " + run.against : "the wire") + ": " + (run.ladder || []).length + " lines";
  return section(title, run.ladder, bad || isMarked(run), () => [
    el("p", { class: "soft" }, "The initiator is on the left of each arrow. A line opens to its decoded fields; STags are named there in their order, and offsets are relative to the first."),
    ref ? twoLadders(ref, run) : oneLadder(run),
    run.cut && el("p", { class: "soft" }, run.cut + " more lines are in the capture."),
  ]);
}

const isMarked = (run) => (run.aligned || []).some((a) => a.keys && a.keys.length > 0);

// messageAt finds the message that a line of a run's ladder belongs to.
function messageAt(run, line) {
  return (run.messages || []).find((m) => (m.lines || []).includes(line));
}

function oneLadder(run) {
  return el("div", { class: "ladder one" }, run.ladder.map((line, i) => ladderRow(null, null, run, [i], [])));
}

// twoLadders sets a run's ladder beside the reference's. Lines that are no frames, as headings of
// connections, are in no alignment and go before the frame that follows them.
function twoLadders(ref, run) {
  const rows = [];
  const inAligned = new Set(run.aligned.flatMap((a) => a.got || []));
  let next = 0;
  const between = (to) => {
    for (; next < to; next++) if (!inAligned.has(next)) rows.push(el("div", { class: "between" }, run.ladder[next]));
  };
  for (const a of run.aligned) {
    const got = a.got || [];
    if (got.length > 0) {
      between(Math.min(got[0], run.ladder.length));
    }
    rows.push(ladderRow(ref, a.reference || [], run, got, a.keys || []));
  }
  between(run.ladder.length);
  return el("div", { class: "ladder two" },
    el("div", { class: "heads", "aria-hidden": "true" }, el("span", null, pairingOf(ref)), el("span", null, pairingOf(run))), rows);
}

// ladderRow is a message of a run, beside that of the reference if there is one. It opens to the
// fields of both.
function ladderRow(ref, left, run, right, keys) {
  const fields = keys.map((k) => k.slice(k.lastIndexOf(":") + 1));
  const values = keys.map((k) => (run.divergences || []).find((d) => d.key === k)).filter(Boolean);
  const differs = keys.length > 0;
  const a = ref ? left.map((i) => ref.ladder[i]).filter((l) => l !== undefined) : [];
  const b = right.map((i) => run.ladder[i]).filter((l) => l !== undefined);
  const marks = differs ? markedWords(a, b, fields, values) : [new Set(), new Set()];
  const d = el("details", { class: differs ? "row differs" : "row" }, el("summary", null,
    ref && el("span", { class: "side left", "data-label": pairingOf(ref) }, ladderLines(a, marks[0])),
    el("span", { class: "side right", "data-label": pairingOf(run) }, ladderLines(b, marks[1])),
    differs && el("span", { class: "why" }, "≠ ", values.map((v, i) => [i > 0 && ", ", differenceText(v, ref, run)]))));
  return lazily(d, () => fieldTable(ref && messageAt(ref, left[0]), messageAt(run, right[0]), ref, fields));
}

// differenceText says in which field two messages differ, or which run has one that the other lacks.
function differenceText(d, ref, run) {
  const field = d.key.slice(d.key.lastIndexOf(":") + 1);
  if (field === "extra") return "only " + pairingOf(run) + " has this";
  if (field === "missing") return "only " + pairingOf(ref) + " has this";
  return ["differs: ", el("b", null, field), " ", d.reference || "none", " → ", d.got || "none"];
}

// markedWords chooses the words of two sides' lines to mark, by their numbers: those that are not in
// a longest sequence of words that both have, unless they may differ by right, as STags and whether
// there are CRCs, and no divergence has them.
function markedWords(a, b, fields, values) {
  const words = (lines) => lines.flatMap((l) => frameOf(l).text.split(" "));
  const left = words(a), right = words(b);
  if (left.length * right.length === 0 || left.length * right.length > 1e6) return [new Set(), new Set()];
  const texts = values.flatMap((v) => [v.reference, v.got]).join(" ");
  const byRight = (w) => /0x[0-9a-f]{5,}/.test(w) ? !texts.includes(w)
    : w === "C" ? !fields.includes("C") : /^(CRC|ok)$/.test(w) && !fields.includes("crc");
  const common = commonWords(left, right);
  const others = (list, side) => new Set(list.map((w, i) => i).filter((i) => !common[side].has(i) && list[i] !== "" && !byRight(list[i])));
  return [others(left, 0), others(right, 1)];
}

// commonWords finds a longest common subsequence, and returns the numbers of its words in both lists.
function commonWords(left, right) {
  const longest = Array.from({ length: left.length + 1 }, () => new Uint32Array(right.length + 1));
  for (let i = left.length - 1; i >= 0; i--) {
    for (let k = right.length - 1; k >= 0; k--) {
      longest[i][k] = left[i] === right[k] ? longest[i + 1][k + 1] + 1 : Math.max(longest[i + 1][k], longest[i][k + 1]);
    }
  }
  const found = [new Set(), new Set()];
  for (let i = 0, k = 0; i < left.length && k < right.length;) {
    if (left[i] === right[k]) {
      found[0].add(i++);
      found[1].add(k++);
    } else if (longest[i + 1][k] >= longest[i][k + 1]) i++;
    else k++;
  }
  return found;
}

// frameOf takes a line of a ladder apart: time, direction, text.
function frameOf(line) {
  const m = /^\s*([\d.]+) (-->|<--) (.*)$/s.exec(line);
  return m ? { time: m[1], arrow: m[2] === "-->" ? "→" : "←", text: m[3] } : { time: "", arrow: "", text: line };
}

function ladderLines(lines, marks) {
  if (lines.length === 0) return el("span", { class: "line soft" }, "(none)");
  let word = 0;
  return lines.map((line) => {
    const f = frameOf(line);
    return el("span", { class: "line" }, el("span", { class: "time" }, f.time), el("span", { class: "arrow" }, f.arrow),
      el("span", { class: "text" }, f.text.split(" ").map((w, i) => [i > 0 && " ", marks.has(word++) ? el("mark", null, w) : w])));
  });
}

// fieldTable has the decoded fields of a message, beside those of the reference's.
function fieldTable(left, right, ref, fields) {
  if (!left && !right) return el("p", { class: "soft fields" }, "no fields");
  const values = (m) => new Map((m ? m.fields : []).map((f) => [f.slice(0, f.indexOf("=")), f.slice(f.indexOf("=") + 1)]));
  const l = values(left), r = values(right);
  return el("table", { class: "fields" },
    el("thead", null, el("tr", null, el("th", null, (right || left).kind), ref && el("th", null, "reference"), el("th", null, ref ? "this run" : "value"))),
    el("tbody", null, [...new Set([...l.keys(), ...r.keys()])].map((name) => {
      const differs = fields.includes(name);
      return el("tr", { class: differs ? "differs" : null }, el("th", { scope: "row" }, differs && "≠ ", name),
        ref && el("td", null, l.has(name) ? l.get(name) : "–"), el("td", null, r.has(name) ? r.get(name) : "–"));
    })));
}

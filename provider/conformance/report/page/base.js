"use strict";
// Elements are made by el, whose texts are text: nothing of a report becomes markup.

// el makes an element. Attributes that are null, undefined or false are left out; children may be
// elements, texts, lists of these, or nothing.
function el(name, attributes, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
    else e.setAttribute(key, value === true ? "" : String(value));
  }
  add(e, children);
  return e;
}

function add(parent, child) {
  if (child === null || child === undefined || child === false || child === "") return;
  if (Array.isArray(child)) for (const c of child) add(parent, c);
  else parent.append(child instanceof Node ? child : String(child));
}

const byId = (id) => document.getElementById(id);
const code = (text) => el("code", null, text);

// The verdicts in order, with their signs: colour never stands alone.
const verdicts = { PASS: "✓", XFAIL: "≈", UNSUPPORTED: "–", FAIL: "✗", XPASS: "!", SETUP: "?" };
const isGood = (verdict) => ["PASS", "XFAIL", "UNSUPPORTED"].includes(verdict);
const verdictText = (verdict) => (verdicts[verdict] || "?") + " " + verdict;

const pairingOf = (run) => run.initiator + "->" + run.responder;
const scenarioRoute = (s) => "scenario/" + s.slug;
const runRoute = (s, run) => "run/" + s.slug + "/" + run.initiator + "/" + run.responder;

// linked makes the notes that a text names links to the files.
const linked = (text) => String(text || "").split(/((?:kernel-notes|docs)\/[\w.-]+\.md)/).map((part, i) =>
  i % 2 === 1 ? el("a", { href: document.querySelector("main").dataset.files + part }, part) : part);

// lazily makes the contents of a <details> when it is first opened.
function lazily(details, contents) {
  const fill = () => {
    if (!details.open || details.filled) return;
    details.filled = true;
    add(details, contents());
  };
  details.addEventListener("toggle", fill);
  details.fill = fill;
  return details;
}

// open opens a <details> and makes its contents at once.
function open(details) {
  details.open = true;
  if (details.fill) details.fill();
}

// unpack reads the page's data: JSON, compressed with gzip, in base64.
async function unpack() {
  if (typeof DecompressionStream !== "function") {
    throw new Error("this browser lacks DecompressionStream, with which the page unpacks its data");
  }
  const octets = Uint8Array.from(atob(byId("data").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([octets]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

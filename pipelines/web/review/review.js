// Keys of the review pages, the selection of words in the document, and parts that are fetched when they are seen.
// All of it is convenience: every page works with its links and forms alone.
"use strict";

const byId = (id) => document.getElementById(id);
const text = byId("text");

// What is typed into a field is no command; a check box takes no text.
const typing = (target) => target.closest("input:not([type=checkbox]), textarea, select") !== null;

const press = (id) => () => { const element = byId(id); if (element) element.click(); };
const focus = (id) => () => { const element = byId(id); if (element) { element.focus(); if (element.select) element.select(); } };

// ---- the list

const rows = [...document.querySelectorAll("#list tbody tr")];
const row = (step) => () => {
  const links = rows.map((each) => each.querySelector("a"));
  const now = links.indexOf(document.activeElement);
  const next = links[Math.min(links.length - 1, Math.max(0, now < 0 ? 0 : now + step))];
  if (next) next.focus();
};
const follow = (rel) => () => { const link = document.querySelector(`.pager a[rel=${rel}]`); if (link) link.click(); };
for (const each of rows) each.addEventListener("click", (event) => {
  if (!event.target.closest("a") && !String(getSelection())) each.querySelector("a").click();
});

// ---- words of the document

// Characters of the document before a place in its text on the page; the document counts characters, the page UTF-16 units.
const place = (node, offset) => {
  const range = document.createRange();
  let piece = node.nodeType === Node.TEXT_NODE ? node.parentElement : node;
  piece = piece.closest("[data-start]");
  if (!piece) {
    const after = node.childNodes[offset] || null;
    if (after && after.dataset) return Number(after.dataset.start);
    const last = text.lastElementChild;
    return last ? Number(last.dataset.start) + [...last.textContent].length : 0;
  }
  range.setStart(piece, 0);
  range.setEnd(node, offset);
  return Number(piece.dataset.start) + [...range.toString()].length;
};

const selected = () => {
  const selection = getSelection();
  if (!text || selection.rangeCount === 0 || selection.isCollapsed) return null;
  const range = selection.getRangeAt(0);
  if (!text.contains(range.startContainer) || !text.contains(range.endContainer)) return null;
  const words = range.toString();
  const lead = [...words].length - [...words.trimStart()].length;
  const trail = [...words].length - [...words.trimEnd()].length;
  const start = place(range.startContainer, range.startOffset) + lead;
  const end = place(range.endContainer, range.endOffset) - trail;
  return end > start ? { words: words.trim(), start, end } : null;
};

const take = () => {
  const found = selected();
  if (!found) return false;
  byId("answer").value = found.words.split(/\s+/).join(" ");
  byId("start").value = found.start;
  byId("end").value = found.end;
  byId("selected").textContent = `Selected in the document: characters ${found.start.toLocaleString("en")} to ${found.end.toLocaleString("en")}. Enter corrects.`;
  byId("answer").focus();
  return true;
};

const enterText = () => {
  if (!text) return;
  text.focus();
  const anchor = text.querySelector("[data-anchor]") || text.firstElementChild;
  if (!anchor) return;
  getSelection().collapse(anchor.firstChild || anchor, 0);
  anchor.scrollIntoView({ block: "center" });
};

const MOVES = {
  ArrowRight: ["forward", "word"], ArrowLeft: ["backward", "word"], ArrowDown: ["forward", "line"], ArrowUp: ["backward", "line"],
  End: ["forward", "lineboundary"], Home: ["backward", "lineboundary"],
};
if (text && byId("verdict")) {
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && take()) { event.preventDefault(); event.stopPropagation(); return; }
    const move = MOVES[event.key];
    if (!move || event.altKey || event.metaKey) return;
    const [direction, granularity] = move;
    const unit = event.ctrlKey && granularity === "word" ? "character" : granularity;
    getSelection().modify(event.shiftKey ? "extend" : "move", direction, unit);
    const rect = getSelection().rangeCount ? getSelection().getRangeAt(0).getBoundingClientRect() : null;
    if (rect && (rect.top < 120 || rect.bottom > innerHeight - 40)) {
      const node = getSelection().focusNode;
      const element = node.nodeType === Node.TEXT_NODE ? node.parentElement : node;
      if (rect.height) (document.querySelector("aside.document")).scrollBy(0, rect.top < 120 ? -160 : 160);
      else element.scrollIntoView({ block: "nearest" });
    }
    event.preventDefault();
  });
  document.addEventListener("selectionchange", () => {
    document.querySelector(".take").hidden = !selected();
  });
  byId("take").addEventListener("mousedown", (event) => event.preventDefault());
  byId("take").addEventListener("click", take);
  byId("answer").addEventListener("input", () => {
    byId("start").value = byId("end").value = byId("selected").textContent = "";
  });
  const first = text.querySelector("[data-anchor]");
  const side = document.querySelector("aside.document");
  if (first && side.scrollHeight > side.clientHeight) side.scrollTop = first.offsetTop - side.offsetTop - 160;
}

// ---- keys

const settle = () => { const box = byId("decides"); if (box) { box.checked = !box.checked; box.focus(); } };
const KEYS = byId("verdict") ? {
  a: press("accept"), r: press("reject"), n: press("absent"), c: enterText, e: focus("answer"), m: focus("comment"), d: settle,
  u: press("undo"), j: press("next"), k: press("previous"), f: focus("find"), Escape: press("back"),
} : byId("list") ? {
  j: row(1), k: row(-1), n: follow("next"), p: follow("prev"), "/": focus("words"),
} : { "/": focus("words"), Escape: press("back") };

let keysOn = localStorage.getItem("keys") !== "off";
const note = byId("keys");
if (note) {
  const button = document.createElement("button");
  button.className = "link";
  const say = () => { button.textContent = keysOn ? "Turn keys off" : "Turn keys on"; };
  button.addEventListener("click", () => { keysOn = !keysOn; localStorage.setItem("keys", keysOn ? "on" : "off"); say(); });
  say();
  note.append(" ", button);
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || event.isComposing) return;
  if (typing(event.target)) {
    if (event.key === "Escape") { event.target.blur(); byId("main").focus(); }
    return;
  }
  const command = keysOn || event.key === "Escape" ? KEYS[event.key] : undefined;
  if (command) { event.preventDefault(); command(); }
});
// Two presses of a key are one verdict.
for (const form of document.querySelectorAll("form[method=post]")) form.addEventListener("submit", (event) => {
  if (form.dataset.sent) event.preventDefault();
  form.dataset.sent = "1";
});
addEventListener("pageshow", () => { for (const form of document.forms) delete form.dataset.sent; });

// ---- parts that are fetched

const fetchPart = async (part) => {
  try {
    const answer = await fetch(part.dataset.load, { headers: { Accept: "text/html" } });
    if (answer.ok && !answer.redirected) part.innerHTML = await answer.text();
  } catch { /* the link stays */ }
};
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); fetchPart(entry.target); }
}, { rootMargin: "200px" });
for (const part of document.querySelectorAll("[data-load]")) seen.observe(part);
if (document.querySelector("[data-reload]")) setTimeout(() => location.reload(), 4000);

// Which part of the report is seen: the address says it, so that every view has a link.

const TABS = ["answers", "throughput", "failures", "provenance"];
const ROWS_PRINTED = 2000;

const showTab = (name) => {
  for (const tab of TABS) {
    const on = tab === name;
    $("tab-" + tab).setAttribute("aria-selected", on);
    $("tab-" + tab).tabIndex = on ? 0 : -1;
    $("panel-" + tab).hidden = !on;
  }
};

const decoded = (text) => {
  try { return decodeURIComponent(text); } catch { return text; } // an address that was cut short
};

let listPlace = 0;
const route = () => {
  const [key, value] = location.hash.slice(1).split("=");
  const reading = $("reading"), list = $("list");
  const wasList = !list.hidden;
  const row = key === "reading" ? byLink.get(decoded(value || "")) : null;
  document.body.classList.toggle("opened", key === "reading");
  showTab(TABS.includes(key) ? key : "answers");
  if (key === "reading") {
    if (wasList) listPlace = scrollY;
    list.hidden = true;
    reading.hidden = false;
    if (row) drawReading(row);
    else reading.replaceChildren(el("nav", { class: "bar" }, el("a", { href: "#answers", class: "back" }, "← All answers")),
      el("div", { class: "empty" }, el("p", {}, "This report has no reading ", el("code", {}, value || ""), ".")));
    scrollTo(0, $("main").offsetTop - 60);
    $("question")?.focus({ preventScroll: true });
    return;
  }
  reading.hidden = true;
  reading.replaceChildren();
  list.hidden = false;
  if (!wasList && TABS.indexOf(key) < 1) scrollTo(0, listPlace);
};

const notice = (kind, ...children) => $("notices").append(el("p", { class: "notice " + kind }, ...children));

const buildNotices = () => {
  const left = data.leftOut;
  const states = rows.reduce((counts, row) => ({ ...counts, [row.state]: (counts[row.state] || 0) + 1 }), {});
  if (!data.readings) notice("", "This run had nothing to read: none of its questions was about a document of the corpus.");
  else if (states.reused === rows.length) notice("", `Nothing new had to be read: all ${plural(rows.length, "answer")} came from earlier runs, for documents that have not changed.`);
  else if (states.failed === rows.length) notice("bad", "No reading came to an answer. ", el("a", { href: "#failures" }, "The failures say why."));
  else if (states.failed) notice("bad", `${plural(states.failed, "question has", "questions have")} no answer. `, el("a", { href: "#failures" }, "The failures say why."));
  const unread = data.unread || states.unread;
  if (unread) notice("bad", `${plural(unread, "question was", "questions were")} not answered: ${data.unread ? "the budget was spent" : "the reading was not finished"}. The same command again goes on with them.`);
  if (data.forgotten) notice("", `${plural(data.forgotten, "answer of this run is", "answers of this run are")} of documents that were forgotten.`);
  const parts = [left.rows && plural(left.rows, "answer"), left.memories && `the memories of ${plural(left.memories, "answer")}`, left.documents && `the text of ${plural(left.documents, "document")}`].filter(Boolean);
  if (parts.length) notice("", `To stay below ${left.limit}, this file leaves out ${parts.join(", ")}. The answers listed and their evidence are complete.`);
};

const buildFailures = () => {
  if (!data.failureCounts.length) {
    $("failure-list").replaceChildren(el("div", { class: "empty" }, el("p", {}, "Nothing failed: neither in this run nor when the corpus was taken in.")));
    return;
  }
  const total = data.failureCounts.reduce((sum, f) => sum + f.count, 0);
  const table = (heads, lines) => el("table", { class: "grid still" }, el("thead", {}, el("tr", {}, heads.map((h) => el("th", { scope: "col" }, h)))), el("tbody", {}, lines));
  const whose = (f) => (f.mine ? "this run" : "another run on this corpus");
  fill($("failure-list"), [
    el("h3", {}, "By reason"),
    table(["Count", "Stage", "Reason", "Seen in"], data.failureCounts.map((f) => el("tr", {}, el("td", { "data-label": "Count" }, count(f.count)), el("td", { "data-label": "Stage" }, said(f.stage)), el("td", { "data-label": "Reason" }, said(f.reason)), el("td", { "data-label": "Seen in" }, whose(f))))),
    el("h3", {}, "One by one"),
    total > data.failures.length && el("p", { class: "quiet" }, `The first ${count(data.failures.length)} of ${count(total)}, those of this run before others.`),
    table(["Stage", "Item", "Reason", "Detail", "When"], data.failures.map((f) => el("tr", {}, el("td", { "data-label": "Stage" }, said(f.stage)),
      el("td", { "data-label": "Item" }, said(f.item, { class: "item" })),
      el("td", { "data-label": "Reason" }, said(f.reason)), el("td", { "data-label": "Detail" }, said(f.detail)), el("td", { "data-label": "When", class: "sub" }, f.at))))]);
};

const keys = (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  const tab = event.target.getAttribute?.("role") === "tab";
  const opened = !$("reading").hidden;
  if (tab && ["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) {
    const at = TABS.indexOf(event.target.id.slice(4));
    const to = { ArrowLeft: (at + TABS.length - 1) % TABS.length, ArrowRight: (at + 1) % TABS.length, Home: 0, End: TABS.length - 1 }[event.key];
    event.preventDefault();
    go("#" + TABS[to]);
    $("tab-" + TABS[to]).focus();
  } else if (typing) {
    if (event.key === "Escape") event.target.blur();
  } else if (event.key === "/" && !opened && rows.length) {
    event.preventDefault();
    $("filter-text").focus();
  } else if (opened && event.key === "Escape") go("#answers");
  else if (opened && ["ArrowLeft", "ArrowRight"].includes(event.key) && !event.target.closest(".document")) {
    const step = document.querySelectorAll(".bar .step")[event.key === "ArrowLeft" ? 0 : 1];
    if (step?.getAttribute("href")) go(step.getAttribute("href"));
  }
};

// On paper there are no pages to turn: what the filters leave is printed, up to a limit.
let before = {};
const repage = (page) => { if (rows.length) { Object.assign(view, page); drawTable(); } };
addEventListener("beforeprint", () => { before = { size: view.size, page: view.page }; repage({ size: ROWS_PRINTED, page: 0 }); });
addEventListener("afterprint", () => repage(before));

if (rows.length) buildTable();
buildNotices();
buildCharts();
buildFailures();
for (const tab of TABS) $("tab-" + tab).addEventListener("click", () => go("#" + tab));
const failed = data.failureCounts.reduce((sum, f) => sum + f.count, 0);
if (failed) $("tab-failures").append(el("span", { class: "count" }, count(failed)));
if (rows.length) $("tab-answers").append(el("span", { class: "count" }, count(rows.length)));
addEventListener("keydown", keys);
addEventListener("hashchange", route);
route();

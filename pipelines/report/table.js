// The table of answers: filter, sort, page.

const view = { text: "", question: "", found: "", right: "", state: "", review: "", matrix: false, sort: "", down: false, page: 0, size: 50 };
const anyGold = rows.some((row) => row.gold !== null);
const anyReview = rows.some((row) => row.review);
const FEW_QUESTIONS = 12;
const COLUMNS = [
  { key: "document", label: "Document", value: (row) => documentName(row).toLowerCase() },
  { key: "question", label: "Question", value: (row) => questionText(row).toLowerCase() },
  { key: "answer", label: "Answer", value: (row) => (row.found ? "" : "\uffff") + answerText(row).toLowerCase() },
  ...(anyGold ? [
    { key: "gold", label: "Gold answer", value: (row) => goldText(row).toLowerCase() },
    { key: "right", label: "Right", hint: "A gold answer stands in the answer as whole words; case, punctuation and articles do not count", value: (row) => (row.right === null ? 2 : row.right ? 0 : 1) },
  ] : []),
  { key: "segments", label: "Parts read", number: true, value: (row) => row.segments || 0 },
  ...(anyReview ? [{ key: "review", label: "Review", value: (row) => (row.review ? row.review[0] : "\uffff") }] : []),
  { key: "state", label: "Origin", value: (row) => Object.keys(STATES).indexOf(row.state) },
];

const haystack = (row) =>
  (row.text ??= [documentName(row), documentTitle(row), questionText(row), answerText(row), engineText(row), goldText(row), row.quote].join("\n").toLowerCase());
const matching = () => {
  const needles = view.text.toLowerCase().split(/\s+/).filter(Boolean);
  const kept = rows.filter((row) =>
    (view.question === "" || (typeof view.question === "number" ? row.question === view.question : questionText(row).toLowerCase().includes(view.question))) &&
    (view.review === "" || (view.review === "open" ? !row.review && !lacking(row) : row.review?.[0] === view.review)) &&
    (view.found === "" || view.found === (lacking(row) ? "none" : row.found ? "yes" : "no")) &&
    (view.right === "" || (view.right === "none" ? row.right === null : row.right === (view.right === "yes"))) &&
    (view.state === "" || row.state === view.state) &&
    needles.every((needle) => haystack(row).includes(needle)));
  const column = COLUMNS.find((c) => c.key === view.sort);
  if (!column) return kept;
  const keyed = kept.map((row) => [column.value(row), row]);
  const way = view.down ? -1 : 1;
  keyed.sort(([a, x], [b, y]) => (a < b ? -way : a > b ? way : x.number - y.number));
  return keyed.map(([, row]) => row);
};
let shown = rows;

const drawTable = () => {
  shown = matching();
  const pages = Math.max(1, Math.ceil(shown.length / view.size));
  view.page = Math.min(view.page, pages - 1);
  drawRows(shown.slice(view.page * view.size, (view.page + 1) * view.size));
  $("matrix").hidden = !view.matrix;
  if (view.matrix) { drawMatrix(); $("answer-table").hidden = true; }
  $("status").textContent = shown.length === rows.length
    ? plural(rows.length, "answer") : `${count(shown.length)} of ${plural(rows.length, "answer")}`;
  $("clear").hidden = ![view.text, view.question !== "", view.found, view.right, view.state, view.review].some(Boolean);
  view.matrix ? $("pager").replaceChildren() : drawPager(pages);
  for (const column of COLUMNS) {
    const sorted = view.sort === column.key;
    $("head-" + column.key).setAttribute("aria-sort", sorted ? (view.down ? "descending" : "ascending") : "none");
  }
};

const drawRows = (page) => {
  const body = $("answer-table").tBodies[0];
  body.replaceChildren(...page.map(drawRow));
  $("none").hidden = page.length > 0;
  $("answer-table").hidden = page.length === 0;
};

const drawRow = (row) => {
  const cell = (column, ...children) => el("td", { class: column, "data-label": COLUMNS.find((c) => c.key === column.split(" ")[0])?.label }, ...children);
  return el("tr", { "data-reading": row.link, onclick: (event) => { if (!event.target.closest("a") && !String(getSelection())) open(row); } },
    cell("document", el("a", { href: href(row) }, said(documentName(row))),
      documentTitle(row) && el("span", { class: "sub" }, said(documentTitle(row)))),
    cell("question", said(questionText(row))),
    cell("answer", said(answerText(row), { class: lacking(row) ? "bad" : row.found ? "clamp" : "quiet" }),
      corrected(row) && el("span", { class: "sub" }, "the reader: ", el("del", {}, said(engineText(row)))),
      row.quote && el("q", { class: "sub quote" }, said(row.quote)), row.quote && !row.verbatim && el("span", { class: "sub" }, NOT_VERBATIM), row.page && el("span", { class: "sub" }, "page " + count(row.page)),
      warningNote(row),
      row.reason && el("span", { class: "sub" }, said(row.reason))),
    anyGold && [cell("gold", row.gold === null ? null : said(goldText(row), { class: "clamp" })), cell("right", verdict(row))],
    cell("segments number", count(row.segments)),
    anyReview && cell("review", reviewChip(row)),
    cell("state", el("span", { class: "chip " + row.state }, STATES[row.state])));
};

const verdict = (row) => row.right === null ? null
  : el("span", { class: "verdict " + (row.right ? "good" : "bad") }, el("span", { "aria-hidden": "true" }, row.right ? "✓" : "✗"), row.right ? " right" : " wrong");

const drawPager = (pages) => {
  const turn = (label, page, off) => el("button", { type: "button", disabled: off, onclick: () => { view.page = page; drawTable(); $("answer-table").scrollIntoView({ block: "start" }); } }, label);
  const first = view.page * view.size;
  const menu = el("select", { "aria-label": "Answers on a page", onchange: (event) => { view.size = Number(event.target.value); view.page = 0; drawTable(); } },
    [25, 50, 100, 250].map((size) => el("option", { value: size, selected: size === view.size }, `${size} a page`)));
  $("pager").replaceChildren(...(shown.length <= 25 ? [] : [
    turn("‹ Back", view.page - 1, view.page === 0),
    el("span", {}, `${count(first + 1)} to ${count(Math.min(first + view.size, shown.length))} of ${count(shown.length)}`),
    turn("Next ›", view.page + 1, view.page >= pages - 1), menu]));
};

const select = (key, label, options) => el("label", { class: "field" }, el("span", {}, label),
  el("select", { id: "filter-" + key, onchange: (event) => { view[key] = key === "question" && event.target.value ? Number(event.target.value) : event.target.value; view.page = 0; drawTable(); } },
    options.map(([value, text]) => el("option", { value }, text))));

const present = (key, options) => options.filter(([value]) => value === "" || rows.some((row) => row[key] === value));
const clearFilters = () => {
  Object.assign(view, { text: "", question: "", found: "", right: "", state: "", review: "", page: 0 });
  $("filters").reset();
  drawTable();
  $("filter-text").focus();
};

// Of many questions: words of one, with those that have them to choose from.
const questionSearch = () => {
  const list = el("datalist", { id: "asked" }, data.questions.map((question) => el("option", { value: question.text })));
  const exact = new Map(data.questions.map((question, i) => [question.text, i]));
  const input = el("input", { id: "filter-question", type: "search", list: "asked", placeholder: `Words of one of ${count(data.questions.length)}`, autocomplete: "off",
    oninput: (event) => { const text = event.target.value.trim(); view.question = exact.get(text) ?? text.toLowerCase(); view.page = 0; drawTable(); } });
  return el("label", { class: "field grow" }, el("span", {}, "Question"), input, list);
};

const buildTable = () => {
  let typing = 0;
  const search = el("input", { id: "filter-text", type: "search", placeholder: "Document, question, answer …", autocomplete: "off", spellcheck: "false",
    oninput: (event) => { clearTimeout(typing); typing = setTimeout(() => { view.text = event.target.value; view.page = 0; drawTable(); }, 80); } });
  const short = (text) => (text.length > 80 ? text.slice(0, 79) + "…" : text);
  const asked = data.questions.map((question, i) => [String(i), short(question.text)]);
  const origins = present("state", [["", "All"], ...Object.entries(STATES)]);
  const sort = (column) => () => {
    if (view.sort !== column.key) Object.assign(view, { sort: column.key, down: false });
    else if (!view.down) view.down = true;
    else Object.assign(view, { sort: "", down: false });
    view.page = 0;
    drawTable();
  };
  $("listing").replaceChildren(
    el("form", { id: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
      el("label", { class: "field grow" }, el("span", {}, "Search"), search),
      asked.length > 1 && (asked.length <= FEW_QUESTIONS
        ? select("question", "Question", [["", `All ${count(asked.length)}`], ...asked])
        : questionSearch()),
      select("found", "Answer", [["", "All"], ["yes", "Found"], ["no", "Not found"], ...(rows.some(lacking) ? [["none", "No answer"]] : [])]),
      anyGold && select("right", "Against gold", [["", "All"], ["yes", "Right"], ["no", "Wrong"], ["none", "No gold"]]),
      anyReview && select("review", "Review", [["", "All"], ["open", "Not checked"], ...["accepted", "corrected", "rejected", "disputed"].map((name) => [name, name])]),
      origins.length > 2 && select("state", "Origin", origins)),
    el("p", { class: "status" }, el("span", { id: "status", role: "status", "aria-live": "polite" }), " ",
      el("button", { id: "clear", type: "button", class: "link", hidden: true, onclick: clearFilters }, "Clear the filters"),
      data.questions.length > 1 && data.documents.length > 1 && el("span", { class: "shape" },
        el("button", { id: "as-list", type: "button", "aria-pressed": true, onclick: () => showMatrix(false) }, "List"),
        el("button", { id: "as-matrix", type: "button", "aria-pressed": false, onclick: () => showMatrix(true) }, "Documents by questions"))),
    el("div", { id: "matrix", hidden: true }),
    el("table", { id: "answer-table", class: "grid" },
      el("thead", {}, el("tr", {}, COLUMNS.map((column) => el("th", { id: "head-" + column.key, scope: "col", class: column.key + (column.number ? " number" : "") },
        el("button", { type: "button", title: column.hint, onclick: sort(column) }, column.label, el("span", { class: "arrow", "aria-hidden": "true" })))))),
      el("tbody")),
    el("div", { id: "none", class: "empty", hidden: true }, el("p", {}, "No reading matches these filters."),
      el("button", { type: "button", onclick: clearFilters }, "Clear the filters")),
    el("nav", { id: "pager", class: "pager", "aria-label": "Pages" }));
  drawTable();
};

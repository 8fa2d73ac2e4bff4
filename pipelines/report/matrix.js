// Documents by questions: a row a document, a column a question, each answer a link to its reading.

const MATRIX_ROWS = 50;
const MATRIX_QUESTIONS = 40;
let matrixPage = 0;

const drawMatrix = () => {
  const place = $("matrix");
  const byDocument = new Map();
  const asked = new Set();
  for (const row of shown) {
    if (row.document < 0) continue;
    if (!byDocument.has(row.document)) byDocument.set(row.document, new Map());
    byDocument.get(row.document).set(row.question, row);
    asked.add(row.question);
  }
  const questions = [...asked].sort((a, b) => a - b).slice(0, MATRIX_QUESTIONS);
  const documents = [...byDocument];
  const pages = Math.max(1, Math.ceil(documents.length / MATRIX_ROWS));
  matrixPage = Math.min(matrixPage, pages - 1);
  const part = documents.slice(matrixPage * MATRIX_ROWS, (matrixPage + 1) * MATRIX_ROWS);
  const cell = (row) => el("td", { class: row ? "cell " + (lacking(row) ? "failed" : row.found ? "found" : "absent") : "cell" },
    row && el("a", { href: href(row) }, said(answerText(row), { class: "clamp" })), row?.review && reviewChip(row), row && warningNote(row));
  const turn = (label, to, off) => el("button", { type: "button", disabled: off, onclick: () => { matrixPage = to; drawMatrix(); } }, label);
  place.replaceChildren(
    ...(asked.size > questions.length ? [el("p", { class: "quiet" }, `The first ${count(questions.length)} of ${plural(asked.size, "question")}; search for others.`)] : []),
    el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Documents by questions" }, el("table", { class: "grid still matrix" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Document"), questions.map((q) => el("th", { scope: "col" }, said(data.questions[q].text, { class: "clamp" }))))),
      el("tbody", {}, part.map(([number, answers]) => el("tr", {}, el("th", { scope: "row" }, said(data.documents[number].title || data.documents[number].id)), questions.map((q) => cell(answers.get(q)))))))),
    ...(pages > 1 ? [el("nav", { class: "pager", "aria-label": "Pages of the matrix" }, turn("‹ Back", matrixPage - 1, !matrixPage), el("span", {}, `${count(matrixPage + 1)} of ${count(pages)}`), turn("Next ›", matrixPage + 1, matrixPage >= pages - 1))] : []));
};

const showMatrix = (on) => {
  view.matrix = on;
  $("as-list").setAttribute("aria-pressed", !on);
  $("as-matrix").setAttribute("aria-pressed", on);
  drawTable();
};

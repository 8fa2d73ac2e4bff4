// Building the page. Text becomes text nodes and nothing else.

// Characters that cannot be seen, or that turn the text around them, are shown by name.
const visible = (text) =>
  String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]/g, (c) => {
    const code = c.charCodeAt(0);
    if (code === 13) return "";
    if (code === 0x2028 || code === 0x2029) return "\n";
    return `[U+${code.toString(16).toUpperCase().padStart(4, "0")}]`;
  });

const fill = (node, children) => {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
  return node;
};

const SVG = "http://www.w3.org/2000/svg";
const put = (node, props, children) => {
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  return fill(node, children);
};
const el = (tag, props = {}, ...children) => put(document.createElement(tag), props, children);
const svg = (tag, props = {}, ...children) => put(document.createElementNS(SVG, tag), props, children);

// Text of unknown direction, kept apart from its surroundings.
const said = (text, props = {}) => el("bdi", props, text);

const $ = (id) => document.getElementById(id);
const parse = (id) => ($(id) ? JSON.parse($(id).textContent) : null);
const count = (n) => Number(n || 0).toLocaleString("en-US");
const plural = (n, one, many = one + "s") => `${count(n)} ${n === 1 ? one : many}`;
const clock = (seconds) => {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  const rest = String(Math.floor(seconds % 60)).padStart(2, "0");
  return minutes < 60 ? `${minutes}:${rest} min` : `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")} h`;
};
const go = (hash) => { location.hash = hash; };
const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

const data = parse("data");
const STATES = {
  read: "read in this run",
  continued: "continued from an earlier reading",
  reused: "from an earlier run",
  failed: "no answer",
  unread: "not read",
};
const lacking = (row) => row.state === "failed" || row.state === "unread";
const FIELDS = ["id", "document", "question", "answer", "found", "gold", "right", "segments", "evidence", "state", "stream", "reason", "quote", "review", "page", "verbatim", "level", "warnings"];
const NOT_VERBATIM = "not word for word";
const rows = data.rows.map((values, number) => {
  const row = { number };
  FIELDS.forEach((field, i) => { row[field] = values[i]; });
  return row;
});
// Documents of the same content share a reading: its name leads to the first, the others have a number besides.
const byLink = new Map();
for (const row of rows) {
  row.link = byLink.has(row.id) ? `${row.id}.${row.number}` : row.id;
  byLink.set(row.link, row);
}
const href = (row) => "#reading=" + encodeURIComponent(row.link);
const documentName = (row) =>
  row.document < 0 ? `All of ${data.corpus} (${plural(row.stream, "document")})` : data.documents[row.document].id;
const documentTitle = (row) => (row.document < 0 ? "" : data.documents[row.document].title);
const questionText = (row) => data.questions[row.question].text;
const goldText = (row) =>
  row.gold === null ? "" : row.gold.map((text) => (text === "" ? "not in the document" : text)).join(" · ");
const corrected = (row) => row.review && row.review[0] === "corrected";
// What people said is right, where they did.
const answerText = (row) => (corrected(row) ? row.review[1] || "Not in the document" : engineText(row));
const engineText = (row) => (row.state === "failed" ? "No answer" : row.state === "unread" ? "Not read" : row.answer || "Not found");
const reviewChip = (row) => row.review && el("span", { class: "chip review-" + row.review[0], title: row.review[2].join(", ") || null }, row.review[0]);
const warnings = (row) => [...row.warnings, ...(row.document < 0 ? data.warnings : data.documents[row.document].warnings)];
const warningNote = (row) => warnings(row).length > 0 && el("span", { class: "sub warn", title: warnings(row).join("; ") }, said(warnings(row).join("; ")));

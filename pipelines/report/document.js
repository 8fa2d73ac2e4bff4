// The document beside a reading: the passages that the file holds, with evidence marked.

// Offsets count characters as Python does; strings with characters beyond the first plane need arrays.
const characters = (text) => (/[\ud800-\udfff]/.test(text) ? Array.from(text) : text);
const part = (units, from, to) => { const cut = units.slice(from, to); return Array.isArray(cut) ? cut.join("") : cut; };

const passages = new Map();
const passage = (number) => {
  if (!passages.has(number)) passages.set(number, parse("document-" + number));
  return passages.get(number);
};

// Split one piece at the edges of the marks; marks are {start, end, kind, keys}.
const paint = ([offset, text], marks) => {
  const units = characters(text), end = offset + units.length;
  const mine = marks.filter((mark) => mark.start < end && mark.end > offset);
  const edges = [...new Set([offset, end, ...mine.flatMap((mark) => [Math.max(offset, mark.start), Math.min(end, mark.end)])])].sort((a, b) => a - b);
  const nodes = [];
  for (let i = 0; i + 1 < edges.length; i++) {
    const [from, to] = [edges[i], edges[i + 1]];
    const over = mine.filter((mark) => mark.start <= from && mark.end >= to && mark.end > mark.start);
    for (const mark of mine.filter((m) => m.kind === "edge" && m.start === from)) nodes.push(el("span", { class: "edge", "data-key": mark.keys.join(" ") }, mark.label));
    const string = part(units, from - offset, to - offset);
    const kinds = over.map((mark) => mark.kind).filter((kind) => kind !== "edge");
    if (!kinds.length) nodes.push(fill(document.createDocumentFragment(), [string]));
    else nodes.push(el("mark", { class: [...new Set(kinds)].join(" "), "data-key": over.filter((m) => m.kind !== "edge").flatMap((m) => m.keys).join(" ") }, string));
  }
  return nodes;
};

const drawDocument = (pane, number, marks) => {
  const record = data.documents[number], held = passage(record.text);
  const head = el("header", {}, el("h3", {}, said(record.title || record.id)),
    el("p", { class: "sub" }, record.title ? [said(record.id), " · "] : null,
      held ? plural(held.chars, "character") : record.chars ? plural(record.chars, "character") : "length unknown"));
  if (!held) {
    pane.replaceChildren(head, el("div", { class: "empty" }, el("p", {}, "The text of this document was left out to keep the file small. The evidence is quoted on this page.")));
    return;
  }
  const body = el("div", { class: "text", dir: "auto" });
  let at = 0;
  for (const piece of held.pieces) {
    if (piece[0] > at) body.append(gap(piece[0] - at));
    fill(body, paint(piece, marks));
    at = piece[0] + characters(piece[1]).length;
  }
  if (at < held.chars) body.append(gap(held.chars - at));
  const partial = held.pieces.length !== 1 || at < held.chars || held.pieces[0][0] > 0;
  pane.replaceChildren(head, partial ? el("p", { class: "sub" }, "Passages around the evidence and around what the memory took up; the rest is not in this file.") : "", body);
};

const gap = (length) => el("div", { class: "gap" }, `${plural(length, "character")} left out`);

const reveal = (pane, key) => {
  const found = [...pane.querySelectorAll("mark, .edge")].filter((node) => node.dataset.key.split(" ").includes(key));
  for (const node of pane.querySelectorAll(".here")) node.classList.remove("here");
  if (!found.length) return false;
  for (const node of found) node.classList.add("here");
  const box = pane.getBoundingClientRect(), place = found[0].getBoundingClientRect();
  if (pane.scrollHeight > pane.clientHeight + 1) pane.scrollTop += place.top - box.top - pane.clientHeight / 3;
  else found[0].scrollIntoView({ block: "center", behavior: calm() ? "auto" : "smooth" });
  return true;
};

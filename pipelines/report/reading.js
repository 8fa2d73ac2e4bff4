// One reading: the answer, its evidence, and the memory as it changed.

const CHANGES_AT_ONCE = 40;
const LONG_RUN = 60;
const MARKS_MOST = 1500;
const CUT = {
  length: "The answer was cut off at the limit of reading.answer_tokens.",
  repetition: "The answer was ended because it repeated itself (reading.repetitions).",
};

const open = (row) => go(href(row));

const drawReading = (row) => {
  const detail = parse("reading-" + row.number);
  const pane = el("aside", { class: "document", "aria-label": "The document", tabindex: "0" });
  const marks = detail ? collectMarks(detail) : [];
  const show = (document_, key) => {
    if (document_ < 0) return;
    if (pane.dataset.number !== String(document_)) {
      pane.dataset.number = document_;
      drawDocument(pane, document_, marks.filter((mark) => mark.document === document_));
    }
    reveal(pane, key);
  };
  const main = el("div", { class: "story" }, drawAnswer(row, detail));
  if (detail) fill(main, [drawEvidence(row, detail, show), drawMemory(row, detail, show), drawOrigin(row, detail)]);
  const seen = [...new Set([...(detail?.evidence || []).map((e) => e.content_hash), ...(detail?.timeline?.changes || []).map((c) => c.document)])].filter((n) => n >= 0);
  if (!seen.length && row.document >= 0 && $("document-" + row.document)) seen.push(row.document);
  const side = el("div", { class: "side" }, seen.length > 1 && el("label", { class: "field" }, el("span", {}, `Documents that the reading took something from (${count(seen.length)})`),
    el("select", { onchange: (event) => show(Number(event.target.value), "") }, seen.map((n) => el("option", { value: n }, data.documents[n].title || data.documents[n].id)))), pane);
  $("reading").replaceChildren(drawBar(row), el("div", { class: seen.length ? "split" : "" }, main, seen.length ? side : null));
  const first = marks.find((mark) => mark.kind === "evidence") || marks[0];
  if (first) requestAnimationFrame(() => { show(first.document, ""); pane.scrollHeight > pane.clientHeight + 1 && reveal(pane, first.keys[0]); });
  else if (seen.length) show(seen[0], "");
};

const collectMarks = (detail) => {
  const marks = [];
  detail.evidence.forEach((spot, i) => {
    const quoted = spot.quote_start >= 0;
    const [start, end] = quoted ? [spot.quote_start, spot.quote_end] : [spot.char_start, spot.char_end];
    marks.push({ document: spot.content_hash, start, end, kind: quoted ? "evidence" : "passage", keys: ["evidence-" + i] });
  });
  (detail.timeline?.changes || []).forEach((change, i) => {
    if (!change.characters) return;
    marks.push({ document: change.document, start: change.characters[0], end: change.characters[1], kind: "edge", keys: ["edge-" + i], label: `segment ${change.segment + 1}` });
    for (const [start, end] of change.noted || []) {
      // What is evidence already gets a second name, not a second mark.
      const same = marks.find((mark) => mark.kind === "evidence" && mark.document === change.document && mark.start <= start && mark.end >= end);
      if (same) same.keys.push("change-" + i);
      else marks.push({ document: change.document, start, end, kind: "noted", keys: ["change-" + i] });
    }
  });
  return marks;
};

const drawBar = (row) => {
  const at = shown.indexOf(row);
  const step = (label, to, title) => el("a", { href: to ? href(to) : null, class: "step", title, "aria-disabled": !to }, label);
  return el("nav", { class: "bar", "aria-label": "Answers" }, el("a", { href: "#answers", class: "back" }, "← All answers"),
    at >= 0 && el("span", { class: "steps" }, step("‹ Back", shown[at - 1], "Arrow left"), el("span", { class: "sub" }, `${count(at + 1)} of ${count(shown.length)}`), step("Next ›", shown[at + 1], "Arrow right")));
};

const drawAnswer = (row, detail) => {
  const missing = lacking(row);
  return el("section", { class: "answer" },
    el("p", { class: "over" }, said(documentTitle(row) || documentName(row))),
    el("h2", { id: "question", tabindex: "-1" }, said(questionText(row))),
    el("p", { class: "said " + (missing ? "bad" : row.found ? "" : "quiet") }, said(missing ? "No answer" : corrected(row) ? answerText(row) : row.found ? row.answer : "Not found in the text")),
    corrected(row) && el("p", { class: "quiet" }, "The reader said: ", el("del", {}, said(engineText(row)))),
    row.review && el("p", {}, reviewChip(row), " ", el("span", { class: "sub" }, row.review[2].length ? ["by ", said(row.review[2].join(", "))] : "by people")),
    data.review && !missing && el("p", {}, el("a", { href: `${data.review}/answers/${encodeURIComponent(data.corpus)}/${encodeURIComponent(row.id)}` }, "Check this answer on the review pages")),
    missing && el("p", { class: "quiet" }, row.reason ? ["The reading failed: ", said(row.reason), "."] : "The reading was not finished; running the same command again goes on with it."),
    row.gold !== null && el("p", { class: "gold" }, verdict(row), " · gold answer: ", said(goldText(row))),
    detail?.timeline?.cut && el("p", { class: "warn" }, CUT[detail.timeline.cut]),
    warnings(row).length > 0 && el("p", { class: "warn" }, said(warnings(row).join("; "))),
    el("p", { class: "chips" }, el("span", { class: "chip " + row.state }, STATES[row.state]), " ", row.level && !corrected(row) && el("span", { class: "chip" }, `confidence ${row.level}`), " ", el("span", { class: "sub" }, plural(row.segments || 0, "part"),
      detail && [" · ", plural(detail.origin.conversations || 0, "call of the model", "calls of the model"), " · ", plural(detail.origin.prompt_tokens, "token"), " read",
        detail.origin.prompt_tokens ? `, ${Math.round((100 * detail.origin.cached_tokens) / detail.origin.prompt_tokens)}% from cache` : ""])));
};

const drawEvidence = (row, detail, show) => {
  if (!row.found) return null;
  const several = row.document < 0;
  const items = detail.evidence.map((spot, i) => {
    const quoted = spot.quote_start >= 0;
    const [start, end] = quoted ? [spot.quote_start, spot.quote_end] : [spot.char_start, spot.char_end];
    const record = data.documents[spot.content_hash];
    return el("li", {}, el("blockquote", {}, quoted ? said(spot.quote) : el("span", { class: "quiet" }, "The memory gained the answer here; no sentence of that part says it or supports it.")),
      el("p", { class: "sub" }, several && [said(record.id), " · "], spot.page && `page ${count(spot.page)} · `, spot.segment_index < 0 ? "marked by a person · " : `part ${count(spot.segment_index + 1)} · `, `characters ${count(start)} to ${count(end)} · `, quoted && !spot.verbatim && `${NOT_VERBATIM} · `,
        el("button", { type: "button", class: "link", onclick: () => show(spot.content_hash, "evidence-" + i) }, "Show in the document")));
  });
  return el("section", {}, el("h3", {}, "Evidence"), items.length ? el("ol", { class: "evidence" }, items)
    : el("p", { class: "quiet" }, corrected(row) ? "Who corrected the answer marked no passage for it." : "The answer's words stand in no memory, so no passage can be named. Check this answer by hand."));
};

const drawMemory = (row, detail, show) => {
  const timeline = detail.timeline;
  if (!timeline) return el("section", {}, el("h3", {}, "Memory"), el("p", { class: "quiet" }, data.leftOut.memories
    ? "The memory of this reading was left out to keep the file small, or the turn log no longer holds it. The answer and its evidence are complete."
    : "The turn log no longer holds this reading."));
  const list = el("ol", { class: "changes" });
  const memories = {};
  const cards = timeline.changes.map((change, i) => {
    const before = memories[change.span] || "";
    memories[change.span] = unpack(before, change.memory);
    return [change, before, memories[change.span], i];
  });
  const most = el("button", { type: "button" });
  const more = () => {
    const next = cards.splice(0, CHANGES_AT_ONCE);
    list.append(...next.map((card) => drawChange(row, detail, show, ...card)));
    most.textContent = `Show ${count(Math.min(cards.length, CHANGES_AT_ONCE))} more of ${plural(cards.length, "change")}`;
    most.hidden = !cards.length;
  };
  most.addEventListener("click", more);
  more();
  const reach = (i) => { while (cards.length && !$("change-" + i)) more(); };
  const changed = timeline.changes.length;
  return el("section", { class: "memory" }, el("h3", {}, "Memory"), el("p", { class: "sub" }, "The document is read in parts, its segments; after each the model rewrites its notes, the memory."), drawStrip(timeline, detail, reach, show),
    changed ? null : el("p", { class: "quiet" }, "No segment changed the memory."), list, most);
};

const drawChange = (row, detail, show, change, before, after, i) => {
  const runs = diff(before, after);
  const tally = (kind) => runs.filter(([k]) => k === kind).reduce((sum, [, text]) => sum + words(text).filter((w) => w.trim()).length, 0);
  const [added, removed] = [tally("added"), tally("removed")];
  const total = detail.timeline.strip.length;
  const where = change.kind === "merge" ? "The memories of the spans are put together"
    : `Segment ${count(change.position + 1)} of ${count(total)}`;
  const record = change.document >= 0 ? data.documents[change.document] : null;
  return el("li", { id: "change-" + i, tabindex: "-1" },
    el("p", { class: "where" }, el("strong", {}, where), row.document < 0 && record && said(record.title || record.id),
      change.kind === "carried" && el("span", { class: "chip continued" }, "carried over"),
      el("span", { class: "tally" }, added ? el("span", { class: "plus" }, "+" + plural(added, "word")) : null, " ", removed ? el("span", { class: "minus" }, "−" + plural(removed, "word")) : null),
      change.characters && el("button", { type: "button", class: "link", onclick: () => show(change.document, change.noted?.length ? "change-" + i : "edge-" + i) }, "Show in the document")),
    change.cut && el("p", { class: "warn" }, "The memory was cut off at the limit of reading.memory_tokens."),
    after ? el("div", { class: "diff", dir: "auto" }, runs.map(drawRun)) : el("p", { class: "quiet" }, "The memory was emptied.", runs.length ? el("span", { class: "diff" }, " ", runs.map(drawRun)) : ""));
};

const drawRun = ([kind, text]) => {
  if (kind !== "same") return el(kind === "added" ? "ins" : "del", {}, text);
  const tokens = words(text);
  if (tokens.length <= 2 * LONG_RUN) return el("span", {}, text);
  const middle_ = el("span", { hidden: true }, tokens.slice(LONG_RUN / 2, -LONG_RUN / 2).join(""));
  const button = el("button", { type: "button", class: "fold", onclick: () => { middle_.hidden = false; button.remove(); } }, `… ${count(Math.round(tokens.length / 2 - LONG_RUN / 2))} unchanged words …`);
  return [el("span", {}, tokens.slice(0, LONG_RUN / 2).join("")), button, middle_, el("span", {}, tokens.slice(-LONG_RUN / 2).join(""))];
};

const MARKS = { u: ["unchanged", "read, unchanged"], r: ["repeated", "the model repeated itself or said nothing, so unchanged"], c: ["changed", "changed the memory"], k: ["carried", "carried over"], C: ["carried changed", "changed the memory, carried over"], n: ["unread", "not read"] };

const drawStrip = (timeline, detail, reach, show) => {
  const strip = timeline.strip;
  if (!strip) return null;
  const at = new Map(timeline.changes.map((change, i) => [change.position, i]));
  const spots = new Set(detail.evidence.map((spot) => timeline.changes.find((c) => c.document === spot.content_hash && c.segment === spot.segment_index)?.position));
  const width = Math.ceil(strip.length / MARKS_MOST);
  const rank = "nkurCc";
  const marks = [];
  for (let from = 0; from < strip.length; from += width) {
    const to = Math.min(strip.length, from + width);
    const letter = [...strip.slice(from, to)].reduce((a, b) => (rank.indexOf(b) > rank.indexOf(a) ? b : a));
    const positions = Array.from({ length: to - from }, (_, i) => from + i);
    const evidence = positions.find((p) => spots.has(p));
    const change = evidence ?? positions.find((p) => at.has(p));
    const title = `${width > 1 ? `Segments ${count(from + 1)} to ${count(to)}` : `Segment ${count(from + 1)}`}: ${MARKS[letter][1]}${evidence === undefined ? "" : ", evidence"}`;
    const kind = "m " + MARKS[letter][0] + (evidence === undefined ? "" : " evidence");
    if (change === undefined) { marks.push(el("i", { class: kind, title })); continue; }
    const i = at.get(change);
    marks.push(el("button", { type: "button", class: kind, title, "aria-label": title, onclick: () => { reach(i); $("change-" + i).scrollIntoView({ block: "nearest" }); $("change-" + i).focus(); } }));
  }
  const counts = (letters) => [...strip].filter((c) => letters.includes(c)).length;
  const legend = [["changed", counts("cC"), "changed the memory"], ["evidence", spots.has(undefined) ? spots.size - 1 : spots.size, "gave evidence"], ["unchanged", counts("u"), "changed nothing"], ["repeated", counts("r"), "changed nothing: the model repeated itself"], ["carried", counts("kC"), "carried over"], ["unread", counts("n"), "not read"]];
  return el("figure", { class: "strip" }, el("div", { class: "marks", role: "group", "aria-label": `The ${plural(strip.length, "segment")} in reading order` }, marks),
    el("figcaption", {}, legend.filter(([, n]) => n).map(([kind, n, text]) => el("span", {}, el("i", { class: "m " + kind, "aria-hidden": "true" }), ` ${count(n)} ${text}`))));
};

const drawOrigin = (row, detail) => {
  const o = detail.origin;
  const pairs = [["Reading", row.id], ["Document", row.document < 0 ? "" : data.documents[row.document].id], ["Source", row.document < 0 ? "" : data.documents[row.document].source], ["Content hash", o.content_hash], ["Model version", o.policy_id], ["Reading configuration", o.config_hash],
    ["Run", o.run_id], ["Answered", o.answered_at], ["Went on from reading", o.carried_from], ["Segments carried over", o.carried_segments || ""], ["Time of the reading", clock(o.seconds || 0)], ["Tokens written", count(o.output_tokens)]];
  return el("details", { class: "origin" }, el("summary", {}, "Provenance of this answer"), el("dl", { class: "pairs code" }, pairs.filter(([, v]) => v).map(([k, v]) => [el("dt", {}, k), el("dd", {}, said(v))])));
};

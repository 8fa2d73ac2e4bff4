// What a memory gained and lost: lines first, then words within lines that were rewritten.

const MOST_CELLS = 4e6;
const ALIKE = 0.4; // below this share of common words a line was replaced, not rewritten
const words = (text) => text.match(/[ \t\n\r]+|[^ \t\n\r]+/g) || [];
const lines = (text) => text.match(/[^\n]*\n|[^\n]+$/g) || [];

// Return [[kind, text], ...] with kind "same", "added" or "removed".
const diff = (before, after) => {
  const parts = [];
  let removed = "", added = "";
  const flush = () => {
    parts.push(...(removed && added ? rewritten(removed, added) : [["removed", [removed]], ["added", [added]]]));
    removed = added = "";
  };
  for (const [kind, tokens] of compare(lines(before), lines(after), (line) => line.trimEnd())) {
    if (kind === "removed") removed += tokens.join("");
    else if (kind === "added") added += tokens.join("");
    else { flush(); parts.push([kind, tokens]); }
  }
  flush();
  return join(parts);
};

const rewritten = (removed, added) => {
  const parts = compare(words(removed), words(added), (word) => word);
  const length = (tokens) => tokens.filter((token) => token.trim()).length;
  const same = parts.filter(([kind]) => kind === "same").reduce((sum, [, tokens]) => sum + length(tokens), 0);
  const most = Math.min(length(words(removed)), length(words(added)));
  return same < ALIKE * most ? [["removed", [removed]], ["added", [added]]] : parts;
};

// The longest common subsequence of two lists, by `key`; of what is the same, the later text counts.
const compare = (a, b, key) => {
  const x = a.map(key), y = b.map(key);
  let head = 0, tail = 0;
  while (head < x.length && head < y.length && x[head] === y[head]) head++;
  while (tail < x.length - head && tail < y.length - head && x[x.length - 1 - tail] === y[y.length - 1 - tail]) tail++;
  const [endA, endB] = [a.length - tail, b.length - tail];
  const parts = [["same", b.slice(0, head)]];
  let i = head, j = head;
  if (endA > head && endB > head && (endA - head) * (endB - head) <= MOST_CELLS) {
    const best = common(x.slice(head, endA), y.slice(head, endB)), width = endB - head + 1;
    const at = (p, q) => best[(p - head) * width + q - head];
    while (i < endA && j < endB) {
      if (x[i] === y[j]) { parts.push(["same", [b[j++]]]); i++; }
      else if (at(i + 1, j) >= at(i, j + 1)) parts.push(["removed", [a[i++]]]);
      else parts.push(["added", [b[j++]]]);
    }
  }
  parts.push(["removed", a.slice(i, endA)], ["added", b.slice(j, endB)], ["same", b.slice(endB)]);
  return parts;
};

// Lengths of the longest common subsequences of all ends of two lists, row by row.
const common = (x, y) => {
  const width = y.length + 1;
  const best = new Uint16Array((x.length + 1) * width);
  for (let i = x.length - 1; i >= 0; i--) {
    for (let j = y.length - 1; j >= 0; j--) {
      best[i * width + j] = x[i] === y[j]
        ? best[(i + 1) * width + j + 1] + 1
        : Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
    }
  }
  return best;
};

// Put neighbours of a kind together. White space between two changed words belongs to the change.
const join = (parts) => {
  const runs = [];
  let removed = "", added = "";
  const flush = () => {
    if (removed) runs.push(["removed", removed]);
    if (added) runs.push(["added", added]);
    removed = added = "";
  };
  parts = parts.filter(([, tokens]) => tokens.join("").length);
  parts.forEach(([kind, tokens], at) => {
    const text = tokens.join("");
    if (kind === "removed") removed += text;
    else if (kind === "added") added += text;
    else if ((removed || added) && !text.trim() && !text.includes("\n") && at + 1 < parts.length && parts[at + 1][0] !== "same") {
      if (removed) removed += text;
      if (added) added += text;
    } else {
      flush();
      if (runs.length && runs[runs.length - 1][0] === "same") runs[runs.length - 1][1] += text;
      else runs.push(["same", text]);
    }
  });
  flush();
  return runs;
};

// Undo `pack` of the Python side: what is kept of the memory before, and the text between.
const unpack = (before, [head, tail, between]) => before.slice(0, head) + between + (tail ? before.slice(-tail) : "");

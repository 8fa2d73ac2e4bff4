// The words that a memory gained and lost: a longest common subsequence of words and white space.

const MOST_CELLS = 4e6;
const words = (text) => text.match(/[ \t\n\r]+|[^ \t\n\r]+/g) || [];

// Return [[kind, text], ...] with kind "same", "added" or "removed".
const diff = (before, after) => {
  const a = words(before), b = words(after);
  let head = 0, tail = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const parts = [["same", a.slice(0, head)]];
  parts.push(...middle(a.slice(head, a.length - tail), b.slice(head, b.length - tail)));
  parts.push(["same", a.slice(a.length - tail)]);
  return join(parts);
};

const middle = (a, b) => {
  if (!a.length || !b.length || a.length * b.length > MOST_CELLS) return [["removed", a], ["added", b]];
  const width = b.length + 1;
  const best = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      best[i * width + j] = a[i] === b[j]
        ? best[(i + 1) * width + j + 1] + 1
        : Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
    }
  }
  const parts = [];
  let i = 0, j = 0;
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) { parts.push(["same", [a[i]]]); i++; j++; }
    else if (best[(i + 1) * width + j] >= best[i * width + j + 1]) parts.push(["removed", [a[i++]]]);
    else parts.push(["added", [b[j++]]]);
  }
  parts.push(["removed", a.slice(i)], ["added", b.slice(j)]);
  return parts;
};

// Put neighbours of a kind together. White space that two changed words share belongs to the change.
const join = (parts) => {
  const runs = [];
  let removed = "", added = "";
  const flush = () => {
    if (removed) runs.push(["removed", removed]);
    if (added) runs.push(["added", added]);
    removed = added = "";
  };
  parts = parts.filter(([, tokens]) => tokens.length);
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

// Two texts, line by line: what is in both, what went, what came.
export interface Line { kind: "same" | "gone" | "new"; text: string }

const LINES_MAX = 2000;

export function diff(before: string, after: string): Line[] {
  const a = before.split("\n").slice(0, LINES_MAX);
  const b = after.split("\n").slice(0, LINES_MAX);
  // The longest common subsequence, from the end.
  const long = a.map(() => new Uint16Array(b.length + 1));
  long.push(new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) for (let j = b.length - 1; j >= 0; j -= 1) long[i][j] = a[i] === b[j] ? long[i + 1][j + 1] + 1 : Math.max(long[i + 1][j], long[i][j + 1]);
  const lines: Line[] = [];
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      lines.push({ kind: "same", text: a[i++] });
      j += 1;
    } else if (i < a.length && (j >= b.length || long[i + 1][j] >= long[i][j + 1])) lines.push({ kind: "gone", text: a[i++] });
    else lines.push({ kind: "new", text: b[j++] });
  }
  return lines;
}

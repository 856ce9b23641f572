// Draws the last screen of a terminal program as SVG. Knows the few control sequences that `weir top` writes.

const CELL = { width: 8.43, height: 18 };
const MARGIN = 14;
const COLORS = { text: "#e3e7ea", faint: "#9ba5ae", alert: "#ff9270", ground: "#181c1f" };

/** Returns the screen before the program has ended: per row, pieces of text with their style. */
function lastScreen(written, { rows }) {
  const frames = written.split("\x1b[?1049l")[0].split("\x1b[H");
  const lines = frames.at(-1).split("\r\n").slice(0, rows);
  return lines.map((line) => {
    const pieces = [];
    let style = "";
    for (const part of line.split(/(\x1b\[[\d;?]*[A-Za-z])/)) {
      const code = /^\x1b\[([\d;]*)m$/.exec(part);
      if (code) style = code[1] === "0" ? "" : code[1];
      else if (part && !part.startsWith("\x1b")) pieces.push({ style, text: part });
    }
    return pieces;
  });
}

const escape = (text) => text.replace(/[&<>]/g, (letter) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[letter]);

function attributes(style) {
  if (style === "2") return ` fill="${COLORS.faint}"`;
  if (style === "1") return ' font-weight="700"';
  return style === "" ? "" : ` fill="${COLORS.alert}" font-weight="700"`;
}

export function toSvg(written, size) {
  const [width, height] = [size.columns * CELL.width + 2 * MARGIN, size.rows * CELL.height + 2 * MARGIN];
  const texts = lastScreen(written, size).flatMap((pieces, row) => {
    let column = 0;
    return pieces.flatMap(({ style, text }) => {
      const start = column;
      column += [...text].length;
      // Spaces in SVG collapse, so each run of words has its own place.
      return [...text.matchAll(/\S+(?: \S+)*/g)].map(({ 0: words, index }) => {
        const [x, y] = [MARGIN + (start + [...text.slice(0, index)].length) * CELL.width, MARGIN + (row + 0.75) * CELL.height];
        const place = `x="${x.toFixed(1)}" y="${y.toFixed(1)}" textLength="${([...words].length * CELL.width).toFixed(1)}"`;
        return `<text ${place}${attributes(style)}>${escape(words)}</text>`;
      });
    });
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width.toFixed(0)} ${height}" role="img" aria-label="weir top in a terminal" font-family="ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="14" fill="${COLORS.text}">
<rect width="100%" height="100%" rx="8" fill="${COLORS.ground}"/>
${texts.join("\n")}
</svg>
`;
}

// Rewrites a screenshot as a PNG with a palette of 256 colours, a third of the size. For 8-bit RGB or RGBA without
// interlacing, which is what Chromium writes.

import { crc32, deflateSync, inflateSync } from "node:zlib";

const SIGNATURE = Buffer.from([137, 80, 78, 71, 13, 10, 26, 10]);

function chunksOf(png) {
  const chunks = [];
  for (let at = SIGNATURE.length; at < png.length;) {
    const length = png.readUInt32BE(at);
    chunks.push({ type: png.toString("latin1", at + 4, at + 8), data: png.subarray(at + 8, at + 8 + length) });
    at += length + 12;
  }
  return chunks;
}

function paeth(left, above, corner) {
  const [a, b, c] = [Math.abs(above - corner), Math.abs(left - corner), Math.abs(left + above - 2 * corner)];
  if (a <= b && a <= c) return left;
  return b <= c ? above : corner;
}

/** Undoes the filters of the rows (PNG, section 9). */
function unfilter(data, { width, height, channels }) {
  const stride = width * channels;
  const pixels = Buffer.alloc(stride * height);
  for (let row = 0; row < height; row += 1) {
    const filter = data[row * (stride + 1)];
    for (let index = 0; index < stride; index += 1) {
      const at = row * stride + index;
      const left = index >= channels ? pixels[at - channels] : 0;
      const above = row > 0 ? pixels[at - stride] : 0;
      const corner = row > 0 && index >= channels ? pixels[at - stride - channels] : 0;
      const predicted = [0, left, above, (left + above) >> 1, paeth(left, above, corner)][filter];
      pixels[at] = data[row * (stride + 1) + 1 + index] + predicted;
    }
  }
  return pixels;
}

function distance(one, other) {
  const part = (shift) => ((one >> shift) & 255) - ((other >> shift) & 255);
  return part(16) ** 2 + part(8) ** 2 + part(0) ** 2;
}

/** Returns 256 colours, and the index of each colour: its own, or that of the nearest. */
function paletteOf(colors) {
  const counts = new Map();
  for (const color of colors) counts.set(color, (counts.get(color) ?? 0) + 1);
  const all = [...counts].sort(([, one], [, other]) => other - one).map(([color, count]) => ({ color, count, nearest: 0, error: Infinity }));
  const palette = [];
  const add = (color) => {
    for (const one of all) {
      const error = distance(one.color, color);
      if (error < one.error) Object.assign(one, { nearest: palette.length, error });
    }
    palette.push(color);
  };
  for (const { color } of all.slice(0, 64)) add(color);
  // The remaining places are for the colours that the others replace worst: few pixels of an own colour matter, too.
  const worst = () => all.reduce((most, one) => (one.count * one.error > most.count * most.error ? one : most));
  while (palette.length < Math.min(256, all.length)) add(worst().color);
  return { palette, indices: new Map(all.map(({ color, nearest }) => [color, nearest])) };
}

function chunk(type, data) {
  const body = Buffer.concat([Buffer.from(type, "latin1"), data]);
  const [length, sum] = [Buffer.alloc(4), Buffer.alloc(4)];
  length.writeUInt32BE(data.length);
  sum.writeUInt32BE(crc32(body));
  return Buffer.concat([length, body, sum]);
}

export function toPalettePng(png) {
  const chunks = chunksOf(png);
  const header = chunks[0].data;
  const [width, height, channels] = [header.readUInt32BE(0), header.readUInt32BE(4), header[9] === 6 ? 4 : 3];
  const data = inflateSync(Buffer.concat(chunks.filter(({ type }) => type === "IDAT").map((part) => part.data)));
  const pixels = unfilter(data, { width, height, channels });
  const colors = Uint32Array.from({ length: width * height }, (_, index) => pixels.readUIntBE(index * channels, 3));
  const { palette, indices } = paletteOf(colors);
  const rows = Buffer.alloc((width + 1) * height);
  colors.forEach((color, index) => { rows[Math.floor(index / width) + index + 1] = indices.get(color); });
  const head = Buffer.from(header);
  head[8] = 8;
  head[9] = 3;
  const table = Buffer.from(palette.flatMap((color) => [color >> 16, (color >> 8) & 255, color & 255]));
  return Buffer.concat([SIGNATURE, chunk("IHDR", head), chunk("PLTE", table), chunk("IDAT", deflateSync(rows, { level: 9 })), chunk("IEND", Buffer.alloc(0))]);
}

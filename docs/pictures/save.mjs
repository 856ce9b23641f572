// Writes pictures into this directory, none of them above the maximum size.

import { writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

import { toPalettePng } from "./png.mjs";

const HERE = fileURLToPath(new URL(".", import.meta.url));
const MAX_BYTES = 150 * 1000;

export async function save(name, content) {
  if (content.length > MAX_BYTES) throw new Error(`${name} has ${content.length} bytes, above ${MAX_BYTES}`);
  await writeFile(`${HERE}${name}`, content);
  console.log(`${name}: ${content.length} bytes`);
}

/** Saves a screenshot, with a palette. */
export function savePng(name, png) {
  return save(name, toPalettePng(png));
}

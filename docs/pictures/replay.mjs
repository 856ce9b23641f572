// Takes the pictures of docs/operations/replay.md: the report of `weir replay` for a generated day of access logs, with the
// rules in force and with tighter ones.
//
//     cargo build && tests/page/run --install && node docs/pictures/replay.mjs

import { execFile } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { promisify } from "node:util";

import { launch } from "../../tests/page/browser.mjs";
import { WEIR } from "../../tests/page/weir.mjs";
import { dayOfLog } from "./day.mjs";
import { savePng } from "./save.mjs";

const PROXY = `
listeners: 0.0.0.0:8080
upstream: 127.0.0.1:3000
client_ip: { trusted_proxies: [10.0.0.0/8] }
`;
const FILES = {
  "weir.yaml": `${PROXY}
rules:
  - { name: per-ip, key: [client_ip], limit: 60/min }
  - { name: login, match: { path: /login, method: POST }, key: [client_ip], limit: 10/min, on_limit: { ban: 10m } }
  - { name: search, match: { path: /search }, key: [client_ip], limit: 40/min, throttle: shadow }
  - { name: health, match: { path: /healthz }, action: allow }
`,
  "today.yaml": `${PROXY}
rules:
  - { name: per-ip, key: [client_ip], limit: 200/min }
  - { name: login, match: { path: /login, method: POST }, key: [client_ip], limit: 30/min }
  - { name: search, match: { path: /search }, key: [client_ip], limit: 30/min }
  - { name: health, match: { path: /healthz }, action: allow }
`,
};

/** Returns the report as the address of a page. */
async function report(directory) {
  for (const [name, text] of Object.entries({ ...FILES, "access.log": dayOfLog() })) await writeFile(join(directory, name), text);
  await promisify(execFile)(
    WEIR,
    ["replay", "-c", "weir.yaml", "--against", "today.yaml", "--html", "report.html", "access.log"],
    { cwd: directory, maxBuffer: 1 << 24 },
  );
  return pathToFileURL(join(directory, "report.html")).href;
}

/** Takes the picture of the elements from the first to the last, with a margin. */
async function shoot(page, first, last) {
  const [top, bottom] = [await page.locator(first).first().boundingBox(), await page.locator(last).last().boundingBox()];
  const width = page.viewportSize().width;
  const y = Math.max(0, top.y - 12);
  return page.screenshot({ fullPage: true, clip: { x: 0, y, width, height: bottom.y + bottom.height + 12 - y } });
}

const SHOTS = [
  { name: "replay-light.png", colorScheme: "light", first: "h1", last: 'section:has(h2:text-is("per-ip"))' },
  { name: "replay-dark.png", colorScheme: "dark", first: 'section:has(h2:text-is("login"))', last: 'section:has(h2:text-is("login"))' },
  { name: "replay-compare.png", colorScheme: "light", first: 'section:has(h2:text("Compared"))', last: 'section:has(h2:text("Compared"))' },
];

const directory = await mkdtemp(join(tmpdir(), "weir-replay-"));
const browser = await launch();
try {
  const address = await report(directory);
  for (const { name, colorScheme, first, last } of SHOTS) {
    const context = await browser.newContext({ viewport: { width: 1000, height: 800 }, colorScheme });
    const page = await context.newPage();
    await page.goto(address);
    await savePng(name, await shoot(page, first, last));
    await context.close();
  }
} finally {
  await browser.close();
  await rm(directory, { recursive: true, force: true });
}

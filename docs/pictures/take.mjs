// Takes the pictures of docs/operations/live-page.md: the page in both schemes and on a phone, and `weir top`.
//
//     cargo build && tests/page/run --install && node docs/pictures/take.mjs
//
// It starts the real binary with an upstream and clients, and waits until the plots have two minutes.

import { spawn } from "node:child_process";
import http from "node:http";
import { parseArgs } from "node:util";

import { launch, openPage, waitUntilLive } from "../../tests/page/browser.mjs";
import { Load, WEIR, Weir } from "../../tests/page/weir.mjs";
import { save, savePng } from "./save.mjs";
import { toSvg } from "./terminal.mjs";

const RULES = `
rules:
  - { name: health, match: { path: /healthz }, action: allow }
  - { name: per-ip, key: [client_ip], limit: 40/s, burst: 40 }
  - { name: login, match: { path: /login, method: GET }, key: [client_ip], limit: 10/min, on_limit: { ban: 1m } }
  - { name: per-key, match: { header: { x-api-key: "*" } }, key: [{ header: x-api-key }], limit: 30/s, throttle: elastic 3x }
  - { name: search, match: { path: /search }, key: [client_ip], limit: 8/s, burst: 8, throttle: delay 500ms }
  - { name: export-trial, match: { path: /export }, key: [client_ip], limit: 2/s, throttle: shadow }
`;

/** Rates in requests a second, most of them slowly changing. */
const wave = (base, range, period, phase = 0) => (seconds) => Math.max(0, base + range * Math.sin((seconds / period) * 2 * Math.PI + phase));
const FLOWS = [
  ...[7, 20, 33, 46, 59, 72].map((host, index) => ({ client: `203.0.113.${host}`, path: "/", rate: wave(18 - 2 * index, 5, 60 + 7 * index, index) })),
  { client: "198.51.100.23", path: "/", rate: wave(35, 55, 70) },
  { client: "198.51.100.77", path: "/login", rate: wave(0, 3, 40) },
  { client: "203.0.113.90", path: "/search", rate: wave(7, 5, 45) },
  { client: "203.0.113.91", path: "/export", rate: wave(3, 2, 50) },
  { client: "203.0.113.92", path: "/healthz", rate: 4 },
];

const { values: options } = parseArgs({ options: { seconds: { type: "string", default: "125" } } });

function startUpstream() {
  const server = http.createServer((request, response) => {
    const latency = 2 + Math.random() ** 4 * 60;
    setTimeout(() => response.end("ok\n"), latency);
  });
  return new Promise((resolve) => { server.listen(0, "127.0.0.1", () => resolve(server)); });
}

/** Opens the page, and takes its picture when the plots are full. */
async function takePage(browser, weir, name, options, prepare) {
  const { page, context } = await openPage(browser, weir, options);
  await waitUntilLive(page);
  return async () => {
    await prepare?.(page);
    // The address is another one in each picture.
    await page.evaluate(() => { document.getElementById("host").textContent = "127.0.0.1:9901"; });
    const png = await page.screenshot();
    await context.close();
    return { name, png };
  };
}

/** Runs `weir top` in a terminal of this size, and returns what it has written. */
function runTop(weir, { columns, rows, seconds }) {
  const command = `stty cols ${columns} rows ${rows}; exec ${WEIR} top --admin ${weir.admin}`;
  const terminal = spawn("script", ["-qec", command, "/dev/null"], { stdio: ["pipe", "pipe", "inherit"], env: { ...process.env, NO_COLOR: "" } });
  let written = "";
  terminal.stdout.setEncoding("utf8").on("data", (chunk) => { written += chunk; });
  setTimeout(() => terminal.stdin.write("q"), seconds * 1000);
  return new Promise((resolve) => { terminal.on("close", () => resolve(written)); });
}

const seconds = Number(options.seconds);
const upstream = await startUpstream();
const weir = await Weir.start(`
listeners: [{ name: inbound, address: "127.0.0.1:0" }]
admin: { address: "127.0.0.1:0" }
upstream: { address: "127.0.0.1:${upstream.address().port}" }
workers: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
${RULES}`);
const load = new Load(weir, FLOWS);
let browser;
try {
  browser = await launch();
  const desktop = { viewport: { width: 1200, height: 1080 } };
  const shots = await Promise.all([
    takePage(browser, weir, "page-light.png", { ...desktop, colorScheme: "light" }),
    takePage(browser, weir, "page-dark.png", { ...desktop, colorScheme: "dark" }),
    takePage(browser, weir, "page-phone.png", { viewport: { width: 360, height: 1000 }, colorScheme: "light" }),
    takePage(browser, weir, "page-ban.png", { viewport: { width: 1000, height: 620 }, colorScheme: "light" },
      (page) => page.getByRole("button", { name: /^Ban client_ip/ }).first().click()),
  ]);
  const size = { columns: 112, rows: 30 };
  const written = await runTop(weir, { ...size, seconds });
  const pictures = await Promise.all(shots.map((shoot) => shoot()));
  for (const { name, png } of pictures) await savePng(name, png);
  await save("top.svg", toSvg(written.replaceAll(weir.admin, "127.0.0.1:9901"), size));
} finally {
  load.stop();
  await browser?.close();
  await weir.stop();
  upstream.close();
}

// Draws the Grafana dashboards of deploy/grafana with data: the pictures of deploy/grafana/README.md and
// docs/operations/metrics.md.
//
//     apt-get install prometheus redis-server openssl
//     cargo build && tests/page/run --install && node docs/pictures/dashboards.mjs
//
// It starts Prometheus, Redis and three instances of Weir with traffic for three minutes. Then it runs the queries of each
// panel as Grafana would, and draws the results at the places of the panels. Grafana itself is not involved. Panels without
// data are listed on standard error.

import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";

import { launch } from "../../tests/page/browser.mjs";
import { evaluate } from "./dashboards/board.mjs";
import { Demo } from "./dashboards/demo.mjs";
import { pageOf } from "./dashboards/page.mjs";
import { Prometheus, SCRAPE_SECONDS } from "./dashboards/prometheus.mjs";
import { savePng } from "./save.mjs";

const DASHBOARDS = new URL("../../deploy/grafana/", import.meta.url);

/** Pictures, with the rows of the dashboard from `from` on and before `to`. */
const PICTURES = [
  { file: "weir-fleet.json", shots: [{ name: "grafana-fleet.png", to: "Counters" }, { name: "grafana-fleet-more.png", from: "Counters" }] },
  {
    file: "weir-instance.json",
    chosen: { instance: "weir-1" },
    shots: [{ name: "grafana-instance.png", to: "Counters" }, { name: "grafana-instance-more.png", from: "Counters" }],
  },
];

const { values: options } = parseArgs({ options: { seconds: { type: "string", default: "175" } } });

async function takeBoard(browser, prometheus, span, { file, chosen, shots }) {
  const board = JSON.parse(await readFile(new URL(file, DASHBOARDS)));
  const evaluated = await evaluate(board, prometheus, span, chosen);
  for (const title of evaluated.empty) console.error(`${file}: no data in "${title}"`);
  for (const { name, ...part } of shots) {
    const page = await browser.newPage({ viewport: { width: 1200, height: 800 }, colorScheme: "dark" });
    await page.setContent(pageOf(evaluated, part));
    await savePng(name, await page.screenshot({ fullPage: true }));
    await page.close();
  }
}

const directory = await mkdtemp(join(tmpdir(), "weir-dashboards-"));
const running = [];
try {
  const demo = await Demo.start(join(directory, "demo"));
  running.push(demo);
  const prometheus = await Prometheus.start(directory, "weir", demo.targets());
  running.push(prometheus);
  await demo.play(Number(options.seconds));
  const to = Math.floor(Date.now() / 1000) - 1;
  const span = { from: to - Number(options.seconds) + 5, to, step: SCRAPE_SECONDS };
  const browser = await launch();
  running.push({ stop: () => browser.close() });
  for (const picture of PICTURES) await takeBoard(browser, prometheus, span, picture);
} finally {
  for (const one of running.reverse()) await one.stop();
  await rm(directory, { recursive: true, force: true });
}

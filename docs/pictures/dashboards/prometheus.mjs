// A Prometheus of our own, on a free port and with its data in a temporary directory.

import { spawn } from "node:child_process";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";

import { until } from "../../../tests/page/weir.mjs";

export const SCRAPE_SECONDS = 1;

/** Returns the configuration that scrapes these instances, each `{ name, address }`. */
function configuration(job, instances) {
  const targets = instances.map(({ name, address }) => ({ targets: [address], labels: { instance: name } }));
  return JSON.stringify({
    global: { scrape_interval: `${SCRAPE_SECONDS}s`, scrape_timeout: `${SCRAPE_SECONDS}s` },
    scrape_configs: [{ job_name: job, static_configs: targets }],
  });
}

export class Prometheus {
  static async start(directory, job, instances) {
    const prometheus = new Prometheus();
    const file = join(directory, "prometheus.yaml");
    // YAML contains JSON.
    await writeFile(file, configuration(job, instances));
    const options = [`--config.file=${file}`, `--storage.tsdb.path=${join(directory, "prometheus")}`, "--web.listen-address=127.0.0.1:0"];
    prometheus.process = spawn("prometheus", options, { stdio: ["ignore", "ignore", "pipe"] });
    prometheus.exited = new Promise((resolve) => { prometheus.process.on("exit", resolve).on("error", resolve); });
    const log = [];
    createInterface({ input: prometheus.process.stderr }).on("line", (line) => log.push(line));
    prometheus.address = await until("address of Prometheus", () => {
      if (prometheus.process.exitCode !== null) throw new Error(`prometheus has exited: ${log.join("\n")}`);
      return log.map((line) => /msg="Listening on" address=(\S+)/.exec(line)?.[1]).find(Boolean);
    });
    await until("Prometheus to be ready", async () => (await fetch(`http://${prometheus.address}/-/ready`)).ok);
    return prometheus;
  }

  async api(path, parameters) {
    const response = await fetch(`http://${this.address}/api/v1/${path}?${new URLSearchParams(parameters)}`);
    const body = await response.json();
    if (body.status !== "success") throw new Error(`${path} ${JSON.stringify(parameters)}: ${body.error}`);
    return body.data;
  }

  /** Returns series as `{ labels, points }`, with points of seconds and numbers. */
  async range(query, { from, to, step }) {
    const { result } = await this.api("query_range", { query, start: from, end: to, step });
    return result.map(({ metric, values }) => ({ labels: metric, points: values.map(([time, value]) => [time, Number(value)]) }));
  }

  async instant(query, time) {
    const { result } = await this.api("query", { query, time });
    return result.map(({ metric, value }) => ({ labels: metric, value: Number(value[1]) }));
  }

  labelValues(label, match) {
    return this.api(`label/${label}/values`, { "match[]": match });
  }

  async stop() {
    this.process.kill("SIGKILL");
    await this.exited;
  }
}

// Weir as a child process, and requests to it: for the tests of the page and for the pictures of the documentation.

import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import http from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
export const WEIR = process.env.WEIR_BIN ?? join(ROOT, "target/debug/weir");

/** Waits until `attempt` returns something other than false, null or undefined. */
export async function until(what, attempt, seconds = 20) {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    const value = await attempt();
    if (value !== false && value !== null && value !== undefined) return value;
    if (Date.now() > end) throw new Error(`no ${what} within ${seconds} s`);
    await new Promise((resolve) => { setTimeout(resolve, 50); });
  }
}

/** A running proxy. */
export class Weir {
  /** Starts Weir and waits until it is ready. `context` is the test at whose end it stops. */
  static async start(yaml, context = undefined) {
    const weir = new Weir();
    context?.after(() => weir.stop());
    weir.directory = await mkdtemp(join(tmpdir(), "weir-page-"));
    weir.file = join(weir.directory, "weir.yaml");
    try {
      await weir.configure(yaml);
      await weir.run();
    } catch (error) {
      await weir.stop();
      throw error;
    }
    return weir;
  }

  async configure(yaml) {
    await writeFile(this.file, yaml);
  }

  async run() {
    if (!existsSync(WEIR)) throw new Error(`${WEIR} does not exist: run cargo build; WEIR_BIN names another place for it`);
    const log = [];
    this.log = log;
    this.process = spawn(WEIR, ["run", "-c", this.file, "--log-format", "json"], { stdio: ["ignore", "ignore", "pipe"] });
    const lines = createInterface({ input: this.process.stderr }).on("line", (line) => log.push(line));
    this.logged = new Promise((resolve) => { lines.on("close", resolve); });
    this.spawnError = undefined;
    this.exited = new Promise((resolve) => {
      this.process.on("exit", resolve);
      this.process.on("error", (error) => { this.spawnError = error; resolve(); });
    });
    this.admin = await this.address("admin listening");
    this.proxy = await this.address("listening");
    // With a token, the endpoint needs it; the response shows that the process runs.
    await until("readiness", async () => [200, 401].includes((await this.get(this.admin, "/ready")).status));
  }

  async address(message) {
    const find = async () => {
      if (this.spawnError) throw new Error(`${WEIR} cannot be started: is it built?`, { cause: this.spawnError });
      if (this.process.exitCode !== null) {
        // The last lines may arrive after the exit.
        await this.logged;
        throw new Error(`weir has exited: ${this.log.join("\n")}`);
      }
      const records = this.log.filter((line) => line.startsWith("{")).map((line) => JSON.parse(line));
      const fields = records.map((record) => ({ ...record, ...record.fields }));
      return fields.find((record) => record.message === message)?.address;
    };
    return until(`line "${message}" in the log`, find);
  }

  /** Sends a request and returns its status and body. */
  get(address, path, { headers = {}, agent } = {}) {
    const [, host, port] = /^(.*):(\d+)$/.exec(address);
    return new Promise((resolve, reject) => {
      http.get({ host, port, path, headers, agent }, (response) => {
        let body = "";
        response.setEncoding("utf8").on("data", (chunk) => { body += chunk; });
        response.on("end", () => resolve({ status: response.statusCode, body }));
        response.on("error", reject);
      }).on("error", reject);
    });
  }

  /** Sends a request of a client, which a trusted proxy in front of Weir would forward. */
  request(client, path = "/", agent = undefined) {
    return this.get(this.proxy, path, { headers: { "x-forwarded-for": client }, agent });
  }

  /** Stops at once, as a crash would. */
  async kill() {
    this.process?.kill("SIGKILL");
    await this.exited;
  }

  async stop() {
    await this.kill();
    await rm(this.directory, { recursive: true, force: true });
  }
}

/** Requests at constant rates until it is stopped. */
export class Load {
  /** `flows` are `{ client, path, rate }`, with rates per second; a rate may be a function of the seconds passed. */
  constructor(weir, flows) {
    this.agent = new http.Agent({ keepAlive: true, maxSockets: 64 });
    const start = Date.now();
    const due = flows.map(() => 0);
    this.timer = setInterval(() => {
      const seconds = (Date.now() - start) / 1000;
      flows.forEach(({ client, path, rate }, index) => {
        due[index] += (typeof rate === "function" ? rate(seconds) : rate) / 20;
        for (; due[index] >= 1; due[index] -= 1) weir.request(client, path, this.agent).catch(() => {});
      });
    }, 50);
  }

  stop() {
    clearInterval(this.timer);
    this.agent.destroy();
  }
}

// Three instances of Weir with traffic, for the pictures of the dashboards. Something happens to them on the way: a
// rollout of a configuration, an invalid one, an endpoint that fails, and an upstream that becomes slow.

import { execFile, spawn } from "node:child_process";
import { mkdir } from "node:fs/promises";
import http from "node:http";
import https from "node:https";
import net from "node:net";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { Load, until, Weir } from "../../../tests/page/weir.mjs";

const COUNTRIES = fileURLToPath(new URL("../../../tests/data/country.mmdb", import.meta.url));
export const NAMES = ["weir-0", "weir-1", "weir-2"];

const RULES = `
rules:
  - { name: health, match: { path: /healthz }, action: allow }
  - { name: per-ip, key: [client_ip], limit: 20/s, burst: 20 }
  - { name: daily, key: [client_ip], limit: 5000/d }
  - { name: login, match: { path: /login }, key: [client_ip], limit: 10/min, on_limit: { ban: 1m } }
  - { name: admin, match: { path: /admin/* }, action: deny }
  - { name: api, match: { path: /api/* }, key: [client_ip], limit: 12/s, scope: shared }
  - { name: items, match: { path: /items }, key: [client_ip], limit: 3/s, throttle: elastic 3x }
  - { name: search, match: { path: /search }, key: [client_ip], limit: 3/s, throttle: delay 500ms }
  - { name: partner, match: { path: /partner }, key: [client_ip], limit: 4/s, throttle: soft 50% }
  - { name: export-trial, match: { path: /export }, key: [client_ip], limit: 1/s, throttle: shadow }
`;

function configuration({ name, directory, endpoints }) {
  return `
listeners:
  - { name: public, address: "127.0.0.1:0", tls: { certificate: ${directory}/tls.crt, key: ${directory}/tls.key } }
  - { name: mesh, address: "127.0.0.1:0" }
admin: { address: "127.0.0.1:0" }
upstream:
  name: shop
  address: [${endpoints.map((endpoint) => `"127.0.0.1:${endpoint.port}"`).join(", ")}]
  health_check: { path: /healthz, interval: 2s }
  outliers: { failures: 3, ejection: 5s }
  retries: { attempts: 2, retry_on: [connect_failure, reset] }
workers: 1
overload: { requests: 16 }
limiter: { max_keys: 10000 }
client_ip: { trusted_proxies: [127.0.0.0/8] }
geo: { database: ${COUNTRIES} }
elastic: { signals: [in_flight, latency, failures] }
store: { redis: "redis+unix://${directory}/redis.sock", instance: ${name} }
${RULES}`;
}

/** Rates in requests a second that slowly change, never below 0. */
const wave = (base, range, period, phase = 0) => (seconds) => Math.max(0, base + range * Math.sin((seconds / period) * 2 * Math.PI + phase));
const anyVisitor = () => `${["192.0.2", "198.51.100", "203.0.113"][Math.floor(Math.random() * 3)]}.${Math.floor(Math.random() * 256)}`;
const FLOWS = [
  ...["192.0.2.7", "192.0.2.20", "192.0.2.150", "198.51.100.33", "203.0.113.46", "203.0.113.59"]
    .map((client, index) => ({ client, path: "/", rate: wave(9 - index, 3, 60 + 9 * index, index) })),
  { client: "198.51.100.23", path: "/", rate: wave(40, 70, 80) },
  { client: "203.0.113.80", path: "/", rate: wave(25, 60, 110, 3) },
  { client: "198.51.100.150", path: "/login", rate: wave(0, 4, 50) },
  { client: "192.0.2.200", path: "/admin/users", rate: wave(0, 2, 70, 2) },
  { client: "192.0.2.30", path: "/api/orders", rate: wave(12, 6, 70) },
  { client: "203.0.113.31", path: "/api/orders", rate: wave(9, 5, 55, 2) },
  { client: "192.0.2.33", path: "/items", rate: wave(16, 10, 120, 1) },
  { client: "203.0.113.90", path: "/search", rate: wave(9, 4, 45) },
  { client: "192.0.2.91", path: "/partner", rate: wave(13, 4, 65, 1) },
  { client: "203.0.113.91", path: "/export", rate: wave(4, 3, 50) },
  { client: anyVisitor, path: "/", rate: wave(30, 18, 150, 4) },
  { client: "127.0.0.1", path: "/healthz", rate: 3 },
];

/** An endpoint of the upstream. */
class Endpoint {
  static async start() {
    const endpoint = new Endpoint();
    endpoint.slowness = 0;
    await endpoint.listen(0);
    endpoint.port = endpoint.server.address().port;
    return endpoint;
  }

  listen(port) {
    this.server = http.createServer((request, response) => {
      const latency = request.url === "/healthz" ? 0 : 3 + Math.random() ** 4 * 40 + this.slowness * (0.5 + Math.random());
      setTimeout(() => response.end("ok\n"), latency);
    });
    return new Promise((resolve, reject) => { this.server.on("error", reject).listen(port, "127.0.0.1", resolve); });
  }

  close() {
    this.server.close();
    this.server.closeAllConnections();
  }
}

/** Requests to all instances, over TLS and without, the first of them with a larger share. */
class Clients {
  constructor(addresses) {
    this.addresses = addresses;
    this.agents = { "http:": new http.Agent({ keepAlive: true, maxSockets: 64 }), "https:": new https.Agent({ rejectUnauthorized: false }) };
    this.sent = 0;
    this.load = new Load(this, FLOWS);
    this.timer = setInterval(() => this.misbehave(), 700);
  }

  request(client, path) {
    this.sent += 1;
    const { mesh, tls } = this.addresses[[0, 1, 2, 0, 1, 0][this.sent % 6]];
    const [module, address] = this.sent % 23 === 0 ? [https, `https://${tls}`] : [http, `http://${mesh}`];
    const agent = this.agents[new URL(address).protocol];
    const headers = { "x-forwarded-for": typeof client === "function" ? client() : client };
    return new Promise((resolve, reject) => {
      module.get(address + path, { agent, headers }, (response) => response.resume().on("end", resolve)).on("error", reject);
    });
  }

  /** Sends a malformed request, and one whose client disconnects before the response. */
  misbehave() {
    const { mesh } = this.addresses[Math.floor(Math.random() * 3)];
    const [host, port] = mesh.split(":");
    const malformed = net.connect(port, host, () => malformed.end("GET / HTTP/1.1\r\nno header\r\n\r\n")).on("error", () => {});
    malformed.resume();
    const aborted = net.connect(port, host, () => {
      aborted.write("GET / HTTP/1.1\r\nhost: shop\r\n\r\n");
      setTimeout(() => aborted.destroy(), 2);
    }).on("error", () => {});
  }

  stop() {
    clearInterval(this.timer);
    this.load.stop();
    for (const agent of Object.values(this.agents)) agent.destroy();
  }
}

/** Returns the address that an instance has logged for a listener. */
function listenerOf(weir, name) {
  const records = weir.log.filter((line) => line.startsWith("{")).map((line) => JSON.parse(line));
  const found = records.map((record) => ({ ...record, ...record.fields })).find(({ message, listener }) => message === "listening" && listener === name);
  return found.address;
}

export class Demo {
  static async start(directory) {
    const demo = new Demo();
    demo.directory = directory;
    try {
      await demo.run();
    } catch (error) {
      await demo.stop();
      throw error;
    }
    return demo;
  }

  async run() {
    const { directory } = this;
    await mkdir(directory, { recursive: true });
    const subject = ["-subj", "/CN=shop.example.com", "-days", "75", "-keyout", join(directory, "tls.key"), "-out", join(directory, "tls.crt")];
    await promisify(execFile)("openssl", ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", ...subject]);
    const socket = join(directory, "redis.sock");
    this.redis = spawn("redis-server", ["--port", "0", "--unixsocket", socket, "--save", "", "--dir", directory], { stdio: "ignore" });
    await until("Redis", () => new Promise((resolve) => { net.connect(socket, () => resolve(true)).on("error", () => resolve(false)); }));
    this.endpoints = await Promise.all([Endpoint.start(), Endpoint.start()]);
    this.texts = NAMES.map((name) => configuration({ name, directory, endpoints: this.endpoints }));
    this.instances = await Promise.all(this.texts.map((text) => Weir.start(text)));
    this.clients = new Clients(this.instances.map((weir) => ({ mesh: listenerOf(weir, "mesh"), tls: listenerOf(weir, "public") })));
  }

  targets() {
    return this.instances.map((weir, index) => ({ name: NAMES[index], address: weir.admin }));
  }

  /** Applies a change of the rules to one instance. */
  change(index, from, to) {
    return this.instances[index].configure(this.texts[index].replace(from, to));
  }

  /** What happens: seconds from the beginning, and what to do. */
  events() {
    const [first, second] = this.endpoints;
    const raised = ["limit: 20/s, burst: 20", "limit: 25/s, burst: 25"];
    return [
      ...NAMES.map((_, index) => [40 + 4 * index, () => this.change(index, ...raised)]),
      [70, () => this.change(1, "limit: 20/s", "limit: 20/fortnight")],
      [78, () => this.change(1, ...raised)],
      [95, () => second.close()],
      [112, () => second.listen(second.port)],
      [135, () => { first.slowness = second.slowness = 400; }],
      [147, () => { first.slowness = second.slowness = 0; }],
    ];
  }

  /** Lets time pass, with events. */
  async play(seconds) {
    const timers = this.events().map(([at, event]) => setTimeout(event, at * 1000));
    await new Promise((resolve) => { setTimeout(resolve, seconds * 1000); });
    timers.forEach(clearTimeout);
  }

  async stop() {
    this.clients?.stop();
    for (const weir of this.instances ?? []) await weir.stop();
    for (const endpoint of this.endpoints ?? []) endpoint.close();
    this.redis?.kill("SIGKILL");
  }
}

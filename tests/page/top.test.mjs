// `weir top` in a terminal, which `script` provides.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { after, before, test } from "node:test";

import { Load, WEIR, Weir, until } from "./weir.mjs";

const CONFIG = `
listeners: [{ name: inbound, address: "127.0.0.1:0" }]
admin: { address: "127.0.0.1:0" }
upstream: echo
workers: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
rules:
  - { name: per-ip, key: [client_ip], limit: 10/s, burst: 10 }
`;
const [ENTER, LEAVE] = ["\x1b[?1049h", "\x1b[?1049l"];

let weir;
let load;

before(async () => {
  weir = await Weir.start(CONFIG);
  load = new Load(weir, [{ client: "203.0.113.7", path: "/", rate: 30 }]);
});

after(async () => {
  load?.stop();
  await weir?.stop();
});

/** `weir top` in a terminal, by default of 100 columns and 20 rows; the settings of the terminal are printed behind it. */
class Terminal {
  constructor(context, address, environment = {}, [columns, rows] = [100, 20]) {
    const command = `stty cols ${columns} rows ${rows}; stty -g; ${WEIR} top --admin ${address}; echo "exit $?"; stty -g`;
    const env = { ...process.env, NO_COLOR: "", ...environment };
    this.process = spawn("script", ["-qec", command, "/dev/null"], { stdio: ["pipe", "pipe", "inherit"], env });
    this.written = "";
    this.process.stdout.setEncoding("utf8").on("data", (chunk) => { this.written += chunk; });
    context.after(() => this.process.kill());
    this.closed = new Promise((resolve) => { this.process.on("close", resolve); });
  }

  screen() {
    return this.written.split("\x1b[H").at(-1).replaceAll(/\x1b\[[\d;?]*[A-Za-z]/g, "");
  }

  async quit(key) {
    this.process.stdin.write(key);
    await this.closed;
    const [before, ...rest] = this.written.split(ENTER);
    const behind = rest.join("").split(LEAVE).at(-1);
    assert.match(behind, /exit 0/);
    assert.equal(behind.trim().split("\n").at(-1).trim(), before.trim().split("\n").at(-1).trim(), "settings of the terminal");
  }
}

for (const [name, key] of [["q", "q"], ["Ctrl-C", "\x03"]]) {
  test(`top shows rules and keys until ${name}, and restores the terminal`, async (run) => {
    const terminal = new Terminal(run, weir.admin);
    await until("rejections on the screen", () => /per-ip +10\/s +\d+ +[1-9]\d* +\d/.test(terminal.screen()));
    await until("the key", () => /client_ip=203\.0\.113\.7 +per-ip/.test(terminal.screen()));
    assert.equal(terminal.screen().split("\r\n").length, 20);
    assert.ok(terminal.written.includes("\x1b[1;31m"), "rejections have a colour");
    await terminal.quit(key);
  });
}

test("80 columns and 24 rows show rejections, limits and keys", async (run) => {
  const long = CONFIG.replace("name: per-ip", "name: requests-of-each-client-address").replace("limit: 10/s, burst: 10 }",
    `limits: [1/s, 1000/h], throttle: shadow }
  - { name: twice, key: [client_ip], limit: 1/s, burst: 1 }
  - { name: jobs, in_flight: 5 }`);
  const own = await Weir.start(long, run);
  const busy = new Load(own, [{ client: "2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff", path: "/", rate: 30 }]);
  run.after(() => busy.stop());
  const terminal = new Terminal(run, own.admin, { NO_COLOR: "1" }, [80, 24]);
  const find = (pattern) => terminal.screen().split(/\r*\n/).find((line) => pattern.test(line));
  await until("rejections", () => /^twice .* [1-9]\d* +\d+$/.test(find(/^twice /) ?? "") || null);
  for (const title of ["RULE", "LIMIT", "ALLOWED/s", "SHADOW/s", "REJECTED/s", "KEYS"]) assert.ok(find(/^RULE/).includes(title), title);
  assert.ok(!find(/^RULE/).includes("DELAYED/s"), "a column without a number");
  assert.ok(find(/^jobs /).includes("5 in flight"));
  assert.match(find(/^HEAVIEST KEY/), /REJECTED$/);
  assert.ok(terminal.screen().split(/\r*\n/).every((line) => line.trimEnd().length <= 80));
  await terminal.quit("q");
});

test("NO_COLOR switches colours off", async (run) => {
  const terminal = new Terminal(run, weir.admin, { NO_COLOR: "1" });
  await until("the rule", () => terminal.screen().includes("per-ip"));
  assert.doesNotMatch(terminal.written, /\x1b\[[\d;]*m/);
  await terminal.quit("q");
});

test("top shows a lost connection and connects again", async (run) => {
  const own = await Weir.start(CONFIG, run);
  const terminal = new Terminal(run, own.admin);
  await until("the rule", () => terminal.screen().includes("per-ip"));
  await own.kill();
  await until("the error", () => /error: data is \d+ s old, reconnecting: cannot reach/.test(terminal.screen()));
  await own.configure(CONFIG.replace('admin: { address: "127.0.0.1:0" }', `admin: { address: "${own.admin}" }`));
  await own.run();
  await until("the connection", () => !terminal.screen().includes("error: ") && terminal.screen().includes("per-ip"));
  await terminal.quit("q");
});

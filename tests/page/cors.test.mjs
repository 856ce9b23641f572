// Rejections in a browser: a page of another origin reads status, headers and body of a local reply.

import assert from "node:assert/strict";
import http from "node:http";
import { after, before, test } from "node:test";

import { launch } from "./browser.mjs";
import { Weir } from "./weir.mjs";

let browser;
let pages;
let origin;

before(async () => {
  browser = await launch();
  pages = http.createServer((request, response) => response.setHeader("content-type", "text/html").end("<title>app</title>"));
  await new Promise((resolve) => { pages.listen(0, "127.0.0.1", resolve); });
  origin = `http://127.0.0.1:${pages.address().port}`;
});

after(async () => {
  await browser?.close();
  pages?.close();
});

const config = (rules) => `
listeners: [{ name: inbound, address: "127.0.0.1:0" }]
admin: { address: "127.0.0.1:0" }
upstream: echo
workers: 1
rules:
${rules}
`;

/** Calls `fetch` in a page of another origin and returns what its script can read. */
async function readFrom(pageOrigin, url, options = {}) {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.goto(pageOrigin);
  const result = await page.evaluate(async ([target, init]) => {
    try {
      const response = await fetch(target, init);
      return { status: response.status, headers: Object.fromEntries(response.headers), body: await response.text() };
    } catch (error) {
      return { error: String(error) };
    }
  }, [url, options]);
  await context.close();
  return result;
}

test("page reads a 429 with its retry-after and limit headers", async (context) => {
  const rule = `  - { name: a, key: [], limit: 1/d, on_limit: { cors: { origins: "${origin}" }, body: { json: { rule: "{rule}" } } } }`;
  const weir = await Weir.start(config(rule), context);
  await weir.get(weir.proxy, "/");
  const seen = await readFrom(origin, `http://${weir.proxy}/`);
  assert.equal(seen.status, 429);
  assert.ok(Number(seen.headers["retry-after"]) > 0, JSON.stringify(seen));
  assert.equal(seen.headers["x-ratelimit-remaining"], "0");
  assert.deepEqual(JSON.parse(seen.body), { rule: "a" });
});

test("page reads the rejection of a request whose preflight is rejected", async (context) => {
  const rule = `  - { name: a, key: [], limit: 1/d, on_limit: { cors: { origins: "${origin}", credentials: true } } }`;
  const weir = await Weir.start(config(rule), context);
  await weir.get(weir.proxy, "/");
  const init = { method: "PUT", credentials: "include", headers: { "x-key": "1", "content-type": "application/json" }, body: "{}" };
  const seen = await readFrom(origin, `http://${weir.proxy}/`, init);
  assert.equal(seen.status, 429, JSON.stringify(seen));
  assert.ok(Number(seen.headers["retry-after"]) > 0);
});

test("page reads a configured denial", async (context) => {
  const rule = `  - { name: a, match: { path: /* }, action: deny, on_limit: { status: 503, headers: { retry-after: "600" }, body: { text: "{origin}" }, cors: { origins: "*" } } }`;
  const weir = await Weir.start(config(rule), context);
  const seen = await readFrom(origin, `http://${weir.proxy}/`, { headers: { "x-key": "1" } });
  assert.equal(seen.status, 503, JSON.stringify(seen));
  assert.equal(seen.headers["retry-after"], "600");
  assert.equal(seen.body, origin);
});

test("page of another origin reads nothing", async (context) => {
  const rule = `  - { name: a, match: { path: /* }, action: deny, on_limit: { cors: { origins: https://app.example } } }`;
  const weir = await Weir.start(config(rule), context);
  const seen = await readFrom(origin, `http://${weir.proxy}/`);
  assert.match(seen.error, /Failed to fetch/);
});

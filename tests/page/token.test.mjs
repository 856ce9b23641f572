// The live page of an admin port that requires a token, in headless Chromium.

import assert from "node:assert/strict";
import http from "node:http";
import { after, before, test } from "node:test";

import { launch, openPage, waitUntilLive } from "./browser.mjs";
import { Load, Weir, until } from "./weir.mjs";

const TOKEN = "token-of-sixteen-and-more";
const CLIENT = "203.0.113.7";
const CONFIG = `
listeners: [{ name: inbound, address: "127.0.0.1:0" }]
admin: { address: "127.0.0.1:0", token: "${TOKEN}" }
upstream: echo
workers: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
rules:
  - { name: secret-rule, key: [client_ip], limit: 10/s, burst: 10 }
`;

let browser;
let weir;
let load;

before(async () => {
  browser = await launch();
  weir = await Weir.start(CONFIG);
  load = new Load(weir, [{ client: CLIENT, path: "/", rate: 30 }]);
});

after(async () => {
  load?.stop();
  await browser?.close();
  await weir?.stop();
});

async function enter(page, token) {
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Connect" }).click();
}

/** Returns the status and the values of `www-authenticate`. */
function challenges(path, headers = {}) {
  const [, host, port] = /^(.*):(\d+)$/.exec(weir.admin);
  return new Promise((resolve, reject) => {
    http.get({ host, port, path, headers }, (response) => {
      response.resume();
      const lines = response.rawHeaders.flatMap((name, index, all) =>
        (index % 2 === 0 && name.toLowerCase() === "www-authenticate" ? [all[index + 1]] : []));
      resolve({ status: response.statusCode, lines });
    }).on("error", reject);
  });
}

test("document is served without the token, has no data, and asks for the token", async () => {
  const { page, context } = await openPage(browser, weir);
  const response = await page.reload();
  assert.equal(response.status(), 200);
  assert.ok(!(await response.text()).includes("secret-rule"));
  await page.locator("#token").waitFor();
  assert.equal(await page.locator("#state").innerText(), "Token required");
  assert.equal(await page.locator("#content").isVisible(), false);
  assert.equal(await page.locator("#token-problem").isVisible(), false);
  assert.equal(await page.evaluate(() => document.activeElement.id), "token-value");
  assert.ok(!(await page.locator("body").innerText()).includes("secret-rule"));
  await context.close();
});

test("wrong tokens are named as such, the right one shows the stream, and no URL has it", async () => {
  const { page, context } = await openPage(browser, weir);
  const urls = [];
  page.on("request", (request) => urls.push(request.url()));
  for (const wrong of ["not-the-token-of-this-port", "schlüssel-mit-umlaut", "two words in the field"]) {
    await enter(page, wrong);
    await page.locator("#token-problem:not(:empty)").waitFor();
    assert.match(await page.locator("#token-problem").innerText(), /not accepted|no token/, wrong);
    assert.equal(await page.locator("#state").innerText(), "Token not accepted");
    assert.equal(await page.evaluate(() => sessionStorage.length), 0, wrong);
  }
  await enter(page, ` ${TOKEN} `);
  await waitUntilLive(page);
  await page.locator("#rule-rows tr.rule", { hasText: "secret-rule" }).locator(".c-number.hot").waitFor();
  assert.equal(await page.locator("#token").isVisible(), false);
  await page.reload();
  await waitUntilLive(page);
  assert.equal(await page.evaluate(() => localStorage.length + document.cookie.length), 0);
  assert.ok(urls.length > 3 && urls.every((url) => !url.includes(TOKEN)), `${urls}`);
  await context.close();
});

test("commands and other endpoints work with the token, and logging out removes token and data", async () => {
  const { page, context } = await openPage(browser, weir);
  await enter(page, TOKEN);
  await waitUntilLive(page);
  await page.getByRole("button", { name: `Ban client_ip=${CLIENT} of rule secret-rule` }).first().click();
  await page.getByRole("dialog").getByRole("button", { name: "Ban" }).click();
  await page.locator("#result", { hasText: `Banned client_ip=${CLIENT}` }).waitFor();
  assert.equal((await weir.request(CLIENT)).status, 429);
  await page.getByRole("link", { name: "/limits", exact: true }).click();
  const viewer = page.getByRole("dialog", { name: "/limits" });
  await until("rules in the dialog", async () => (await viewer.innerText()).includes('"secret-rule"') || null);
  await viewer.getByRole("button", { name: "Close" }).click();
  await page.getByRole("button", { name: "Log out" }).click();
  await page.locator("#token").waitFor();
  assert.equal(await page.locator("#state").innerText(), "Token required");
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
  assert.ok(!(await page.locator("body").evaluate((body) => body.textContent)).includes("client_ip="));
  await context.close();
});

test("token that is replaced by a reload is asked for again", async (run) => {
  const own = await Weir.start(CONFIG, run);
  const { page, context } = await openPage(browser, own);
  await enter(page, TOKEN);
  await waitUntilLive(page);
  await own.kill();
  await own.configure(CONFIG.replace("127.0.0.1:0\", token", `${own.admin}", token`).replace(TOKEN, "another-token-than-before"));
  await own.run();
  await page.locator("#token-problem", { hasText: "not accepted" }).waitFor();
  assert.equal(await page.locator("#content").isVisible(), false);
  await context.close();
});

test("challenges have a line each, and browsers can answer that for Basic", async () => {
  const all = await challenges("/limits");
  assert.deepEqual([all.status, all.lines], [401, ['Bearer realm="weir"', 'Basic realm="weir", charset="UTF-8"']]);
  const ofPage = await challenges("/events", { "x-weir-admin": "1" });
  assert.deepEqual([ofPage.status, ofPage.lines], [401, ['Bearer realm="weir"']]);
  const context = await browser.newContext({ httpCredentials: { username: "operator", password: TOKEN } });
  const page = await context.newPage();
  const response = await page.goto(`http://${weir.admin}/limits`);
  assert.equal(response.status(), 200);
  assert.ok((await response.text()).includes("secret-rule"));
  await context.close();
});

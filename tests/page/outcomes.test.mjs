// What the live page says about requests that several rules reject, about notices, and about the time before it was
// opened, in headless Chromium.

import assert from "node:assert/strict";
import net from "node:net";
import { after, before, test } from "node:test";

import { launch, openPage, waitUntilLive } from "./browser.mjs";
import { Load, Weir, until } from "./weir.mjs";

const CONFIG = `
listeners: [{ name: inbound, address: "127.0.0.1:0" }]
admin: { address: "127.0.0.1:0" }
upstream: echo
workers: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
rules:
  - { name: per-ip, key: [client_ip], limit: 1/s, burst: 1 }
  - { name: per-path, key: [path], limit: 1/s, burst: 1 }
  - { name: jobs, match: { path: /jobs }, in_flight: 50 }
`;

let browser;
let weir;
let load;

before(async () => {
  browser = await launch();
  weir = await Weir.start(CONFIG);
  load = new Load(weir, [{ client: "203.0.113.7", path: "/", rate: 30 }]);
});

after(async () => {
  load?.stop();
  await browser?.close();
  await weir?.stop();
});

/** Returns the figures above the plots, by name. */
async function figures(page) {
  const entries = await page.locator("#figures > div").evaluateAll((all) =>
    all.map((one) => [one.querySelector("dt").textContent, one.querySelector("dd").textContent]));
  return Object.fromEntries(entries);
}

test("requests that two rules reject are rejected once", async () => {
  const { page, context, faults } = await openPage(browser, weir);
  await waitUntilLive(page);
  const shown = await until("rates", async () => {
    const { "requests/s": requests, "rejected/s": rejected } = await figures(page);
    return Number(rejected) > 10 ? { requests: Number(requests), rejected: Number(rejected) } : null;
  });
  assert.ok(shown.rejected <= shown.requests * 1.1, JSON.stringify(shown));
  const label = () => page.locator("#overview-plot svg").getAttribute("aria-label");
  await until("allowed requests", async () => /allowed (0\.[1-9]|[1-9])/.test(await label()) || null);
  const rates = await page.locator("#rule-rows tr.rule .c-number.hot").allInnerTexts();
  assert.equal(rates.length, 2, "each rule has its own rejections");
  const headings = await page.locator("#rule-head th").allInnerTexts();
  assert.deepEqual(headings.slice(2, 6), ["Allowed/s", "Delayed/s", "Shadow/s", "Rejected/s"]);
  assert.match(await page.locator("#rule-rows tr.rule", { hasText: "jobs" }).innerText(), /50 in flight/);
  assert.deepEqual(faults, []);
  await context.close();
});

test("plots have the time before the page was opened", async () => {
  await until("samples of some seconds", async () => {
    const seconds = Number(JSON.parse((await weir.get(weir.admin, "/events?once")).body).uptime_seconds);
    return seconds > 8 || null;
  });
  const { page, context } = await openPage(browser, weir);
  await waitUntilLive(page);
  const width = await until("a plot", () => page.locator("#overview-plot path.rejected").evaluate((path) =>
    (path.getAttribute("d") ? path.getBBox().width : null)));
  assert.ok(width >= 5, `${width} s`);
  const ofRule = await page.locator("#rule-rows tr.rule", { hasText: "per-ip" }).locator("path.rejected").evaluate((path) => path.getBBox().width);
  assert.ok(ofRule >= 5, `${ofRule} s`);
  await context.close();
});

test("upstream that refuses every connection has a notice", async (run) => {
  const reserved = net.createServer();
  await new Promise((resolve) => { reserved.listen(0, "127.0.0.1", resolve); });
  const { port } = reserved.address();
  await new Promise((resolve) => { reserved.close(resolve); });
  const own = await Weir.start(CONFIG.replace("upstream: echo", `upstream: "127.0.0.1:${port}"`), run);
  const failing = new Load(own, [{ client: "203.0.113.9", path: "/jobs", rate: 10 }]);
  run.after(() => failing.stop());
  const { page, context } = await openPage(browser, own);
  await waitUntilLive(page);
  await page.locator("#notices", { hasText: /Upstream upstream: \d+ of its last \d+ requests? got no response/ }).waitFor();
  await context.close();
});

/** Returns the elements that a viewport of this width cuts or lets overlap its edge. Runs in the page. */
function cutElements(page, width) {
  return page.evaluate((most) => {
    const found = [];
    for (const element of document.querySelectorAll("body *")) {
      if (!element.checkVisibility() || element.closest(".visually-hidden, .skip")) continue;
      const box = element.getBoundingClientRect();
      const name = `${element.tagName} ${element.className} "${element.textContent.trim().slice(0, 40)}"`;
      if (box.right > most + 0.5 || box.left < -0.5) found.push(`outside: ${name} ${box.left}–${box.right}`);
      const style = getComputedStyle(element);
      const clips = style.overflowX !== "visible" && element.tagName !== "svg" && element.tagName !== "INPUT";
      if (clips && element.scrollWidth > element.clientWidth + 1) found.push(`cut: ${name}`);
    }
    return found;
  }, width);
}

test("phone of 360 px cuts no element", async (run) => {
  const long = CONFIG.replace("name: per-ip", "name: requests-of-each-client-address-per-second")
    .replace("limit: 1/s, burst: 1 }", "limits: [10/s, 1000/h, 10000/d], throttle: { delay: 500ms, queue: 100 } }");
  const own = await Weir.start(long, run);
  const flows = [{ client: "2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff", path: "/a/long/path/of/some/file", rate: 30 }];
  const busy = new Load(own, flows);
  run.after(() => busy.stop());
  const { page, context } = await openPage(browser, own, { viewport: { width: 360, height: 740 } });
  await waitUntilLive(page);
  await page.locator("#limited tbody tr").first().waitFor();
  await page.getByRole("button", { name: /^Boost / }).first().click();
  await page.getByRole("dialog").getByRole("button", { name: "Boost" }).click();
  await page.locator("#overrides-panel tbody tr").first().waitFor();
  assert.deepEqual(await cutElements(page, 360), []);
  await page.locator("#numbers summary").click();
  for (const row of await page.locator(".rule-name").all()) {
    if ((await row.getAttribute("aria-expanded")) === "false") await row.click();
    assert.deepEqual(await cutElements(page, 360), []);
  }
  await page.getByRole("button", { name: /^Ban / }).first().click();
  assert.deepEqual(await cutElements(page, 360), []);
  await context.close();
});

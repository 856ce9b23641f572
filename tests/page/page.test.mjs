// The live page in headless Chromium, against the real binary.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { launch, lowContrast, namelessElements, openPage, waitUntilLive } from "./browser.mjs";
import { Load, Weir, until } from "./weir.mjs";

const CONFIG = `
listeners: [{ name: inbound, address: "127.0.0.1:0" }]
admin: { address: "127.0.0.1:0" }
upstream: echo
workers: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
rules:
  - { name: health, match: { path: /healthz }, action: allow }
  - { name: per-ip, key: [client_ip], limit: 10/s, burst: 10 }
  - { name: trial, match: { path: /trial }, key: [client_ip], limit: 1/s, burst: 1, throttle: shadow }
`;
const HEAVY = "203.0.113.7";
const FLOWS = [
  { client: HEAVY, path: "/", rate: 30 },
  { client: "198.51.100.4", path: "/", rate: 4 },
  { client: "198.51.100.5", path: "/trial", rate: 4 },
  { client: "198.51.100.6", path: "/healthz", rate: 2 },
];

let browser;
let weir;
let load;

before(async () => {
  browser = await launch();
  weir = await Weir.start(CONFIG);
  load = new Load(weir, FLOWS);
});

after(async () => {
  load?.stop();
  await browser?.close();
  await weir?.stop();
});

const pathOf = (page, selector) => page.locator(selector).first().getAttribute("d");

test("page loads without errors and its plots move under load", async () => {
  const { page, context, faults } = await openPage(browser, weir);
  await waitUntilLive(page);
  const rejected = "#overview-plot path.rejected";
  const first = await until("rejections in the plot", async () => (await pathOf(page, rejected)) || null);
  await until("a plot that moves", async () => (await pathOf(page, rejected)) !== first || null);
  await page.locator("#rule-rows tr.rule", { hasText: "per-ip" }).locator(".c-number.hot").waitFor();
  assert.match(await page.locator("#overview-plot svg").getAttribute("aria-label"), /^All requests, per second: allowed .*, rejected [1-9]/);
  assert.deepEqual(faults, []);
  await context.close();
});

test("limited key appears and is named in the table", async () => {
  const { page, context } = await openPage(browser, weir);
  await waitUntilLive(page);
  const row = page.locator("#limited tr", { hasText: `client_ip=${HEAVY}` }).first();
  await row.waitFor();
  const rejected = Number((await row.locator("td.hot").innerText()).replaceAll(",", ""));
  assert.ok(rejected > 0, `${rejected}`);
  assert.equal(await page.locator("#rule-rows tr.rule").count(), 3);
  await context.close();
});

test("ban button works with the keyboard alone", async () => {
  const client = "198.51.100.4";
  const { page, context, faults } = await openPage(browser, weir);
  await waitUntilLive(page);
  assert.equal((await weir.request(client)).status, 200);
  await page.getByRole("button", { name: `Ban client_ip=${client} of rule per-ip` }).first().waitFor();
  const focused = () => page.evaluate(() => document.activeElement.getAttribute("aria-label") ?? document.activeElement.textContent);
  let presses = 0;
  while (!(await focused()).startsWith(`Ban client_ip=${client} `)) {
    await page.keyboard.press("Tab");
    presses += 1;
    assert.ok(presses < 120, "the button is not reached");
  }
  await page.keyboard.press("Enter");
  const dialog = page.getByRole("dialog", { name: "Ban this key?" });
  await dialog.waitFor();
  assert.match(await dialog.innerText(), /per-ip/);
  while ((await focused()) !== "Ban") await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.locator("#result", { hasText: `Banned client_ip=${client} of rule per-ip for 10 minutes` }).waitFor();
  assert.match(await focused(), /^Ban client_ip/, "the focus returns to the button");
  assert.equal((await weir.request(client)).status, 429);
  await page.locator("#rule-rows .tag:visible", { hasText: "banned" }).first().waitFor();
  await page.getByRole("button", { name: `Lift client_ip=${client} of rule per-ip` }).first().click();
  await page.locator("#result", { hasText: "Lifted" }).waitFor();
  await until("admission after the ban", async () => (await weir.request(client)).status === 200);
  assert.deepEqual(faults, []);
  await context.close();
});

test("escape closes the dialog without a ban", async () => {
  const { page, context } = await openPage(browser, weir);
  await waitUntilLive(page);
  await page.getByRole("button", { name: /^Boost client_ip/ }).first().click();
  await page.getByRole("dialog", { name: "Boost this key?" }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "hidden" });
  assert.equal(await page.locator("#result").isVisible(), false);
  await context.close();
});

test("every control, table, plot and region has a name, and landmarks are complete", async () => {
  const { page, context } = await openPage(browser, weir);
  await waitUntilLive(page);
  await page.locator("#limited tbody tr").first().waitFor();
  const { count, nameless } = await namelessElements(page);
  assert.ok(count > 40, `only ${count} elements found`);
  assert.deepEqual(nameless, []);
  for (const landmark of ["banner", "main", "contentinfo", "navigation"]) {
    assert.equal(await page.getByRole(landmark).count(), 1, landmark);
  }
  assert.equal(await page.getByRole("heading", { level: 1 }).count(), 1);
  const levels = await page.locator("h1, h2, h3").evaluateAll((all) => all.filter((one) => one.checkVisibility()).map((one) => Number(one.tagName[1])));
  levels.reduce((before, level) => { assert.ok(level <= before + 1, `${levels}`); return level; });
  assert.equal(await page.locator("html").getAttribute("lang"), "en");
  await context.close();
});

for (const colorScheme of ["light", "dark"]) {
  test(`text has a contrast of at least 4.5 in the ${colorScheme} scheme`, async () => {
    const { page, context } = await openPage(browser, weir, { colorScheme });
    await waitUntilLive(page);
    await page.locator("#limited tbody tr").first().waitFor();
    const { checked, found } = await lowContrast(page);
    assert.ok(checked > 60, `only ${checked} texts found`);
    assert.deepEqual(found, []);
    await page.getByRole("button", { name: /^Ban client_ip/ }).first().click();
    assert.deepEqual((await lowContrast(page)).found, []);
    await context.close();
  });
}

test("phone of 360 px has no horizontal scrolling", async () => {
  const { page, context } = await openPage(browser, weir, { viewport: { width: 360, height: 740 } });
  await waitUntilLive(page);
  await page.locator("#limited tbody tr").first().waitFor();
  for (const open of [false, true]) {
    if (open) await page.locator(".rule-name").nth(2).click();
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(width <= 360, `${width} px`);
  }
  const targets = await page.locator("#limited button").evaluateAll((all) => all.map((one) => one.getBoundingClientRect().height));
  assert.ok(targets.every((height) => height >= 24), `${targets}`);
  await context.close();
});

test("reduced motion switches transitions off", async () => {
  const { page, context } = await openPage(browser, weir, { reducedMotion: "reduce" });
  await waitUntilLive(page);
  const duration = await page.locator(".rule-name .arrow").first().evaluate((one) => getComputedStyle(one).transitionDuration);
  assert.equal(duration, "0s");
  await context.close();
});

test("page cannot load or run anything else", async () => {
  const { page, context, faults } = await openPage(browser, weir);
  await waitUntilLive(page);
  const ran = await page.evaluate(() => {
    const script = document.createElement("script");
    try {
      script.textContent = "window.ran = true";
      document.body.append(script);
    } catch {
      // Trusted types reject the text itself.
    }
    return window.ran === true;
  });
  assert.equal(ran, false);
  assert.ok(faults.some((fault) => fault.includes("Content Security Policy") || fault.includes("TrustedScript")), `${faults}`);
  await context.close();
});

test("pause stops updates and announces its state", async () => {
  const { page, context } = await openPage(browser, weir);
  await waitUntilLive(page);
  const pause = page.getByRole("button", { name: "Pause" });
  await pause.click();
  assert.equal(await pause.getAttribute("aria-pressed"), "true");
  const uptime = () => page.locator("#process").innerText();
  const before = await uptime();
  const events = page.waitForTimeout(2500);
  await events;
  assert.equal(await uptime(), before);
  await pause.click();
  await until("updates after the pause", async () => (await uptime()) !== before || null);
  await context.close();
});

test("lost connection is shown with the age of the data, and the page connects again", async (run) => {
  const own = await Weir.start(CONFIG, run);
  const { page, context } = await openPage(browser, own);
  await waitUntilLive(page);
  await own.kill();
  await page.locator('.state[data-state="lost"]').waitFor();
  assert.match(await page.locator("#state").innerText(), /^Connection lost, data of \d\d:\d\d:\d\d/);
  await until("the age of the data", async () => /old, next attempt in/.test(await page.locator("#age").innerText()));
  await own.configure(CONFIG.replace('admin: { address: "127.0.0.1:0" }', `admin: { address: "${own.admin}" }`));
  await own.run();
  await page.getByRole("button", { name: "Reconnect now" }).click();
  await waitUntilLive(page);
  await context.close();
});

test("tokens are shown as tokens, beside what responses were charged", async (run) => {
  const tokens = `  - { name: tokens, key: [], limit: 100000/min, cost: { tokens: openai, estimate: 25 } }\n`;
  const own = await Weir.start(CONFIG.replace(/rules:[^]*/, `rules:\n${tokens}`), run);
  const { page, context, faults } = await openPage(browser, own);
  await waitUntilLive(page);
  const row = page.locator("#rule-rows tr.rule", { hasText: "tokens" });
  assert.equal(await row.locator(".terms").innerText(), "100000 tokens/min");
  // The upstream repeats the request, and states no tokens.
  for (let sent = 0; sent < 4; sent += 1) await own.request("198.51.100.4");
  const facts = page.locator("#rule-rows tr.detail .facts").first();
  if (!(await facts.isVisible())) await row.getByRole("button").click();
  await until("the charged tokens", async () => /Charged tokens\s+100 since start, [\d.]+\/s/.test(await facts.innerText()) || null);
  assert.match(await facts.innerText(), /Limit\s+100000 tokens\/min/);
  assert.deepEqual(faults, []);
  await context.close();
});

test("instance without rules says so", async (run) => {
  const own = await Weir.start(CONFIG.replace(/rules:[^]*/, "rules: []\n"), run);
  const { page, context, faults } = await openPage(browser, own);
  await waitUntilLive(page);
  await page.getByText("No rules: every request is forwarded.").waitFor();
  assert.deepEqual(faults, []);
  await context.close();
});

test("five hundred rules draw only what is visible, and the filter finds one", async (run) => {
  const rules = Array.from({ length: 500 }, (_, index) => `  - { name: tenant-${index}, match: { header: { x-tenant: "${index}" } }, key: [client_ip], limit: 5/s }`);
  const own = await Weir.start(CONFIG.replace(/rules:[^]*/, `rules:\n${rules.join("\n")}\n`), run);
  const { page, context, faults } = await openPage(browser, own);
  await waitUntilLive(page);
  await until("the number of rules", async () => (await page.locator("#rule-count").innerText()) === "500" || null);
  const rows = page.locator("#rule-rows tr.rule");
  assert.ok((await rows.count()) < 60, `${await rows.count()} rows`);
  await page.locator("#rule-scroll").evaluate((box) => { box.scrollTop = box.scrollHeight; });
  await page.locator("#rule-rows tr.rule", { hasText: "tenant-499" }).waitFor();
  assert.ok((await rows.count()) < 60, `${await rows.count()} rows`);
  await page.getByLabel("Filter").fill("tenant-42");
  await until("the filtered rules", async () => (await page.locator("#rule-count").innerText()) === "11 of 500" || null);
  assert.equal(await page.locator("#filter-result").innerText(), "11 of 500 rules");
  await page.locator("#rule-rows tr.rule", { hasText: "tenant-427" }).getByRole("button").click();
  await page.locator("#rule-rows tr.detail").waitFor();
  assert.deepEqual(faults, []);
  await context.close();
});

test("rejected reload is shown with its problems", async (run) => {
  const own = await Weir.start(CONFIG, run);
  const { page, context } = await openPage(browser, own);
  await waitUntilLive(page);
  await own.configure(CONFIG.replace("limit: 10/s", "limit: 10/fortnight"));
  await page.locator("#notices", { hasText: "fortnight" }).waitFor();
  await context.close();
});

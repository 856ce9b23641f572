// Chromium without a window, and what is checked of every page.

import { existsSync } from "node:fs";

// Scripts outside this directory import this module, too, and nothing has installed the driver for them.
const { chromium } = await import("playwright-core").catch((cause) => {
  throw new Error("playwright-core is not installed: run tests/page/run --install", { cause });
});

const PATHS = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
export const CHROMIUM = PATHS.find((path) => path && existsSync(path));

export function launch() {
  if (!CHROMIUM) throw new Error("Chromium is not installed; CHROMIUM names another place for it");
  // Its sandbox needs a user of its own; the only pages it opens are ours.
  return chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });
}

/** Opens the live page of an instance. `faults` collects console errors, exceptions and failed requests. */
export async function openPage(browser, weir, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  const faults = [];
  page.on("console", (message) => { if (["error", "warning"].includes(message.type())) faults.push(message.text()); });
  page.on("pageerror", (error) => faults.push(String(error.stack)));
  page.on("requestfailed", (request) => faults.push(`${request.url()}: ${request.failure().errorText}`));
  page.on("response", (response) => { if (response.status() >= 400) faults.push(`${response.url()}: ${response.status()}`); });
  await page.goto(`http://${weir.admin}/`);
  return { page, context, faults };
}

export async function waitUntilLive(page) {
  await page.locator('.state[data-state="live"]').waitFor();
  await page.locator("#content").waitFor();
}

/** Returns the elements that assistive technology presents without a name. */
export async function namelessElements(page) {
  const session = await page.context().newCDPSession(page);
  const { nodes } = await session.send("Accessibility.getFullAXTree");
  const roles = ["button", "link", "textbox", "searchbox", "combobox", "image", "img", "table", "dialog", "region", "heading", "columnheader", "rowheader"];
  const named = nodes.filter((node) => !node.ignored && roles.includes(node.role?.value));
  return { count: named.length, nameless: named.filter((node) => !node.name?.value?.trim()).map((node) => node.role.value) };
}

/** Returns the texts whose contrast to their background is below `min`. Runs in the page. */
export function lowContrast(page, min = 4.5) {
  return page.evaluate((least) => {
    const parse = (color) => {
      const numbers = color.match(/[\d.]+/g).map(Number);
      return { rgb: numbers.slice(0, 3), alpha: numbers[3] ?? 1 };
    };
    const over = (front, back) => front.rgb.map((value, index) => value * front.alpha + back[index] * (1 - front.alpha));
    const luminance = (rgb) => {
      const [red, green, blue] = rgb.map((value) => {
        const part = value / 255;
        return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
      });
      return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const backgroundOf = (element) => {
      const layers = [];
      for (let at = element; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
      return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
    };
    const found = [];
    let checked = 0;
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const element = walker.currentNode.parentElement;
      const text = walker.currentNode.data.trim();
      if (!text || !element.checkVisibility() || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(element.tagName)) continue;
      const background = backgroundOf(element);
      const [one, other] = [luminance(over(parse(getComputedStyle(element).color), background)), luminance(background)];
      const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
      checked += 1;
      if (ratio < least) found.push(`${text.slice(0, 40)}: ${ratio.toFixed(2)}`);
    }
    return { checked, found };
  }, min);
}

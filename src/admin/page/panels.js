// The panels around the table of rules.

class Overview {
  constructor() {
    this.plot = new Plot();
    byId("overview-plot").append(this.plot.element);
    this.figures = ["requests/s", "rejected/s", "delayed/s", "shadow/s", "5xx/s", "requests in flight"].map((name) => {
      const value = create("dd");
      byId("figures").append(create("div", {}, create("dt", {}, name), value));
      return value;
    });
  }

  update(snapshot, histories) {
    const now = Date.parse(snapshot.time) / 1000;
    this.plot.draw(histories.total, now, describeHistory("All requests", histories.total));
    const [, delayed, shadow, rejected] = histories.total.recent() ?? [null, null, null, null];
    const [requests, failed] = histories.classes.recent() ?? [null, null];
    [requests, rejected, delayed, shadow, failed].forEach((rate, index) => {
      setText(this.figures[index], formatRate(rate));
      this.figures[index].classList.toggle("hot", [1, 4].includes(index) && rate > 0);
    });
    setText(this.figures[5], formatCount(snapshot.in_flight));
    if (byId("numbers").open) this.showNumbers(histories.total);
  }

  showNumbers(history) {
    const rows = [];
    for (let ago = 0; ago < SPAN_SECONDS; ago += 10) {
      const rates = history.mean(10, ago);
      if (!rates) break;
      const cells = rates.map((rate) => create("td", {}, formatRate(rate)));
      rows.push(create("tr", {}, create("th", { scope: "row" }, `${ago}–${ago + 10}`), ...cells));
    }
    byId("numbers-rows").replaceChildren(...rows);
  }
}

/** Returns a plain table; `rows` are texts, the first of each is the row's heading. */
function textTable(label, headings, rows) {
  const isNumber = (index) => (index > 0 ? "n" : null);
  const head = headings.map((name, index) => create("th", { scope: "col", class: isNumber(index) }, name));
  const body = rows.map(([name, ...texts]) => create("tr", {}, create("th", { scope: "row" }, name),
    ...texts.map((text) => create("td", { class: "n" }, text))));
  return create("table", { "aria-label": label }, create("thead", {}, create("tr", {}, ...head)), create("tbody", {}, ...body));
}

/** Replaces the content of `element` if `data` has changed. */
function redraw(element, data, build) {
  const signature = JSON.stringify(data);
  if (element.dataset.signature === signature) return;
  element.dataset.signature = signature;
  element.replaceChildren(...build());
}

function showUpstreams(snapshot, histories) {
  const rows = snapshot.upstreams.map((upstream) => {
    const rate = histories.upstreams.get(upstream.name)?.recent()?.[0];
    const endpoints = upstream.endpoints ? `${upstream.healthy} of ${upstream.endpoints}` : "–";
    return [upstream.name, formatRate(rate), formatMilliseconds(upstream.p50_ms), formatMilliseconds(upstream.p99_ms), endpoints];
  });
  redraw(byId("upstreams"), rows, () => {
    if (rows.length === 0) return [create("p", { class: "empty" }, "No upstreams.")];
    const table = textTable("Upstreams", ["Upstream", "Requests/s", "p50", "p99", "Healthy"], rows);
    snapshot.upstreams.forEach(({ healthy, endpoints }, index) => {
      if (healthy < endpoints) table.tBodies[0].rows[index].lastChild.classList.add("hot");
    });
    return [create("div", { class: "scroll" }, table)];
  });
}

/** Shows the classes of requests that share the concurrency of an upstream, and which of them is shed. */
function showClasses(snapshot) {
  const rows = snapshot.upstreams.flatMap(({ name: upstream, concurrency }) => (concurrency?.classes ?? []).map((group) => {
    const slots = `${group.in_flight} of ${concurrency.limit}`;
    const shed = typeof group.shed_seconds === "number" ? `for ${formatDuration(group.shed_seconds)}` : "no";
    return [`${upstream}: ${group.name}`, slots, String(group.waiting), formatCount(group.requests.shed), shed];
  }));
  byId("classes-panel").hidden = rows.length === 0;
  redraw(byId("classes"), rows, () => {
    const table = textTable("Classes", ["Class", "In flight", "Waiting", "Shed", "Being shed"], rows);
    rows.forEach(([, , , , shed], index) => {
      if (shed !== "no") table.tBodies[0].rows[index].lastChild.classList.add("hot");
    });
    return [create("div", { class: "scroll" }, table)];
  });
}

function showProcess(snapshot) {
  const { config } = snapshot;
  describe(byId("process"), [
    ["State", snapshot.draining ? "draining" : "serving"],
    ["Version", snapshot.version],
    ["Uptime", formatDuration(snapshot.uptime_seconds)],
    ["Configuration", `generation ${snapshot.generation}, ${config.status}`],
    ["Problems", config.problems.length > 0 ? config.problems.join("\n") : "none"],
  ]);
}

/** Shows elastic limits: headroom, and each signal beside its threshold. */
function showElastic(elastic) {
  byId("elastic-panel").hidden = !elastic;
  if (!elastic) return;
  redraw(byId("elastic"), elastic, () => {
    const facts = create("dl", { class: "facts" });
    const percent = (part) => (typeof part === "number" ? `${Math.round(part * 100)} %` : "–");
    describe(facts, [
      ["Headroom", `${percent(elastic.headroom)}${elastic.trend ? `, ${elastic.trend}` : ""}`],
      ["Binding signal", elastic.binding ?? "none"],
    ]);
    const signals = Object.entries(elastic.signals ?? {});
    const text = (value) => (typeof value === "number" ? tenths.format(value) : "–");
    const rows = signals.map(([name, { value, threshold, pressure }]) => [name, text(value), text(threshold), percent(pressure)]);
    return rows.length === 0 ? [facts] : [facts, textTable("Signals of elastic limits", ["Signal", "Value", "Threshold", "Pressure"], rows)];
  });
}

/** Shows what needs attention. The section is no live region: the state beside the title is. */
function showNotices(snapshot) {
  const { config, draining, notices: texts = [] } = snapshot;
  const notices = byId("notices");
  redraw(notices, [config, draining, texts], () => {
    const list = (texts) => create("ul", {}, ...texts.map((text) => create("li", {}, text)));
    const found = [];
    if (draining) found.push(create("div", { class: "notice" }, "Draining: new connections are no longer accepted."));
    found.push(...texts.map((text) => create("div", { class: "notice" }, text)));
    if (config.problems.length > 0) {
      found.push(create("div", { class: "notice" }, "The last configuration was rejected; the one before stays in force.", list(config.problems)));
    }
    return found;
  });
  notices.hidden = notices.childElementCount === 0;
}

/** Loads the overrides in force. An instance without them has no such endpoint. */
async function loadOverrides() {
  try {
    const response = await request("/limits/overrides");
    showOverrides((await response.json()).overrides ?? []);
  } catch {
    // The state of the connection is shown beside the title.
  }
}

/** Bans by commands, as `RULE FINGERPRINT`. */
let bannedKeys = new Set();

/** Returns whether a key is banned, by its rule or by a command. */
function isBanned(rule, key) {
  return key.banned || bannedKeys.has(`${rule} ${key.fingerprint}`);
}

function showOverrides(overrides) {
  const bans = overrides.filter(({ action }) => action === "ban");
  bannedKeys = new Set(bans.flatMap(({ rule, rules = [rule], fingerprint }) => rules.map((name) => `${name} ${fingerprint}`)));
  byId("overrides-panel").hidden = overrides.length === 0;
  redraw(byId("overrides"), overrides, () => {
    const rows = overrides.slice(0, 50).map((override) => {
      const { key, fingerprint, rule, rules = [rule], action, change, until } = override;
      const end = new Date(until);
      const shown = Number.isNaN(end.getTime()) ? until : `${end.toLocaleDateString("en-CA")} ${formatClock(end)}`;
      return [shorten(key ?? `fingerprint ${fingerprint}`, 120), rules.join(", "), change ? `${action} ${change}` : action, shown];
    });
    return [create("div", { class: "scroll" }, textTable("Overrides in force", ["Key", "Rule", "Override", "Until"], rows))];
  });
}

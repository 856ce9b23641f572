// Tables of the heaviest keys, with the commands for each.

const MAX_LIMITED_SHOWN = 10;

/** A table of keys. While it has the pointer or the focus, its rows keep their order, so that no click hits another. */
class KeyTable {
  constructor({ label, hasRule }) {
    this.hasRule = hasRule;
    this.rows = new Map();
    this.body = create("tbody", { role: "rowgroup" });
    const names = ["Key", ...(hasRule ? ["Rule"] : []), "Admitted", "Delayed", "Shadow", "Rejected", "Commands"];
    const head = names.map((name) => create("th", { scope: "col", role: "columnheader", class: this.classOf(name) }, name));
    this.table = create("table", { class: "keys", role: "table", "aria-label": label },
      create("thead", { role: "rowgroup" }, create("tr", { role: "row" }, ...head)), this.body);
    this.empty = create("p", { class: "empty" });
    this.element = create("div", {}, this.table, this.empty);
  }

  classOf(name) {
    if (name === "Commands") return "commands";
    return ["Key", "Rule"].includes(name) ? null : "n";
  }

  /** Shows entries of the form `{rule, key}`, heaviest first; `emptyText` if there are none. */
  show(entries, emptyText) {
    this.table.hidden = entries.length === 0;
    this.empty.hidden = entries.length > 0;
    setText(this.empty, emptyText);
    const wanted = new Map(entries.map((entry) => [`${entry.rule} ${entry.key.fingerprint}`, entry]));
    const isHeld = this.body.matches(":hover") || this.body.contains(document.activeElement);
    const order = isHeld
      ? [...[...this.rows.keys()].filter((id) => wanted.has(id)), ...[...wanted.keys()].filter((id) => !this.rows.has(id))]
      : [...wanted.keys()];
    for (const id of this.rows.keys()) if (!wanted.has(id)) this.rows.delete(id);
    const rows = order.map((id) => {
      const row = this.rows.get(id) ?? new KeyRow(wanted.get(id), this.hasRule);
      row.update(wanted.get(id).key);
      return [id, row];
    });
    this.rows = new Map(rows);
    arrange(this.body, rows.map(([, row]) => row.element));
  }
}

class KeyRow {
  constructor({ rule, key, isOfDocument }, hasRule) {
    this.rule = rule;
    this.key = key;
    const name = shorten(key.key, 120);
    this.banned = create("span", { class: "tag" }, "banned");
    this.boosted = create("span", { class: "tag calm" }, "boosted");
    this.cells = ["Admitted", "Delayed", "Shadow", "Rejected"].map((label) => create("td", { class: "n", role: "cell", "data-label": label }));
    const button = (text, action) => {
      const element = create("button", { type: "button", "aria-label": `${text} ${name} of rule ${rule}` }, text);
      element.addEventListener("click", action);
      return element;
    };
    // Bans and boosts are of rules only.
    const commands = key.fingerprint && !isOfDocument
      ? [button("Ban", () => askFor("ban", rule, this.key)), button("Lift", () => lift(rule, this.key)), button("Boost", () => askFor("boost", rule, this.key))]
      : [];
    this.element = create("tr", { role: "row" },
      create("th", { scope: "row", role: "rowheader" }, create("span", { class: "key mono", title: key.key }, name), this.banned, this.boosted),
      ...(hasRule ? [create("td", { class: "rule-of", role: "cell" }, rule)] : []),
      ...this.cells,
      create("td", { class: "commands", role: "cell" }, ...commands));
  }

  update(key) {
    this.key = key;
    [key.admitted, key.delayed, key.shadow, key.rejected].forEach((count, index) => {
      setText(this.cells[index], formatCount(count));
      this.cells[index].classList.toggle("zero", !count);
    });
    this.cells[3].classList.toggle("hot", key.rejected > 0);
    this.banned.hidden = !isBanned(this.rule, key);
    this.boosted.hidden = !key.boosted;
  }
}

/** Returns the heaviest limited keys of all rules and limits of documents: most rejections first, then shadow, then delays. */
function limitedKeys({ top, documents = [] }) {
  const counts = ({ key }) => [key.rejected, key.shadow, key.delayed];
  const isLimited = (entry) => isBanned(entry.rule, entry.key) || counts(entry).some((count) => count > 0);
  const ofRules = top.flatMap(({ rule, keys }) => keys.map((key) => ({ rule, key })));
  const ofDocuments = documents.flatMap(({ name, keys }) => keys.map((key) => ({ rule: name, key, isOfDocument: true })));
  const entries = [...ofRules, ...ofDocuments].filter(isLimited);
  const compare = (one, other) => counts(one).map((count, index) => counts(other)[index] - count).find((difference) => difference !== 0) ?? 0;
  return entries.sort(compare).slice(0, MAX_LIMITED_SHOWN);
}

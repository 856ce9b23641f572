// Connects the parts: snapshots from the stream, the state of the connection, and the buttons of the header.

const OVERRIDES_INTERVAL_MS = 10000;

class Page {
  constructor() {
    this.histories = new Histories();
    this.overview = new Overview();
    this.rules = new RuleTable();
    this.limited = new KeyTable({ label: "Limited now", hasRule: true });
    byId("limited").append(this.limited.element);
    this.snapshot = null;
    this.isPaused = false;
    this.receivedAt = null;
    this.lost = null;
    this.stream = new SnapshotStream({ receive: (snapshot) => this.receive(snapshot), change: (change) => this.change(change) });
  }

  start() {
    setText(byId("host"), location.host);
    document.title = `Weir ${location.host}`;
    byId("retry").addEventListener("click", () => this.stream.start());
    byId("pause").addEventListener("click", () => this.pause());
    byId("token").addEventListener("submit", (event) => this.enterToken(event));
    byId("forget").addEventListener("click", () => this.forgetToken());
    byId("numbers").addEventListener("toggle", () => this.draw());
    document.addEventListener("visibilitychange", () => this.draw());
    connectDialog();
    setInterval(() => this.showAge(), 1000);
    setInterval(() => { if (!document.hidden && this.isLive()) loadOverrides(); }, OVERRIDES_INTERVAL_MS);
    this.stream.start();
  }

  isLive() {
    return this.snapshot !== null && this.lost === null;
  }

  receive(snapshot) {
    const isFirst = !this.isLive();
    this.histories.add(snapshot);
    this.snapshot = snapshot;
    this.receivedAt = Date.now();
    this.lost = null;
    if (isFirst) this.connected();
    this.draw();
  }

  connected() {
    byId("token").hidden = true;
    byId("content").hidden = false;
    byId("forget").hidden = !readToken();
    this.showState("live", "Live");
    this.showAge();
    loadOverrides();
  }

  draw() {
    const { snapshot, histories } = this;
    if (!snapshot || this.isPaused || document.hidden) return;
    this.overview.update(snapshot, histories);
    this.limited.show(limitedKeys(snapshot.top), "No key was limited.");
    this.rules.update(snapshot, histories);
    showNotices(snapshot);
    showUpstreams(snapshot, histories);
    showProcess(snapshot);
    showElastic(snapshot.elastic);
  }

  /** Shows a change of the connection's state. */
  change({ state, message, retryAt }) {
    if (state === "token") {
      byId("token").hidden = false;
      byId("content").hidden = true;
      this.lost = null;
      this.snapshot = null;
      this.showState("lost", readToken() ? "Token not accepted" : "Token required");
      byId("token-value").focus();
      return;
    }
    this.lost = { since: this.lost?.since ?? this.receivedAt, retryAt };
    const since = this.lost.since ? `Connection lost, data of ${formatClock(new Date(this.lost.since))}` : "Not connected";
    this.showState("lost", message ? `${since} (${message})` : since);
    this.showAge();
  }

  showState(state, text) {
    document.querySelector(".state").dataset.state = state;
    document.body.classList.toggle("stale", state === "lost");
    byId("retry").hidden = state !== "lost" || !byId("token").hidden;
    setText(byId("state"), text);
  }

  /** Shows the age of the data and the time to the next attempt; not announced, since it changes every second. */
  showAge() {
    const { lost, receivedAt } = this;
    const seconds = (milliseconds) => formatDuration(Math.max(Math.round(milliseconds / 1000), 0));
    const age = lost && receivedAt ? `${seconds(Date.now() - receivedAt)} old, ` : "";
    setText(byId("age"), lost ? `${age}next attempt in ${seconds(lost.retryAt - Date.now())}` : "");
  }

  pause() {
    this.isPaused = !this.isPaused;
    byId("pause").setAttribute("aria-pressed", String(this.isPaused));
    this.draw();
  }

  enterToken(event) {
    event.preventDefault();
    sessionStorage.setItem(TOKEN_ITEM, byId("token-value").value);
    byId("token-value").value = "";
    this.showState("connecting", "Connecting");
    this.stream.start();
  }

  forgetToken() {
    sessionStorage.removeItem(TOKEN_ITEM);
    byId("forget").hidden = true;
    this.stream.start();
  }
}

new Page().start();

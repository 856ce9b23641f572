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
    this.stream = new SnapshotStream({
      receive: (snapshot) => this.receive(snapshot),
      preload: (history) => this.histories.preload(history),
      change: (change) => this.change(change),
    });
  }

  start() {
    setText(byId("host"), location.host);
    document.title = `Weir ${location.host}`;
    byId("retry").addEventListener("click", () => this.stream.start());
    byId("pause").addEventListener("click", () => this.pause());
    byId("token").addEventListener("submit", (event) => this.enterToken(event));
    byId("logout").addEventListener("click", () => this.logOut());
    byId("numbers").addEventListener("toggle", () => this.draw());
    document.addEventListener("visibilitychange", () => this.draw());
    connectDialog();
    connectViewer();
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
    byId("pause").hidden = false;
    byId("logout").hidden = !readToken();
    this.showState("live", "Live");
    this.showAge();
    loadOverrides();
  }

  draw() {
    const { snapshot, histories } = this;
    if (!snapshot || this.isPaused || document.hidden) return;
    this.overview.update(snapshot, histories);
    this.limited.show(limitedKeys(snapshot), "No key was limited.");
    this.rules.update(snapshot, histories);
    showNotices(snapshot);
    showUpstreams(snapshot, histories);
    showClasses(snapshot);
    showProcess(snapshot);
    showElastic(snapshot.elastic);
  }

  /** Shows a change of the connection's state. */
  change({ state, message, retryAt }) {
    if (state === "token") {
      this.askForToken(readToken() ? "This token was not accepted." : "");
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

  /** Shows the form for the token, and nothing of the data. */
  askForToken(problem) {
    forgetToken();
    byId("token").hidden = false;
    for (const id of ["content", "notices", "pause", "logout"]) byId(id).hidden = true;
    this.lost = null;
    this.snapshot = null;
    this.showState("lost", problem ? "Token not accepted" : "Token required");
    setText(byId("token-problem"), problem);
    this.showAge();
    byId("token-value").focus();
  }

  enterToken(event) {
    event.preventDefault();
    const token = byId("token-value").value.trim();
    byId("token-value").value = "";
    if (!keepToken(token)) {
      this.askForToken("This is no token: only visible ASCII characters are possible, without spaces.");
      return;
    }
    setText(byId("token-problem"), "");
    this.showState("connecting", "Connecting");
    this.stream.start();
  }

  /** Forgets the token. A new document has nothing of the data that the token gave access to. */
  logOut() {
    forgetToken();
    location.reload();
  }
}

new Page().start();

// The connection to `/events`. EventSource cannot send a token, so the stream is read with fetch.

const MAX_BUFFER = 32 * 1024 * 1024;
const SILENCE_SECONDS = 5;
const FIRST_PAUSE_SECONDS = 1;
const MAX_PAUSE_SECONDS = 30;
/** Splits chunks of text into events, and calls `receive` with the name and the data of each. */
class EventParser {
  constructor(receive) {
    this.receive = receive;
    this.rest = "";
  }

  add(chunk) {
    this.rest += chunk.replaceAll("\r", "");
    if (this.rest.length > MAX_BUFFER) throw new Error("an event is too long");
    let end;
    while ((end = this.rest.indexOf("\n\n")) >= 0) {
      const lines = this.rest.slice(0, end).split("\n");
      this.rest = this.rest.slice(end + 2);
      const field = (name) => lines.filter((line) => line.startsWith(`${name}:`)).map((line) => line.slice(name.length + 1).trimStart());
      const name = field("event").at(-1);
      if (["snapshot", "history"].includes(name)) this.receive(name, JSON.parse(field("data").join("\n")));
    }
  }
}

/** Follows `/events` for as long as the page is open. */
class SnapshotStream {
  constructor({ receive, preload, change }) {
    this.receive = receive;
    this.preload = preload;
    this.change = change;
    this.failures = 0;
    this.timer = null;
  }

  /** Connects, or connects again at once. */
  start() {
    clearTimeout(this.timer);
    this.abort?.abort();
    const abort = new AbortController();
    this.abort = abort;
    this.read(abort).then(
      () => this.restart(abort, null),
      (error) => this.restart(abort, error),
    );
  }

  async read(abort) {
    const silence = () => {
      clearTimeout(this.silence);
      this.silence = setTimeout(() => abort.abort(), SILENCE_SECONDS * 1000);
    };
    silence();
    const response = await request("/events", { headers: { accept: "text/event-stream" }, signal: abort.signal });
    const parser = new EventParser((name, data) => {
      if (name === "history") {
        this.preload(data);
        return;
      }
      this.failures = 0;
      this.receive(data);
    });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      silence();
      parser.add(value);
    }
  }

  /** Plans the next attempt, unless a newer one has begun. */
  restart(abort, error) {
    if (this.abort !== abort) return;
    clearTimeout(this.silence);
    if (error?.status === 401) {
      this.change({ state: "token" });
      return;
    }
    this.failures += 1;
    // The first attempt follows at once: the server ends every connection from time to time.
    const pause = this.failures === 1 ? 0.2
      : Math.min(FIRST_PAUSE_SECONDS * 2 ** (this.failures - 2), MAX_PAUSE_SECONDS) * (0.8 + 0.4 * Math.random());
    this.timer = setTimeout(() => this.start(), pause * 1000);
    if (this.failures > 1) {
      const message = error instanceof StatusError ? `${error.status} ${shorten(error.message, 120)}` : "";
      this.change({ state: "lost", message, retryAt: Date.now() + pause * 1000 });
    }
  }
}

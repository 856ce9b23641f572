// A day in the access log of a shop, in Envoy's default format. Always the same: its randomness has a fixed seed.
//
// Most clients are people, more of them by day. The others are gateways with many people behind them, a partner's client, a
// crawler, scrapers that begin at full hours, and two attacks on the login.

const DAY = Date.UTC(2026, 10, 22);
const MINUTE = 60_000;
const HOUR = 60 * MINUTE;

/** Returns a generator of numbers from 0 to below 1 (mulberry32). */
function randomness(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

/** How much of the day's maximum is requested at this time: least at 4:00, most at 19:00. */
function activity(time) {
  const hour = (time - DAY) / HOUR;
  return 0.55 - 0.4 * Math.cos(((hour - 4) / 24) * 2 * Math.PI) + 0.05 * Math.sin((hour / 3) * 2 * Math.PI);
}

/** Who requests what: `begin` and `hours` say when, `rate` how often a minute, `steady` whether night and day are alike. */
const CROWDS = [
  { client: "192.0.2.10", rate: 56, paths: "shop" },
  { client: "192.0.2.11", rate: 38, paths: "shop" },
  { client: "192.0.2.30", begin: 9, hours: 8, rate: 39, paths: "search" },
  { client: "198.51.100.20", rate: 36, paths: "pages", steady: true },
  { client: "198.51.100.40", begin: 6, hours: 0.4, rate: 150, paths: "search" },
  { client: "198.51.100.41", begin: 12, hours: 0.5, rate: 120, paths: "search" },
  { client: "198.51.100.42", begin: 18, hours: 0.7, rate: 230, paths: "search" },
  ...[0, 1, 2, 3, 4, 5, 6, 7].map((host) => ({ client: `203.0.113.${60 + host}`, begin: 2.2 + host / 20, hours: 0.9, rate: 16 + 3 * host, paths: "login" })),
  ...[0, 1, 2].map((host) => ({ client: `203.0.113.${90 + host}`, begin: 21.4, hours: 0.5, rate: 13 + 4 * host, paths: "login" })),
  { client: "127.0.0.1", rate: 6, paths: "health", steady: true },
];

const PATHS = {
  shop: ["/", "/cart", "/api/items", "/api/items/71", "/search?q=lamp", "/img/71.webp", "/img/72.webp", "/assets/app.js"],
  pages: ["/items/1", "/items/2", "/items/3", "/about", "/blog/spring"],
  search: ["/search?q=lamp", "/search?q=chair&page=2", "/search?q=desk&page=7"],
  login: ["/login"],
  health: ["/healthz"],
};

function line({ time, client, path, duration, status }) {
  const [method, bytes] = path === "/login" ? ["POST", 61] : ["GET", 0];
  const start = new Date(time).toISOString();
  const sent = 200 + path.length * 37;
  return `[${start}] "${method} ${path} HTTP/1.1" ${status} - ${bytes} ${sent} ${duration} ${duration} "${client}" "Mozilla/5.0" "-" "shop.example.com" "10.0.0.7:3000"\n`;
}

/** Returns the requests of one client between two times, at a mean rate a minute. */
function* requestsOf(random, { client, from, to, rate, paths, steady }) {
  for (let time = from; time < to;) {
    time += (-Math.log(1 - random()) * MINUTE) / rate;
    if (time >= to || (!steady && random() > activity(time))) continue;
    const path = PATHS[paths][Math.floor(random() * PATHS[paths].length)];
    yield { time: Math.floor(time), client, path, duration: 2 + Math.floor(random() ** 3 * 80), status: path === "/login" ? 401 : 200 };
  }
}

/** Returns the visits of a person, in bursts of page views. */
function* visitsOf(random, number) {
  const client = `2001:db8:${(number >> 8).toString(16)}:${(number & 255).toString(16)}::1`;
  const visits = 1 + Math.floor(random() ** 3 * 4);
  // Page views a minute: about log-normal, with a median of 7.
  const rate = 7 * Math.exp(1.2 * (random() + random() + random() - 1.5));
  for (let visit = 0; visit < visits; visit += 1) {
    const from = DAY + random() * 24 * HOUR;
    if (random() > activity(from)) continue;
    const length = (1 + random() * 9) * MINUTE;
    yield* requestsOf(random, { client, from, to: Math.min(from + length, DAY + 24 * HOUR), rate, paths: "shop", steady: true });
    if (random() < 0.2) yield { time: Math.floor(from), client, path: "/login", duration: 90, status: 200 };
  }
}

/** Returns the log. */
export function dayOfLog({ people = 7000, seed = 7 } = {}) {
  const random = randomness(seed);
  const crowds = CROWDS.flatMap(({ begin = 0, hours = 24, ...crowd }) => {
    const from = DAY + begin * HOUR;
    return [...requestsOf(random, { ...crowd, from, to: Math.min(from + hours * HOUR, DAY + 24 * HOUR), steady: crowd.steady ?? hours < 24 })];
  });
  const visits = Array.from({ length: people }, (_, number) => [...visitsOf(random, number)]).flat();
  return [...crowds, ...visits].sort((one, other) => one.time - other.time).map(line).join("");
}

// An HTTP server that admits requests by rate-limiter-flexible. Usage: rate-limiter-flexible.mjs SETTINGS
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { Redis } from "ioredis";
import { RateLimiterMemory, RateLimiterRedis } from "rate-limiter-flexible";

const settings = JSON.parse(readFileSync(process.argv[2], "utf8"));
const needsRedis = settings.limits.some((limit) => limit.shared);
// A call for which Redis is not there in time is decided by the insurance.
const redis = needsRedis && new Redis({ port: settings.redis_port, enableOfflineQueue: false, commandTimeout: 500 });
redis && redis.on("error", () => {});
const keys = {
  header: (request) => request.headers[settings.key_header],
  address: (request) => request.socket.remoteAddress,
  all: () => "all",
};
const rules = settings.limits.map((limit, place) => {
  const options = { keyPrefix: `limit-${place}`, points: limit.count, duration: limit.period };
  const local = new RateLimiterMemory(options);
  const limiter = limit.shared
    ? new RateLimiterRedis({ ...options, storeClient: redis, insuranceLimiter: local, rejectIfRedisNotReady: true })
    : local;
  return { ...limit, limiter };
});

function headers(rule, state) {
  const reset = Math.ceil(state.msBeforeNext / 1000);
  return {
    "x-ratelimit-limit": rule.count,
    "x-ratelimit-remaining": state.remainingPoints,
    "x-ratelimit-reset": reset,
    ...(state.consumedPoints > rule.count && { "retry-after": reset }),
  };
}

createServer({ noDelay: true, keepAliveTimeout: 65_000 }, async (request, response) => {
  const path = request.url.split("?")[0];
  for (const rule of rules) {
    const key = keys[rule.key](request);
    if ((rule.path !== "" && rule.path !== path) || key === undefined) continue;
    try {
      response.setHeaders(new Headers(headers(rule, await rule.limiter.consume(key))));
    } catch (state) {
      if (state instanceof Error) throw state;
      return response.writeHead(429, headers(rule, state)).end("too many requests");
    }
  }
  response.end("ok");
}).listen({ port: settings.port, host: "127.0.0.1", backlog: 4096 });

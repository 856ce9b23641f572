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
  // The first line, because Node.js joins several to another value.
  header: (request) => request.headersDistinct[settings.key_header]?.[0],
  address: (request) => request.socket.remoteAddress,
  all: () => "all",
};
const rules = settings.limits.map((limit, place) => {
  const options = { keyPrefix: `limit-${place}`, points: limit.count, duration: limit.period };
  if (!limit.shared) return { ...limit, limiter: new RateLimiterMemory(options) };
  const insuranceLimiter = new RateLimiterMemory({ ...options, points: Math.ceil(limit.count / settings.instances) });
  const store = { storeClient: redis, rejectIfRedisNotReady: true, insuranceLimiter };
  return { ...limit, limiter: new RateLimiterRedis({ ...options, ...store }) };
});

function setHeaders(response, rule, state) {
  const reset = Math.ceil(state.msBeforeNext / 1000);
  response.setHeader("x-ratelimit-limit", rule.count);
  response.setHeader("x-ratelimit-remaining", state.remainingPoints);
  response.setHeader("x-ratelimit-reset", reset);
  if (response.statusCode === 429) response.setHeader("retry-after", reset);
}

createServer({ noDelay: true, keepAliveTimeout: 65_000 }, async (request, response) => {
  for (const rule of rules) {
    const key = keys[rule.key](request);
    if (key === undefined) continue;
    try {
      setHeaders(response, rule, await rule.limiter.consume(key));
    } catch (state) {
      response.statusCode = state instanceof Error ? 500 : 429;
      if (response.statusCode === 429) setHeaders(response, rule, state);
      return response.end("rejected");
    }
  }
  response.end("ok");
}).listen({ port: settings.port, host: "127.0.0.1", backlog: 4096 });

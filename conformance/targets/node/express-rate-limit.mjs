// An HTTP server that admits requests by express-rate-limit. Usage: express-rate-limit.mjs SETTINGS
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import express from "express";
import { ipKeyGenerator, rateLimit } from "express-rate-limit";

const settings = JSON.parse(readFileSync(process.argv[2], "utf8"));
const app = express();
// From which peers `request.ip` is the client in X-Forwarded-For.
app.set("trust proxy", settings.trusted);
const keys = {
  // The first line, because Node.js joins several to another value.
  header: (request) => request.headersDistinct[settings.key_header]?.[0],
  address: (request) => ipKeyGenerator(request.socket.remoteAddress),
  // Some proxies add a port, which is no part of the client.
  forwarded: (request) => ipKeyGenerator(request.ip.replace(/^(\d+(?:\.\d+){3}):\d+$/, "$1")),
  all: () => "all",
};
settings.limits.forEach((limit, place) => {
  const key = keys[limit.key];
  app.use(rateLimit({
    windowMs: limit.period * 1000,
    limit: limit.count,
    identifier: `limit-${place}`,
    standardHeaders: "draft-8",
    legacyHeaders: true,
    keyGenerator: key,
    skip: (request) => key(request) === undefined,
  }));
});
app.use((request, response) => response.type("text").send("ok"));
createServer({ noDelay: true, keepAliveTimeout: 65_000 }, app).listen({ port: settings.port, host: "127.0.0.1", backlog: 4096 });

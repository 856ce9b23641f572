// Weir as a child process leaves nothing behind when it cannot be started.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

/** Starts Weir in a process of its own, since the path of the binary is read once. Returns the error and what is left. */
async function startWith(context, { binary, yaml }) {
  const directory = await mkdtemp(join(tmpdir(), "weir-start-"));
  context.after(() => rm(directory, { recursive: true, force: true }));
  const script = `import { Weir } from "./weir.mjs"; await Weir.start(${JSON.stringify(yaml)});`;
  const env = { ...process.env, TMPDIR: directory, ...(binary && { WEIR_BIN: binary }) };
  const child = ["--input-type=module", "--eval", script];
  const message = await new Promise((resolve) => {
    execFile(process.execPath, child, { cwd: new URL(".", import.meta.url), env }, (error, _, stderr) => resolve(error ? stderr : ""));
  });
  return { message, left: await readdir(directory) };
}

test("a missing binary is named, and leaves nothing behind", async (context) => {
  const { message, left } = await startWith(context, { binary: "/nonexistent/weir", yaml: "" });
  assert.match(message, /Error: \/nonexistent\/weir /);
  assert.deepEqual(left, []);
});

test("a rejected configuration is shown, and leaves nothing behind", async (context) => {
  const { message, left } = await startWith(context, { yaml: "nonsense: true\n" });
  assert.match(message, /weir has exited: .*nonsense/s);
  assert.deepEqual(left, []);
});

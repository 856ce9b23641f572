// The token of the admin port, and the requests that carry it. The token is never part of a URL.

const TOKEN_ITEM = "weir-admin-token";
const MAX_SHOWN = 4 * 1024 * 1024;

/** An HTTP status that is no success. */
class StatusError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function readToken() {
  return sessionStorage.getItem(TOKEN_ITEM);
}

/** Keeps a token for this tab. Returns whether it can be one: a header could not carry other characters. */
function keepToken(token) {
  if (!/^[\x21-\x7e]+$/.test(token)) return false;
  sessionStorage.setItem(TOKEN_ITEM, token);
  return true;
}

function forgetToken() {
  sessionStorage.removeItem(TOKEN_ITEM);
}

/** Sends a request with the token, if there is one. Throws a StatusError unless it succeeds. */
async function request(path, { headers = {}, ...options } = {}) {
  const token = readToken();
  const response = await fetch(path, {
    cache: "no-store",
    // The browser sends no credentials of its own, and asks for none.
    credentials: "omit",
    headers: { "x-weir-admin": "1", ...(token ? { authorization: `Bearer ${token}` } : {}), ...headers },
    ...options,
  });
  if (!response.ok) throw new StatusError(response.status, (await response.text()).trim());
  return response;
}

/** Shows other endpoints in a dialog, since a link cannot carry the token. Without a token, links work by themselves. */
function connectViewer() {
  const dialog = byId("viewer");
  byId("viewer-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => setText(byId("viewer-text"), ""));
  byId("endpoints").addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link || !readToken() || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    view(link.getAttribute("href"));
  });
}

async function view(path) {
  setText(byId("viewer-title"), path);
  setText(byId("viewer-text"), "Loading");
  byId("viewer").showModal();
  try {
    const text = await (await request(path)).text();
    setText(byId("viewer-text"), shorten(text, MAX_SHOWN));
  } catch (error) {
    setText(byId("viewer-text"), failureText(error));
  }
}

/** Describes why a request has failed. */
function failureText(error) {
  if (error instanceof StatusError) return `${error.status}: ${error.message || "no details"}`;
  return "the admin port does not respond";
}

// Commands for one key: ban, boost, lift. Each is confirmed in a dialog if it changes what a client gets from now on.

const COMMANDS = {
  ban: {
    title: "Ban this key?", confirm: "Ban", done: "Banned", has: ["for"],
    text: "All requests with this key that the rule matches are rejected until the ban ends.",
  },
  boost: {
    title: "Boost this key?", confirm: "Boost", done: "Boosted", has: ["factor", "for"],
    text: "Limit and burst of this key are multiplied. Units used stay used.",
  },
};

let pendingCommand = null;
let hideResult = null;

/** Sends a command. Returns the notes of the response, such as that only this instance is affected. */
async function post(path, parameters) {
  const response = await request(`${path}?${new URLSearchParams(parameters)}`, { method: "POST" });
  const text = (await response.text()).trim();
  const { notes = [] } = text.startsWith("{") ? JSON.parse(text) : {};
  return notes.map((note) => ` Note: ${note}.`).join("");
}

function showResult(text, isFailure = false) {
  const result = byId("result");
  result.classList.toggle("failed", isFailure);
  result.hidden = false;
  result.textContent = shorten(text, 400);
  clearTimeout(hideResult);
  hideResult = setTimeout(() => { result.hidden = true; }, isFailure ? 20000 : 8000);
}

function showFailure(error) {
  showResult(`Not done. ${failureText(error)}`, true);
}

/** Opens the dialog of `ban` or `boost` for a key of a rule. */
function askFor(name, rule, key) {
  const command = COMMANDS[name];
  pendingCommand = { name, rule, key };
  setText(byId("command-title"), command.title);
  setText(byId("command-text"), command.text);
  describe(byId("command-facts"), [["Rule", rule], ["Key", shorten(key.key)]]);
  byId("command-factor-field").hidden = !command.has.includes("factor");
  byId("command-for-field").hidden = !command.has.includes("for");
  byId("command-for").value = name === "ban" ? "10m" : "1h";
  setText(byId("command-confirm"), command.confirm);
  byId("command").showModal();
}

async function confirmCommand(event) {
  event.preventDefault();
  const { name, rule, key } = pendingCommand;
  const duration = byId("command-for");
  const parameters = { rule, fingerprint: key.fingerprint, for: duration.value };
  if (COMMANDS[name].has.includes("factor")) parameters.factor = byId("command-factor").value;
  byId("command").close();
  try {
    const notes = await post(`/limits/${name}`, parameters);
    const words = duration.selectedOptions[0].textContent;
    showResult(`${COMMANDS[name].done} ${shorten(key.key)} of rule ${rule} for ${words}.${notes}`);
  } catch (error) {
    showFailure(error);
  }
  loadOverrides();
}

/** Ends a ban and frees the counters of a key. */
async function lift(rule, key) {
  try {
    const target = { rule, fingerprint: key.fingerprint };
    if (isBanned(rule, key)) await post("/limits/unban", target);
    const notes = await post("/limits/reset", target);
    showResult(`Lifted: the counters of ${shorten(key.key)} of rule ${rule} start again.${notes}`);
  } catch (error) {
    showFailure(error);
  }
  loadOverrides();
}

function connectDialog() {
  const dialog = byId("command");
  dialog.querySelector("form").addEventListener("submit", confirmCommand);
  byId("command-cancel").addEventListener("click", () => dialog.close());
  // A click on the backdrop has the dialog itself as its target.
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
}

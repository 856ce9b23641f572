//! A server that executes the scripts of the stores, at times that the simulation chooses.

use mlua::{Function, Lua, String as LuaString, Table, Value, Variadic};

/// The commands that the scripts call. Keys expire by the server's clock, in whole milliseconds.
const COMMANDS: &str = r"
data, now_micros = {}, 0
local function value_of(key)
  local entry = data[key]
  if not entry or entry[2] <= math.floor(now_micros / 1000) then return false end
  return entry[1]
end
local commands = {}
function commands.TIME() return { math.floor(now_micros / 1000000), now_micros % 1000000 } end
function commands.GET(key) return value_of(key) end
function commands.GETRANGE(key, first, last) return (value_of(key) or ''):sub(first + 1, last + 1) end
function commands.SET(key, value, _, ttl)
  data[key] = { value, ttl and math.floor(now_micros / 1000) + ttl or math.huge }
end
function commands.DEL(key) data[key] = nil end
redis = { call = function(name, ...) return commands[name](...) end }
function copy_of(source)
  local copy = {}
  for key, entry in pairs(source) do copy[key] = entry end
  return copy
end
";

/// The data of a server at one time.
pub(super) struct Snapshot(Table);

/// One server, with one script.
pub(super) struct ScriptServer {
    lua: Lua,
    script: Function,
    /// Identity of the process.
    pub(super) run: u32,
    /// Lead of its clock over that of the simulation, in microseconds.
    pub(super) lead: f64,
    /// Rate of its clock.
    pub(super) clock_rate: f64,
}

/// A call's reply: the generation, and the numbers of each request.
pub(super) struct ScriptReply {
    pub(super) generation: String,
    pub(super) numbers: Vec<Vec<i64>>,
}

impl ScriptServer {
    pub(super) fn new(script: &str) -> Self {
        let lua = Lua::new();
        let pack = lua.create_function(|lua, values: Variadic<Value>| {
            let numbers = values[1..].iter().map(|value| match value {
                Value::Integer(number) => *number as f64,
                value => value.as_number().unwrap(),
            });
            lua.create_string(numbers.flat_map(f64::to_le_bytes).collect::<Vec<u8>>())
        });
        let unpack = lua.create_function(|_, (format, text, from): (String, LuaString, Option<usize>)| {
            let bytes = &text.as_bytes()[from.unwrap_or(1) - 1..];
            let bytes = &bytes[..8 * format.matches('d').count()];
            let numbers = bytes.chunks_exact(8).map(|chunk| f64::from_le_bytes(chunk.try_into().unwrap()));
            // The offset after the data follows.
            Ok(numbers.chain([bytes.len() as f64 + 1.0]).collect::<Variadic<f64>>())
        });
        let formats = lua.create_table().unwrap();
        formats.set("pack", pack.unwrap()).unwrap();
        formats.set("unpack", unpack.unwrap()).unwrap();
        lua.globals().set("struct", formats).unwrap();
        lua.load(COMMANDS).exec().unwrap();
        let script = lua.load(script).into_function().unwrap();
        Self { lua, script, run: 1, lead: 0.0, clock_rate: 1.0 }
    }

    /// Time of the server, in microseconds, at `now` of the simulation.
    pub(super) fn time(&self, now: u64) -> u64 {
        (now as f64 * self.clock_rate + self.lead) as u64
    }

    /// Calls the script with the `known` generation.
    pub(super) fn call(&self, keys: &[&str], known: &str, new: &str, args: &[&str], now: u64) -> ScriptReply {
        let globals = self.lua.globals();
        let run = self.run.to_string();
        let args: Vec<&str> = [known, &run, new].into_iter().chain(args.iter().copied()).collect();
        globals.set("now_micros", self.time(now)).unwrap();
        globals.set("KEYS", keys.to_vec()).unwrap();
        globals.set("ARGV", args).unwrap();
        let reply: Vec<Value> = self.script.call(()).unwrap();
        let generation = reply[0].to_string().unwrap();
        let lists = reply[1..].iter().filter_map(Value::as_table);
        let numbers = lists
            .map(|list| list.sequence_values::<f64>().map(|number| number.unwrap().trunc() as i64).collect());
        ScriptReply { generation, numbers: numbers.collect() }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let globals = self.lua.globals();
        let copy: Function = globals.get("copy_of").unwrap();
        Snapshot(copy.call(globals.get::<Table>("data").unwrap()).unwrap())
    }

    /// Restarts the server with the data of an earlier time.
    pub(super) fn restore(&mut self, Snapshot(data): Snapshot) {
        self.lua.globals().set("data", data).unwrap();
        self.run += 1;
    }

    /// Deletes all data.
    pub(super) fn flush(&self) {
        self.lua.globals().set("data", self.lua.create_table().unwrap()).unwrap();
    }
}

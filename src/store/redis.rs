//! One server, for now.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};
use tokio::sync::Mutex;

use super::settings::{Settings, Topology};
use crate::remote::channel::Place;

/// A script that the store runs.
#[derive(Debug)]
pub struct Script {
    /// Its text.
    pub text: &'static str,
}

/// One call of a script.
#[derive(Debug)]
pub struct Call<'a> {
    /// What to run.
    pub script: &'a Script,
    /// The keys, all in one slot.
    pub keys: &'a [String],
    /// The arguments.
    pub args: &'a [Vec<u8>],
}

/// Which server process responds.
pub type RunId = String;

/// Why a call has failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Whatever.
    #[error("{0}")]
    Other(String),
}

/// A client.
#[derive(Debug)]
pub struct Client {
    client: redis::Client,
    settings: Settings,
    connection: Mutex<Option<(MultiplexedConnectionDebug, RunId)>>,
}

#[derive(Clone)]
struct MultiplexedConnectionDebug(MultiplexedConnection);

impl std::fmt::Debug for MultiplexedConnectionDebug {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("connection")
    }
}

impl Client {
    /// A client.
    pub fn new(settings: &Settings) -> Result<Self, CallError> {
        let Topology::Single(server) = &settings.topology else {
            return Err(CallError::Other("only one server".into()));
        };
        let url = match &server.place {
            Place::Unix(path) => format!("redis+unix://{}?db={}", path.display(), server.db),
            place => format!("redis://{place}/{}", server.db),
        };
        let client = redis::Client::open(url).map_err(|error| CallError::Other(error.to_string()))?;
        Ok(Self { client, settings: settings.clone(), connection: Mutex::default() })
    }

    async fn connected(&self) -> Result<(MultiplexedConnection, RunId), CallError> {
        let mut connection = self.connection.lock().await;
        if let Some((connection, run)) = &*connection {
            return Ok((connection.0.clone(), run.clone()));
        }
        let other = |error: redis::RedisError| CallError::Other(error.to_string());
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.settings.timeout))
            .set_response_timeout(Some(self.settings.timeout));
        let mut made =
            self.client.get_multiplexed_async_connection_with_config(&config).await.map_err(other)?;
        let info: String = redis::cmd("INFO").arg("server").query_async(&mut made).await.map_err(other)?;
        let run = info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap_or("none").to_owned();
        *connection = Some((MultiplexedConnectionDebug(made.clone()), run.clone()));
        Ok((made, run))
    }

    /// The server that has `key`.
    pub async fn run_id(&self, _key: &str) -> Result<RunId, CallError> {
        self.connected().await.map(|(_, run)| run)
    }

    /// Runs a script.
    pub async fn call(&self, call: Call<'_>) -> Result<(Value, RunId), CallError> {
        let (mut made, run) = self.connected().await?;
        let mut command = redis::cmd("EVAL");
        command.arg(call.script.text).arg(call.keys.len());
        call.keys.iter().for_each(|key| drop(command.arg(key)));
        call.args.iter().for_each(|arg| drop(command.arg(&arg[..])));
        match command.query_async(&mut made).await {
            Ok(value) => Ok((value, run)),
            Err(error) => {
                *self.connection.lock().await = None;
                Err(CallError::Other(error.to_string()))
            }
        }
    }
}

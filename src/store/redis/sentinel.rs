//! The master that sentinels name.
//!
//! A sentinel may be behind: what it names is believed only if it takes itself for a master, too. See Redis'
//! [guidelines](https://redis.io/docs/latest/develop/reference/sentinel-clients/) for clients of Sentinel.

use redis::Value;

use super::connection::{Connector, Lookup};
use super::error::CallError;
use crate::remote::channel::Place;
use crate::store::settings::Sentinel;

/// Where the master is, by the first sentinel that knows it.
pub(super) async fn master(
    settings: &Sentinel,
    connector: &Connector,
    lookup: &mut Lookup,
) -> Result<Place, CallError> {
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(&*settings.master);
    let mut failure = CallError::Unreachable("no sentinel is configured".to_owned());
    let mut sentinels: Vec<&Place> = settings.sentinels.iter().collect();
    fastrand::shuffle(&mut sentinels);
    for place in sentinels {
        match connector.ask_sentinel(place, &command, lookup).await.map(|named| address(&named)) {
            Ok(Some(master)) => return Ok(master),
            Ok(None) => {
                failure = CallError::Unreachable(format!(
                    "the sentinel {place} knows no master {}",
                    settings.master
                ));
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn address(named: &Value) -> Option<Place> {
    let Value::Array(parts) = named else { return None };
    let [host, port] = &**parts else { return None };
    Some(Place::Tcp(text(host)?.into(), text(port)?.parse().ok()?))
}

/// Whether `ROLE` says that a server is a master.
pub(super) fn is_master(role: &Value) -> bool {
    matches!(role, Value::Array(parts) if parts.first().and_then(text) == Some("master"))
}

pub(super) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_is_named_by_host_and_port() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let named = Value::Array(vec![bulk("10.0.0.1"), bulk("6379")]);
        assert_eq!(address(&named), Some(Place::Tcp("10.0.0.1".into(), 6379)));
        assert_eq!(address(&Value::Nil), None);
        assert!(is_master(&Value::Array(vec![bulk("master"), Value::Int(0)])));
        assert!(!is_master(&Value::Array(vec![bulk("slave")])));
    }
}

//! Errors of calls to the store.

use redis::RedisError;

use weir_telemetry::metrics::StoreOutcome;

/// Why a call to the store has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// There is no connection.
    #[error("no connection to the store: {0}")]
    Unreachable(String),
    /// The call timed out. It may have been executed.
    #[error("no response from the store in time")]
    Timeout,
    /// The server has sent too many replies that were not requested.
    #[error("the store sends replies that were not requested: {0}")]
    Unrequested(String),
    /// The server is a replica.
    #[error("the store is a replica")]
    ReadOnly,
    /// The server is loading its data from disk.
    #[error("the store is loading its data")]
    Loading,
    /// The server has reached its memory limit.
    #[error("the store is out of memory")]
    OutOfMemory,
    /// The server rejects writes: its disk fails, or it has too few replicas.
    #[error("the store rejects writes: {0}")]
    Unwritable(String),
    /// Authentication failed, or the user lacks a permission.
    #[error("permission denied by the store: {0}")]
    NotPermitted(String),
    /// No known server has the keys: they move between servers of a Cluster, or a Cluster is configured as one server.
    #[error("the keys are on another server")]
    Moved,
    /// The server runs a long script, or too many calls are in flight here.
    #[error("the store is busy")]
    Busy,
    /// The reply of a script does not have its form.
    #[error("malformed reply of the store: {0}")]
    Malformed(&'static str),
    /// Any other error.
    #[error("the store failed: {0}")]
    Other(String),
}

/// Error codes with which a server, or a command inside of a script, rejects a call.
const ERROR_CODES: [&str; 13] = [
    "READONLY",
    "LOADING",
    "OOM",
    "MISCONF",
    "NOREPLICAS",
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
    "MOVED",
    "ASK",
    "BUSY",
    "MASTERDOWN",
    "CLUSTERDOWN",
];

/// Texts of permission errors inside of a script, which have no code: up to version 7.0, and later.
const PERMISSION_ERRORS: [&str; 2] = ["The user executing the script can't ", "ACL failure in script"];

impl CallError {
    /// Classifies an error of the library.
    pub(super) fn from_redis(error: &RedisError) -> Self {
        let detail = error.detail().unwrap_or_default();
        match error_code(error).unwrap_or_default() {
            "READONLY" => Self::ReadOnly,
            "LOADING" => Self::Loading,
            "OOM" => Self::OutOfMemory,
            "MISCONF" | "NOREPLICAS" => Self::Unwritable(error.to_string()),
            "NOAUTH" | "WRONGPASS" | "NOPERM" => Self::NotPermitted(error.to_string()),
            "MOVED" | "ASK" | "TRYAGAIN" | "CROSSSLOT" => Self::Moved,
            "BUSY" => Self::Busy,
            "CLUSTERDOWN" | "MASTERDOWN" => Self::Unreachable(detail.to_owned()),
            _ if error.kind() == redis::ErrorKind::AuthenticationFailed => {
                Self::NotPermitted(error.to_string())
            }
            _ if error.is_timeout() => Self::Timeout,
            _ if error.is_io_error() || error.is_unrecoverable_error() => {
                Self::Unreachable(error.to_string())
            }
            _ => Self::Other(error.to_string()),
        }
    }

    /// Returns the outcome for metrics.
    pub const fn outcome(&self) -> StoreOutcome {
        match self {
            Self::Unreachable(_) => StoreOutcome::Unreachable,
            Self::Timeout => StoreOutcome::TimedOut,
            Self::Unrequested(_) => StoreOutcome::Unrequested,
            Self::ReadOnly
            | Self::Loading
            | Self::OutOfMemory
            | Self::Unwritable(_)
            | Self::NotPermitted(_)
            | Self::Moved
            | Self::Busy => StoreOutcome::Rejected,
            Self::Malformed(_) | Self::Other(_) => StoreOutcome::Failed,
        }
    }
}

/// Returns the code of `error`. Before version 7, errors of scripts have the code `ERR` and the command's code in the
/// text.
fn error_code(error: &RedisError) -> Option<&str> {
    let known = error.code().filter(|code| *code != "ERR");
    known.or_else(|| {
        if PERMISSION_ERRORS
            .iter()
            .any(|words| error.detail().is_some_and(|detail| detail.starts_with(words)))
        {
            return Some("NOPERM");
        }
        let words = error.detail()?.split(|letter: char| !letter.is_ascii_uppercase());
        words.into_iter().find(|word| ERROR_CODES.contains(word)).or_else(|| error.code())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_from_line(line: &str) -> CallError {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        CallError::from_redis(&value.extract_error().unwrap_err())
    }

    #[test]
    fn rejection_is_classified_by_its_error_code() {
        assert_eq!(
            error_from_line("READONLY You can't write against a read only replica."),
            CallError::ReadOnly
        );
        assert_eq!(error_from_line("LOADING Redis is loading the dataset in memory"), CallError::Loading);
        assert_eq!(
            error_from_line("OOM command not allowed when used memory > 'maxmemory'."),
            CallError::OutOfMemory
        );
        assert_eq!(error_from_line("MOVED 1 127.0.0.1:7000"), CallError::Moved);
        assert_eq!(error_from_line("BUSY Redis is busy running a script."), CallError::Busy);
        for line in
            ["MISCONF Redis is configured to save RDB snapshots", "NOREPLICAS Not enough good replicas"]
        {
            assert!(matches!(error_from_line(line), CallError::Unwritable(_)), "{line}");
        }
        let inside = "ERR ACL failure in script: User weir has no permissions to run the 'get' command";
        let before = "ERR The user executing the script can't run this command or subcommand script: 1";
        for line in [
            inside,
            before,
            "NOAUTH Authentication required.",
            "WRONGPASS invalid pair",
            "NOPERM no permissions",
        ] {
            assert!(matches!(error_from_line(line), CallError::NotPermitted(_)), "{line}");
        }
        assert!(matches!(error_from_line("CLUSTERDOWN The cluster is down"), CallError::Unreachable(_)));
        assert!(matches!(error_from_line("ERR unknown command"), CallError::Other(_)));
    }

    #[test]
    fn redis_6_script_error_has_the_code_of_its_command() {
        let line = "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -READONLY You can't write";
        assert_eq!(error_from_line(line), CallError::ReadOnly);
        let line = "ERR Error running script (call to f_1): @user_script:1: OOM command not allowed";
        assert_eq!(error_from_line(line), CallError::OutOfMemory);
    }
}

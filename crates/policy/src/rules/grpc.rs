//! gRPC status codes, by number and by name.
//!
//! The status of a call is in the trailers of the response, or in its header section if the response has nothing else
//! ("gRPC over HTTP/2", Trailers-Only). A response without one has the status that its HTTP status code maps to.

use std::fmt;
use std::time::Duration;

use http::{HeaderName, StatusCode};

/// Name of the header that carries the status of a call.
pub const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
/// Name of the header that carries the time for which a client waits.
pub const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Number and name of every status, indexed by number ("Status codes and their use in gRPC").
const STATUSES: [(&str, &str); 17] = [
    ("0", "ok"),
    ("1", "cancelled"),
    ("2", "unknown"),
    ("3", "invalid_argument"),
    ("4", "deadline_exceeded"),
    ("5", "not_found"),
    ("6", "already_exists"),
    ("7", "permission_denied"),
    ("8", "resource_exhausted"),
    ("9", "failed_precondition"),
    ("10", "aborted"),
    ("11", "out_of_range"),
    ("12", "unimplemented"),
    ("13", "internal"),
    ("14", "unavailable"),
    ("15", "data_loss"),
    ("16", "unauthenticated"),
];

/// Status of a gRPC call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GrpcStatus(u8);

impl GrpcStatus {
    /// The call was cancelled, usually by the client.
    pub const CANCELLED: Self = Self(1);
    pub const UNKNOWN: Self = Self(2);
    /// The deadline expired before the call completed.
    pub const DEADLINE_EXCEEDED: Self = Self(4);
    /// The method does not exist.
    pub const UNIMPLEMENTED: Self = Self(12);
    /// The client is not permitted to make the call.
    pub const PERMISSION_DENIED: Self = Self(7);
    /// A quota is exhausted.
    pub const RESOURCE_EXHAUSTED: Self = Self(8);
    pub const INTERNAL: Self = Self(13);
    /// The service is unavailable.
    pub const UNAVAILABLE: Self = Self(14);
    /// The client has no valid credentials.
    pub const UNAUTHENTICATED: Self = Self(16);

    /// Returns all names, in the order of the numbers.
    pub fn names() -> impl Iterator<Item = &'static str> + Clone {
        STATUSES.iter().map(|(_, name)| *name)
    }

    /// Whether the call succeeded.
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }

    pub fn from_code(code: u64) -> Option<Self> {
        u8::try_from(code).ok().filter(|code| usize::from(*code) < STATUSES.len()).map(Self)
    }

    /// Returns the status with this name, ignoring case.
    pub fn from_name(name: &str) -> Option<Self> {
        let place = STATUSES.iter().position(|(_, known)| known.eq_ignore_ascii_case(name))?;
        Self::from_code(place as u64)
    }

    /// Reads the value of `grpc-status` from headers or trailers. An unknown value counts as `unknown`, as in gRPC
    /// clients.
    pub fn from_field_value(value: Option<&[u8]>) -> Option<Self> {
        let code = std::str::from_utf8(value?).ok().and_then(|text| text.parse().ok());
        Some(code.and_then(Self::from_code).unwrap_or(Self::UNKNOWN))
    }

    /// Maps the HTTP status code of a response without `grpc-status` ("HTTP to gRPC Status Code Mapping").
    pub const fn from_http_status(status: StatusCode) -> Self {
        match status.as_u16() {
            400 => Self::INTERNAL,
            401 => Self::UNAUTHENTICATED,
            403 => Self::PERMISSION_DENIED,
            404 => Self::UNIMPLEMENTED,
            429 | 502..=504 => Self::UNAVAILABLE,
            _ => Self::UNKNOWN,
        }
    }

    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the number, as in `grpc-status`.
    pub const fn as_str(self) -> &'static str {
        STATUSES[self.0 as usize].0
    }
}

impl fmt::Display for GrpcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(STATUSES[usize::from(self.0)].1)
    }
}

/// A set of statuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrpcStatuses(u32);

impl GrpcStatuses {
    /// Whether `status` is in the set.
    pub const fn contain(self, status: GrpcStatus) -> bool {
        self.0 & (1 << status.0) != 0
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<GrpcStatus> for GrpcStatuses {
    fn from_iter<I: IntoIterator<Item = GrpcStatus>>(statuses: I) -> Self {
        Self(statuses.into_iter().fold(0, |all, status| all | 1 << status.0))
    }
}

/// What is known about the status of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStatus {
    /// The request is not a call, and the response has no call status.
    None,
    /// The status arrives with the end of the response.
    Awaited,
    /// The call ended with this status.
    Known(GrpcStatus),
}

/// Parses `TimeoutValue TimeoutUnit`: up to eight digits and one of `H M S m u n`.
pub fn parse_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(count * 3600),
        b'M' => Duration::from_secs(count * 60),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_status_names_and_codes_round_trip() {
        let status = |name| GrpcStatus::from_name(name);
        assert_eq!(status("unauthenticated"), Some(GrpcStatus::UNAUTHENTICATED));
        assert_eq!(status("UNAVAILABLE"), GrpcStatus::from_code(14));
        assert_eq!((status("timeout"), status("")), (None, None));
        assert_eq!(GrpcStatus::from_code(17), None);
        for (code, name) in GrpcStatus::names().enumerate() {
            let status = GrpcStatus::from_name(name).unwrap();
            assert_eq!(status.as_str(), code.to_string());
            assert_eq!(status.to_string(), name);
        }
    }

    #[test]
    fn grpc_timeout_has_up_to_eight_digits_and_one_unit() {
        let read = |text: &str| parse_timeout(text.as_bytes());
        assert_eq!(read("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(read("100m"), Some(Duration::from_millis(100)));
        assert_eq!(read("99999999u"), Some(Duration::from_micros(99_999_999)));
        assert_eq!(read("7n"), Some(Duration::from_nanos(7)));
        for wrong in ["", "S", "1", "1s", "-1S", "1.5S", "999999999S", "1 S"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn unrecognised_grpc_status_is_unknown() {
        let of = |value: &str| GrpcStatus::from_field_value(Some(value.as_bytes()));
        assert_eq!(of("16"), Some(GrpcStatus::UNAUTHENTICATED));
        for odd in ["17", "255", "256", "-1", "", "0x10", "18446744073709551616", "ok"] {
            assert_eq!(of(odd), Some(GrpcStatus::UNKNOWN), "{odd:?}");
        }
        assert_eq!(GrpcStatus::from_field_value(None), None);
    }

    #[test]
    fn grpc_status_set_contains_exactly_its_statuses() {
        let some: GrpcStatuses = [0, 7, 16].into_iter().filter_map(GrpcStatus::from_code).collect();
        let found = (0..17).filter(|code| some.contain(GrpcStatus::from_code(*code).unwrap()));
        assert_eq!(found.collect::<Vec<_>>(), [0, 7, 16]);
        assert!(!some.is_empty() && GrpcStatuses::default().is_empty());
    }
}

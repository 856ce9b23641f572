//! `Date` header of responses.

use std::cell::{Cell, RefCell};
use std::time::{Duration, SystemTime};

use http::HeaderValue;

use weir_limiter::timestamp::Timestamp;

/// Length of a date such as `Sun, 06 Nov 1994 08:49:37 GMT`.
const LENGTH: usize = 29;

/// A worker's `Date` header (RFC 9110 section 6.6.1), formatted once per second.
#[derive(Debug)]
pub(super) struct DateHeader {
    second: Cell<u64>,
    text: Cell<[u8; LENGTH]>,
    value: RefCell<HeaderValue>,
}

impl DateHeader {
    pub(super) fn new(now: Timestamp) -> Self {
        let date = Self {
            second: Cell::new(u64::MAX),
            text: Cell::new([b' '; LENGTH]),
            value: RefCell::new(HeaderValue::from_static("")),
        };
        date.renew(now);
        date
    }

    /// Updates the text if a new second has begun.
    pub(super) fn renew(&self, now: Timestamp) {
        let second = now.as_secs();
        if self.second.replace(second) == second {
            return;
        }
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        let date = httpdate::fmt_http_date(time);
        if let (Ok(text), Ok(value)) = (date.as_bytes().try_into(), HeaderValue::try_from(&date)) {
            self.text.set(text);
            self.value.replace(value);
        }
    }

    /// Returns the value, which is shared and not copied.
    pub(super) fn value(&self) -> HeaderValue {
        self.value.borrow().clone()
    }

    /// Writes the header line.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"date: ");
        out.extend_from_slice(&self.text.get());
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(date: &DateHeader) -> String {
        let mut out = Vec::new();
        date.write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn date_header_follows_the_current_second() {
        let at = |nanos| Timestamp::from_nanos(nanos);
        let date = DateHeader::new(at(784_111_777_999_999_999));
        assert_eq!(written(&date), "date: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
        date.renew(at(784_111_778_000_000_000));
        assert_eq!(written(&date), "date: Sun, 06 Nov 1994 08:49:38 GMT\r\n");
        date.renew(at(u64::MAX));
        assert_eq!(written(&date), "date: Sun, 21 Jul 2554 23:34:33 GMT\r\n");
    }
}

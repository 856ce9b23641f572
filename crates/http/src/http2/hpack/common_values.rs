//! Values that many messages have, so that they need no memory in any table, nor a reference count.

use http::HeaderValue;

const LEN: usize = 35;

const TEXTS: [&str; LEN] = [
    "*/*",
    "0",
    "1",
    "application/grpc",
    "application/grpc+proto",
    "application/javascript",
    "application/json",
    "application/json; charset=utf-8",
    "application/octet-stream",
    "application/x-protobuf",
    "application/x-www-form-urlencoded",
    "br",
    "bytes",
    "deflate",
    "false",
    "gzip",
    "gzip, br",
    "gzip, deflate",
    "gzip, deflate, br",
    "gzip, deflate, br, zstd",
    "gzip,deflate",
    "http",
    "https",
    "identity",
    "identity,deflate,gzip",
    "max-age=0",
    "no-cache",
    "nosniff",
    "text/html",
    "text/html; charset=utf-8",
    "text/plain",
    "text/plain; charset=utf-8",
    "trailers",
    "true",
    "zstd",
];

/// For each hash of a value: its index, or `LEN`. No two values have the same hash.
const INDICES: [u8; 128] = {
    let mut indices = [LEN as u8; 128];
    let mut index = 0;
    while index < LEN {
        let hash = hash(TEXTS[index].as_bytes());
        assert!(indices[hash] as usize == LEN, "the hash is perfect");
        indices[hash] = index as u8;
        index += 1;
    }
    indices
};

/// Perfect hash of the values: the coefficients were found by trial.
const fn hash(value: &[u8]) -> usize {
    match value {
        [] => 0,
        [first, ..] => (value.len() + 123 * *first as usize + 3 * value[value.len() - 1] as usize) % 128,
    }
}

/// Returns `value` without allocating, if it is one of the common ones.
#[inline]
pub(super) fn find(value: &[u8]) -> Option<HeaderValue> {
    let text = *TEXTS.get(usize::from(INDICES[hash(value)]))?;
    (text.as_bytes() == value).then(|| HeaderValue::from_static(text))
}

#[cfg(test)]
mod tests;

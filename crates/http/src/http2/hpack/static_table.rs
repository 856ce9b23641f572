//! The static table (RFC 7541, appendix A).

use std::array;
use std::sync::LazyLock;

use super::field::Name;
use super::table::DecodedEntry;

/// Number of entries. The dynamic table begins after them.
pub(super) const LEN: usize = 61;

/// Names and values of all entries. The first has index 1.
const FIELDS: [(&str, &str); LEN] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// Indices that the encoder uses without a search.
pub(super) mod index {
    pub(in super::super) const METHOD: usize = 2;
    pub(in super::super) const METHOD_POST: usize = 3;
    pub(in super::super) const PATH: usize = 4;
    pub(in super::super) const PATH_INDEX_HTML: usize = 5;
    pub(in super::super) const SCHEME: usize = 6;
    pub(in super::super) const SCHEME_HTTPS: usize = 7;
    pub(in super::super) const STATUS: usize = 8;
    pub(in super::super) const ACCEPT_ENCODING: usize = 16;
}

static ENTRIES: LazyLock<[DecodedEntry; LEN]> = LazyLock::new(|| {
    array::from_fn(|index| {
        let (name, value) = FIELDS[index];
        DecodedEntry::new(Name::parse(name.as_bytes()), value.as_bytes())
    })
});

/// Returns the entry with `index`, which begins at 1.
#[inline]
pub(super) fn get(index: usize) -> Option<&'static DecodedEntry> {
    ENTRIES.get(index.wrapping_sub(1))
}

/// For each hash of a name: the first index with that name, or 0. No two names have the same hash.
const INDICES: [u8; 256] = {
    let mut indices = [0; 256];
    let mut index = LEN;
    while index > 0 {
        let hash = hash(FIELDS[index - 1].0.as_bytes()) as usize;
        assert!(
            indices[hash] == 0 || indices[hash] as usize == index + 1,
            "entries with the same name are neighbours"
        );
        indices[hash] = index as u8;
        index -= 1;
    }
    indices
};

/// Perfect hash of the names in the table: the coefficients were found by trial.
const fn hash(name: &[u8]) -> u8 {
    match name {
        [] => 0,
        [first, ..] => (name.len() as u8)
            .wrapping_add(first.wrapping_mul(10))
            .wrapping_add(name[name.len() - 1].wrapping_mul(4)),
    }
}

/// Returns the first index with `name`.
#[inline]
pub(super) fn find(name: &[u8]) -> Option<usize> {
    let index = usize::from(INDICES[usize::from(hash(name))]);
    (index > 0 && FIELDS[index - 1].0.as_bytes() == name).then_some(index)
}

#[cfg(test)]
mod tests;

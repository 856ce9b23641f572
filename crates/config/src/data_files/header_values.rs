//! Lists of header values, one per line.

use super::members::random_secret;
use super::{DataFileError, DataFileKind};
use weir_policy::rules::value_list::ValueList;

/// Maximum size in bytes, for about two million API keys.
const MAX_SIZE: u64 = 64 << 20;

/// Values, one per line, without surrounding space; empty lines and lines that begin with `#` are ignored.
pub(crate) const VALUES: DataFileKind<ValueList> =
    DataFileKind { name: "list of values", max_size: MAX_SIZE, parse };

fn parse(content: Vec<u8>) -> Result<ValueList, Vec<DataFileError>> {
    let text = super::decode_utf8(content)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let secret = random_secret().map_err(|error| vec![DataFileError::for_file(error)])?;
    // A `#` later in the line may be part of the value.
    let values = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(ValueList::new(values.map(str::as_bytes), secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_list_skips_comments_and_empty_lines() {
        let list = parse(b"\xef\xbb\xbf# customers\nabc#1\r\n\n  two words \t\n#abc".to_vec()).unwrap();
        for inside in ["abc#1", "two words"] {
            assert!(list.contains(inside.as_bytes()), "{inside}");
        }
        for outside in ["", "abc", "#abc", "# customers", "two", " two words "] {
            assert!(!list.contains(outside.as_bytes()), "{outside}");
        }
        assert!(parse(b"\n# none\n".to_vec()).unwrap().is_empty());
        assert_eq!(parse(b"ok\n\xff\n".to_vec()).unwrap_err()[0].position, Some((2, 1)));
    }
}

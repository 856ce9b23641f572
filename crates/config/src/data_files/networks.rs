//! Lists of networks, one per line.

use super::{DataFileError, DataFileKind, truncate_errors};
use crate::parse;
use weir_policy::identify::cidr::Ranges;

/// Maximum size in bytes, for about four million networks.
const MAX_SIZE: u64 = 64 << 20;

/// Networks and addresses, one per line; `#` begins a comment, and empty lines are ignored.
pub(crate) const NETWORKS: DataFileKind<Ranges> =
    DataFileKind { name: "list of networks", max_size: MAX_SIZE, parse };

fn parse(content: Vec<u8>) -> Result<Ranges, Vec<DataFileError>> {
    let text = super::decode_utf8(content)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut networks = Vec::new();
    let mut flaws = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let entry = line.split('#').next().unwrap_or_default().trim();
        if entry.is_empty() {
            continue;
        }
        match parse::network(entry) {
            Ok(network) => networks.push(network),
            Err(error) => {
                let indent = line.chars().take_while(|letter| letter.is_whitespace()).count();
                flaws.push(DataFileError::at_position(index + 1, indent + 1, error));
            }
        }
    }
    if flaws.is_empty() { Ok(networks.into_iter().collect()) } else { Err(truncate_errors(flaws)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Ranges, Vec<DataFileError>> {
        parse(text.as_bytes().to_vec())
    }

    #[test]
    fn network_list_skips_comments_and_empty_lines() {
        let list =
            read("\u{feff}# bad people\n10.0.0.0/8\r\n\n  192.0.2.7 # one of them\n2001:db8::/32").unwrap();
        for inside in ["10.1.2.3", "192.0.2.7", "2001:db8::1"] {
            assert!(list.contains(inside.parse().unwrap()), "{inside}");
        }
        assert!(!list.contains("192.0.2.8".parse().unwrap()));
        assert!(read("").unwrap().is_empty() && read("# none\n").unwrap().is_empty());
    }

    #[test]
    fn invalid_networks_are_reported_up_to_a_maximum() {
        let flaws = read("10.0.0.0/8\n  nonsense # why\n10.0.0.1/8\n").unwrap_err();
        assert_eq!(flaws.iter().map(|flaw| flaw.position.unwrap()).collect::<Vec<_>>(), [(2, 3), (3, 1)]);
        assert!(flaws[0].error.message.ends_with("got \"nonsense\""));
        assert_eq!(read(&"x\n".repeat(1000)).unwrap_err().len(), 20);
    }

    #[test]
    fn non_utf8_network_list_is_reported_with_line() {
        let flaws = parse(b"10.0.0.0/8\n\xff\xfe".to_vec()).unwrap_err();
        assert_eq!(flaws[0].position, Some((2, 1)));
    }
}

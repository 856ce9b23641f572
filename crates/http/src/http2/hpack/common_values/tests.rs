use super::{TEXTS, find};

#[test]
fn every_common_value_is_found() {
    for text in TEXTS {
        assert_eq!(find(text.as_bytes()).unwrap(), text);
    }
}

#[test]
fn other_values_are_not_found() {
    for text in ["", "2", "gzip2", "application/grpc-web", "Trailers"] {
        assert_eq!(find(text.as_bytes()), None, "{text}");
    }
}

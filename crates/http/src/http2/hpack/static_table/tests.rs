use super::super::field::HeaderField;
use super::{FIELDS, LEN, find, get};

#[test]
fn every_name_is_found_at_its_first_index() {
    for (name, _) in FIELDS {
        let first = FIELDS.iter().position(|(other, _)| *other == name).unwrap() + 1;
        assert_eq!(find(name.as_bytes()), Some(first), "{name}");
    }
}

#[test]
fn other_names_are_not_found() {
    for name in ["", ":", "x-request-id", "accepts", ":protocol", "dat", "Accept"] {
        assert_eq!(find(name.as_bytes()), None, "{name}");
    }
}

#[test]
fn only_the_empty_authority_is_no_authority() {
    for (index, (name, value)) in (1..).zip(FIELDS) {
        let entry = get(index).unwrap();
        assert_eq!(entry.size(), name.len() + value.len() + 32);
        assert_eq!(entry.name().as_bytes(), name.as_bytes());
        assert_eq!(entry.field() == HeaderField::OtherAuthority, name == ":authority", "{name}");
    }
}

#[test]
fn indices_outside_the_table_have_no_entry() {
    assert!(get(0).is_none());
    assert!(get(LEN + 1).is_none());
}

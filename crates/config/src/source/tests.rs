use super::*;

fn environment(name: &str) -> Option<String> {
    match name {
        "ONE" => Some("1".to_owned()),
        "EMPTY" => Some(String::new()),
        "DOLLAR" => Some("${ONE}".to_owned()),
        _ => None,
    }
}

fn expand_text(text: &str) -> String {
    expand_references(text, &environment).unwrap().text
}

#[test]
fn variables_are_substituted_in_text() {
    for (text, value) in [
        ("${ONE}", "1"),
        ("a${ONE}b${ONE}", "a1b1"),
        ("${NONE:-two}", "two"),
        ("${NONE:-}", ""),
        ("${EMPTY:-two}", "two"),
        ("${EMPTY}", ""),
        ("${ONE:-two}", "1"),
        ("${NONE:-a:-b}", "a:-b"),
        ("$${ONE}", "${ONE}"),
        ("a$${ONE}${ONE}", "a${ONE}1"),
        ("$ONE $$ $", "$ONE $$ $"),
        ("~\\.php$", "~\\.php$"),
    ] {
        assert_eq!(expand_text(text), value, "{text}");
    }
}

#[test]
fn variable_values_are_not_expanded_again() {
    assert_eq!(expand_text("${DOLLAR}"), "${ONE}");
}

#[test]
fn single_variable_reference_is_recognised() {
    let is_whole = |text: &str| expand_references(text, &environment).unwrap().is_single_reference;
    assert!(is_whole("${ONE}") && is_whole("${NONE:-x}"));
    for text in ["${ONE}${ONE}", "${EMPTY}${ONE}", " ${ONE}", "${ONE} ", "$${ONE}", "${ONE}s"] {
        assert!(!is_whole(text), "{text}");
    }
}

#[test]
fn invalid_variable_references_are_rejected() {
    let fault = |text: &str| expand_references(text, &environment).unwrap_err().message;
    assert_eq!(fault("${NONE}"), "environment variable `NONE` is not set");
    assert_eq!(fault("a ${ONE"), "`${` without `}` in \"a ${ONE\"");
    for text in ["${}", "${1}", "${a-b}", "${ ONE }", "${:-x}", "${ONE:+x}", "${NONE:-${ONE}}"] {
        assert!(expand_references(text, &environment).is_err(), "{text}");
    }
}

#[test]
fn process_environment_variables_are_read() {
    assert!(environment_variable("PATH").is_some());
    assert_eq!(environment_variable("WEIR_TEST_SURELY_NOT_SET"), None);
}

#[test]
fn config_file_above_size_limit_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.yaml");
    let max_size = usize::try_from(MAX_CONFIG_FILE_SIZE).unwrap();
    fs::write(&path, vec![b'#'; max_size]).unwrap();
    assert_eq!(read_text(&path).unwrap().len(), max_size);
    fs::write(&path, vec![b'#'; max_size + 1]).unwrap();
    assert_eq!(read_text(&path).unwrap_err().message, "larger than 1 MiB");
}

#[test]
fn config_file_symlink_loop_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.yaml");
    std::os::unix::fs::symlink(&path, &path).unwrap();
    assert!(read_text(&path).is_err());
}

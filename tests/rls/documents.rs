//! Loading of documents, and the text of the errors.

use std::fs;
use std::path::Path;

use weir_rls::document::DomainDocument;
use weir_rls::rules::DescriptorRules;

use crate::fixture::RlsFixture;

/// The first line of each file is the expected error after `# `; `\n` stands for a line break.
#[test]
fn load_errors_have_the_text_of_envoyproxy_ratelimit() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("rls/load_errors");
    let mut seen = 0;
    for file in fs::read_dir(directory).unwrap() {
        let path = file.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let expected = text.lines().next().unwrap().strip_prefix("# ").unwrap().replace("\\n", "\n");
        let found =
            DescriptorRules::from_yaml([("config.file", text.as_str())], false).unwrap_err().to_string();
        let found = found.strip_prefix("config.file: ").unwrap();
        // For syntax errors only the position is compared, since each parser has its own wording.
        let is_it = expected.strip_suffix('…').map_or(found == expected, |start| found.starts_with(start));
        assert!(is_it, "{}:\n  expected {expected}\n  found    {found}", path.display());
        seen += 1;
    }
    assert!(seen >= 30, "{seen}");
}

#[test]
fn domain_in_two_files_is_rejected_unless_merged() {
    let files = || {
        let file = |key| format!("{{domain: d, descriptors: [{{key: {key}, rate_limit: {{unit: day}}}}]}}");
        [("config.b", file("b")), ("config.a", file("a"))]
    };
    let load = |merge| {
        let files = files();
        DescriptorRules::from_yaml(files.iter().map(|(name, text)| (*name, text.as_str())), merge)
    };
    let refused = load(false).unwrap_err().to_string();
    assert_eq!(refused, "config.b: duplicate domain 'd' in config file");
    let merged = load(true).unwrap().dump();
    assert_eq!(merged.lines().count(), 2);
    assert!(merged.starts_with("d.a: unit=DAY requests_per_unit=0, shadow_mode: false, quota_mode: false\n"));
}

#[test]
fn duplicates_are_found_across_merged_files() {
    let text = "{domain: d, descriptors: [{key: a, value: b}]}";
    let refused = DescriptorRules::from_yaml([("1", text), ("2", text)], true).unwrap_err().to_string();
    assert_eq!(refused, "2: duplicate descriptor composite key 'd.a_b'");
}

#[test]
fn one_invalid_file_rejects_all_files() {
    let good = "{domain: a, descriptors: []}";
    assert!(DescriptorRules::from_yaml([("1", good), ("2", "{domain: ''}")], false).is_err());
    assert!(!DescriptorRules::from_yaml([("1", good)], false).unwrap().is_empty());
}

#[test]
fn numbers_booleans_and_dates_keep_their_text_as_values() {
    let text = "domain: 7\ndescriptors:\n- {key: 0x1F, value: yes}\n- {key: a, value: 2024-01-01}\n\
                - {key: b, value: 10.0.0.1}\n- {key: c, value: 1_000}\n- {key: d, value: ~}";
    let document = DomainDocument::from_yaml("f", text).unwrap();
    let found: Vec<_> =
        document.descriptors.iter().map(|node| (node.key.as_str(), node.value.as_str())).collect();
    assert_eq!(document.domain, "7");
    assert_eq!(found, [("0x1F", "yes"), ("a", "2024-01-01"), ("b", "10.0.0.1"), ("c", "1_000"), ("d", "")]);
}

#[test]
fn documents_that_envoyproxy_ratelimit_accepts_load() {
    let text = "name: dumped\ndomain: d\ndescriptors:\n- key: a\n  rate_limit: null\n- key: b\n  value: ''\n  \
                rate_limit: {unit: SeConD, requests_per_unit: 0x10, replaces: []}\n- key: c\n  rate_limit: \
                {unlimited: on}\n  descriptors: ~\n  metadata: {free: [1.5, {keys: true}]}\n---\nunknown: {";
    let document = DomainDocument::from_yaml("f", text).unwrap();
    assert_eq!(document.descriptors.len(), 3);
    assert_eq!(document.descriptors[1].rate_limit.as_ref().unwrap().requests_per_unit, 16);
    let metadata = document.descriptors[2].metadata.clone().unwrap();
    assert_eq!(serde_json::to_string(&metadata).unwrap(), r#"{"free":[1.5,{"keys":true}]}"#);
    assert!(DescriptorRules::from_documents([("f", document)], false).is_ok());
}

#[test]
fn last_of_duplicate_keys_applies() {
    let text = "{domain: a, domain: d, descriptors: [{unknown: 1}], descriptors: [{key: a}]}";
    let document = DomainDocument::from_yaml("f", text).unwrap();
    assert_eq!((document.domain.as_str(), document.descriptors[0].key.as_str()), ("d", "a"));
}

#[test]
fn yaml_aliases_and_merge_keys_are_expanded() {
    let desk = RlsFixture::new(
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: &ten {unit: day, requests_per_unit: 10}\n\
         - key: b\n  rate_limit: *ten\n- key: c\n  rate_limit: {<<: *ten, requests_per_unit: 5}",
    );
    assert_eq!(["a=1", "b=1", "c=1"].map(|entries| desk.limit(entries)), [Some(10), Some(10), Some(5)]);
}

#[test]
fn documents_that_exhaust_memory_or_stack_are_rejected() {
    let mut bomb = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1]\n".to_owned();
    for level in 1..12 {
        let aliases = vec![format!("*a{}", level - 1); 8].join(", ");
        bomb += &format!("a{level}: &a{level} [{aliases}]\n");
    }
    let mut deep = "a0: &a0 [1]\n".to_owned();
    for level in 1..200 {
        deep += &format!("a{level}: &a{level} [*a{}]\n", level - 1);
    }
    let nested = format!("a: {}{}", "[".repeat(100_000), "]".repeat(100_000));
    for (text, problem) in [(bomb, "excessive aliasing"), (deep, "max depth"), (nested, "max depth")] {
        let refused = DomainDocument::from_yaml("f", &text).unwrap_err().to_string();
        assert!(refused.contains(problem), "{refused}");
    }
}

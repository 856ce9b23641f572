use std::fs;
use std::path::Path;

use super::*;

/// Each file is a seed or an input that a fuzzer found. All of their prefixes of up to 64 bytes are run, too.
#[test]
fn fuzz_corpus_violates_no_invariant() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz"));
    for (name, target) in TARGETS {
        let seeds = fs::read_dir(root.join("corpus").join(name)).unwrap();
        let seeds: Vec<_> = seeds.map(|entry| entry.unwrap().path()).collect();
        assert!(!seeds.is_empty(), "no seeds for {name}");
        for seed in seeds {
            let seed = fs::read(seed).unwrap();
            target(&seed);
            (0..seed.len().min(64)).for_each(|end| target(&seed[..end]));
        }
        let binary = fs::read_to_string(root.join("fuzz_targets").join(format!("{name}.rs"))).unwrap();
        assert!(binary.contains(&format!("weir_fuzz_targets::{name}(data)")), "{name}");
        let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} is in no binary");
    }
}

/// A target that accepts every input would find no errors.
#[test]
fn fuzz_target_detects_a_violated_invariant() {
    let broken = std::panic::catch_unwind(|| paths::assert_normalised("/a/../b"));
    assert!(broken.is_err());
}

//! Ways in which configuration files are replaced in practice, and how they disappear.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use crate::support::{Weir, config, get, wait};

const NO_RULES: &str = "rules: []";
const DENY_ALL: &str = "rules: [{ name: no, action: deny }]";

fn until_status(weir: &Weir, status: u16) {
    wait::until_true("the new rules", || get(weir.address(), "/").status == status);
}

#[test]
fn file_written_in_place_is_reloaded() {
    let weir = Weir::start(&config("echo", NO_RULES));
    fs::write(weir.file(), config("echo", DENY_ALL)).unwrap();
    until_status(&weir, 403);
}

#[test]
fn a_half_written_file_is_never_applied() {
    let weir = Weir::start(&config("echo", DENY_ALL));
    // Every prefix is valid YAML, but only the last line makes it a valid configuration.
    let next = "rules: []\nworkers: 1\nadmin: { address: 127.0.0.1:0 }\nlisteners: [{ address: 127.0.0.1:0, name: inbound }]\nupstream: { address: echo }\n";
    let (before, rejected) = (weir.generation(), weir.rejected_reloads());
    let mut file = fs::File::create(weir.file()).unwrap();
    let pieces = next.split_inclusive('\n').collect::<Vec<_>>();
    let (last, first) = pieces.split_last().unwrap();
    for piece in first {
        file.write_all(piece.as_bytes()).unwrap();
        wait::throughout(Duration::from_millis(150), || assert_eq!(get(weir.address(), "/").status, 403));
    }
    wait::until_true("the half file to be noticed", || weir.rejected_reloads() > rejected);
    assert_eq!((get(weir.address(), "/").status, weir.generation()), (403, before));
    file.write_all(last.as_bytes()).unwrap();
    drop(file);
    until_status(&weir, 200);
}

/// Publishes `yaml` as a kubelet does: in a new directory, with `..data` as a symbolic link to it.
fn publish_configmap(mount: &Path, version: &str, yaml: &str) {
    let directory = mount.join(format!("..{version}"));
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("weir.yaml"), yaml).unwrap();
    symlink(format!("..{version}"), mount.join("..data_tmp")).unwrap();
    fs::rename(mount.join("..data_tmp"), mount.join("..data")).unwrap();
}

#[test]
fn configmap_swap_is_reloaded_every_time() {
    let mount = tempfile::tempdir().unwrap();
    publish_configmap(mount.path(), "2026_01", &config("echo", NO_RULES));
    symlink("..data/weir.yaml", mount.path().join("weir.yaml")).unwrap();
    let weir = Weir::start_file(&mount.path().join("weir.yaml"));
    assert_eq!(get(weir.address(), "/").status, 200);
    for (version, rules, status) in
        [("2026_02", DENY_ALL, 403), ("2026_03", NO_RULES, 200), ("2026_04", DENY_ALL, 403)]
    {
        publish_configmap(mount.path(), version, &config("echo", rules));
        until_status(&weir, status);
    }
    fs::remove_dir_all(mount.path().join("..2026_01")).unwrap();
    fs::remove_dir_all(mount.path().join("..2026_03")).unwrap();
    publish_configmap(mount.path(), "2026_05", &config("echo", NO_RULES));
    until_status(&weir, 200);
}

#[test]
fn deleted_file_keeps_the_configuration_until_it_is_restored() {
    let weir = Weir::start(&config("echo", DENY_ALL));
    fs::remove_file(weir.file()).unwrap();
    wait::throughout(Duration::from_millis(700), || {
        assert_eq!(get(weir.address(), "/").status, 403);
        assert_eq!(weir.admin_get("/ready").status, 200);
    });
    fs::write(weir.file(), config("echo", NO_RULES)).unwrap();
    until_status(&weir, 200);
}

#[test]
fn the_last_of_many_writes_wins() {
    let weir = Weir::start(&config("echo", NO_RULES));
    for n in 0..30 {
        let rules = format!("rules: [{{ name: no-{n}, action: deny }}]");
        weir.replace_file(&config("echo", &rules));
    }
    weir.replace_file(&config("echo", "rules: [{ name: last, action: deny, match: { path: /last } }]"));
    wait::until_true("the last rules", || {
        get(weir.address(), "/").status == 200 && get(weir.address(), "/last").status == 403
    });
    // No older version may be applied afterwards.
    wait::throughout(Duration::from_millis(700), || assert_eq!(get(weir.address(), "/last").status, 403));
}

#[test]
fn sighup_reloads_the_file() {
    // A link to another directory: changes of its target cause no events in the watched directory.
    let (here, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let target = elsewhere.path().join("real.yaml");
    fs::write(&target, config("echo", NO_RULES)).unwrap();
    let link = here.path().join("weir.yaml");
    symlink(&target, &link).unwrap();
    let mut weir = Weir::start_file(&link);
    fs::write(&target, config("echo", DENY_ALL)).unwrap();
    weir.signal("HUP");
    until_status(&weir, 403);
    weir.signal("HUP");
    wait::throughout(Duration::from_millis(200), || assert_eq!(get(weir.address(), "/").status, 403));
    assert!(weir.is_running());
}

#[test]
fn unhandled_signals_are_ignored() {
    let mut weir = Weir::start(&config("echo", NO_RULES));
    for signal in ["USR1", "PIPE"] {
        weir.signal(signal);
    }
    wait::throughout(Duration::from_millis(200), || assert_eq!(get(weir.address(), "/").status, 200));
    assert!(weir.is_running());
}

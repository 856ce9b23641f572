//! Ways in which configuration files are replaced in practice, and how they disappear.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use crate::support::{Weir, config, get, wait};

const OPEN: &str = "rules: []";
const DENY: &str = "rules: [{ name: no, action: deny }]";

fn until_status(weir: &Weir, status: u16) {
    wait::until_true("the new rules", || get(weir.address(), "/").status == status);
}

#[test]
fn a_file_written_in_place_is_read_again() {
    let weir = Weir::start(&config("echo", OPEN));
    fs::write(weir.file(), config("echo", DENY)).unwrap();
    until_status(&weir, 403);
}

#[test]
fn a_half_written_file_is_never_applied() {
    let weir = Weir::start(&config("echo", DENY));
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
fn publish(mount: &Path, version: &str, yaml: &str) {
    let directory = mount.join(format!("..{version}"));
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("weir.yaml"), yaml).unwrap();
    symlink(format!("..{version}"), mount.join("..data_tmp")).unwrap();
    fs::rename(mount.join("..data_tmp"), mount.join("..data")).unwrap();
}

#[test]
fn a_configmap_swap_is_noticed_every_time() {
    let mount = tempfile::tempdir().unwrap();
    publish(mount.path(), "2026_01", &config("echo", OPEN));
    symlink("..data/weir.yaml", mount.path().join("weir.yaml")).unwrap();
    let weir = Weir::start_file(&mount.path().join("weir.yaml"));
    assert_eq!(get(weir.address(), "/").status, 200);
    for (version, rules, status) in [("2026_02", DENY, 403), ("2026_03", OPEN, 200), ("2026_04", DENY, 403)] {
        publish(mount.path(), version, &config("echo", rules));
        until_status(&weir, status);
    }
    fs::remove_dir_all(mount.path().join("..2026_01")).unwrap();
    fs::remove_dir_all(mount.path().join("..2026_03")).unwrap();
    publish(mount.path(), "2026_05", &config("echo", OPEN));
    until_status(&weir, 200);
}

#[test]
fn a_deleted_file_changes_nothing_until_it_is_back() {
    let weir = Weir::start(&config("echo", DENY));
    fs::remove_file(weir.file()).unwrap();
    wait::throughout(Duration::from_millis(700), || {
        assert_eq!(get(weir.address(), "/").status, 403);
        assert_eq!(weir.admin_get("/ready").status, 200);
    });
    fs::write(weir.file(), config("echo", OPEN)).unwrap();
    until_status(&weir, 200);
}

#[test]
fn the_last_of_many_writes_wins() {
    let weir = Weir::start(&config("echo", OPEN));
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
fn sighup_reads_the_file_again() {
    // A link to another directory: changes of its target cause no events in the watched directory.
    let (here, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let target = elsewhere.path().join("real.yaml");
    fs::write(&target, config("echo", OPEN)).unwrap();
    let link = here.path().join("weir.yaml");
    symlink(&target, &link).unwrap();
    let mut weir = Weir::start_file(&link);
    fs::write(&target, config("echo", DENY)).unwrap();
    weir.signal("HUP");
    until_status(&weir, 403);
    weir.signal("HUP");
    wait::throughout(Duration::from_millis(200), || assert_eq!(get(weir.address(), "/").status, 403));
    assert!(weir.is_running());
}

#[test]
fn signals_of_no_concern_are_ignored() {
    let mut weir = Weir::start(&config("echo", OPEN));
    for signal in ["USR1", "PIPE"] {
        weir.signal(signal);
    }
    wait::throughout(Duration::from_millis(200), || assert_eq!(get(weir.address(), "/").status, 200));
    assert!(weir.is_running());
}

//! A configuration in a folder, whose files are merged.

use std::fs;

use crate::support::weir::run;
use crate::support::{Weir, get, wait};

const BASE: &str = "listeners: { address: 127.0.0.1:0, name: inbound }\nadmin: { address: 127.0.0.1:0 }\n\
                    upstream: echo\nworkers: 1\n";

fn denying(name: &str) -> String {
    format!("rules: [{{ name: {name}, match: {{ path: /{name} }}, action: deny }}]\n")
}

#[test]
fn files_of_a_folder_are_added_changed_and_removed_while_it_runs() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        // As editors and package managers do: a file appears complete.
        let hidden = directory.path().join(".next");
        fs::write(&hidden, text).unwrap();
        fs::rename(&hidden, directory.path().join(name)).unwrap();
    };
    write("00-base.yaml", BASE);
    write("10-a.yaml", &denying("a"));
    let weir = Weir::start_file(directory.path());
    let status = |path: &str| get(weir.address(), path).status;
    assert_eq!((status("/a"), status("/b")), (403, 200));
    write("20-b.yaml", &denying("b"));
    wait::until_true("the added file", || status("/b") == 403);
    assert_eq!(status("/a"), 403);

    write("30-a.yaml", &denying("a"));
    wait::until_true("the rejection", || weir.rejected_reloads() == 1.0);
    let problems = weir.admin_json("/server_info")["config"]["last_reload"]["problems"].to_string();
    assert!(
        problems.contains("30-a.yaml:1:17: rules[2].name: duplicate rule name `a` (first in"),
        "{problems}"
    );
    assert!(problems.contains("10-a.yaml:1)"), "{problems}");
    fs::remove_file(directory.path().join("30-a.yaml")).unwrap();
    write("10-a.yaml", "rules: []\n");
    wait::until_true("the changed file", || status("/a") == 200);
    assert_eq!(status("/b"), 403);
    let shown = weir.admin_get("/config_dump").body.text();
    assert!(shown.contains("# 10-a.yaml") && shown.contains("# 20-b.yaml"), "{shown}");
}

#[test]
fn commands_take_a_folder() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("00-base.yaml"), BASE).unwrap();
    fs::write(
        directory.path().join("10-list.yaml"),
        "rules: { name: no, match: { client_ip: { file: list.txt } }, action: deny }\n",
    )
    .unwrap();
    fs::write(directory.path().join("list.txt"), "192.0.2.1\n").unwrap();
    let folder = directory.path().to_str().unwrap();
    let checked = run(["check", folder]);
    assert!(checked.status.success(), "{checked:?}");
    let explained = run(["explain", "-c", folder, "--client", "192.0.2.1", "GET", "http://a/"]);
    assert!(String::from_utf8_lossy(&explained.stdout).contains("403"), "{explained:?}");
    fs::write(directory.path().join("20-mistake.yaml"), "rules: { name: a, limit: 1/x }\n").unwrap();
    let checked = run(["check", folder]);
    let printed = String::from_utf8_lossy(&checked.stdout);
    assert!(printed.contains("20-mistake.yaml:1:26: rules[1].limit: unknown unit"), "{checked:?}");
}

//! Many replacements in a row, with clients that must not notice.

use std::sync::atomic::Ordering;

use crate::support::load::{self, Counts, SetOnDrop};
use crate::support::{Weir, run_concurrently, wait};
use crate::upgrades::echo_server;

/// Replacements of the test.
const REPLACEMENTS: usize = 20;
/// Units of the limit, fewer than the clients ask for.
const LIMIT: u64 = 1000;

#[test]
fn clients_do_not_notice_replacements_and_no_unit_is_given_twice() {
    let websockets = echo_server();
    let weir = Weir::start(&format!(
        "listeners: [{{ address: 127.0.0.1:0, name: main }}]\nadmin: {{ address: 127.0.0.1:0 }}\nworkers: 2\n\
         upstreams:\n  - {{ name: chat, address: \"{websockets}\", match: {{ path: /chat }} }}\n  \
         - {{ name: main, address: echo }}\n\
         rules: [{{ name: all, match: {{ path: /limited }}, limit: {LIMIT}/h, algorithm: fixed_window }}]\n"
    ));
    let (address, counts) = (weir.address(), Counts::default());
    let replace = || {
        let _end = SetOnDrop(&counts.is_over);
        for _ in 0..REPLACEMENTS {
            weir.replace();
        }
        wait::until_true("the end of the limit", || counts.rejected.load(Ordering::SeqCst) > 0);
    };
    run_concurrently(1 + load::KINDS, |index| match index {
        0 => replace(),
        kind => load::use_kind(kind - 1, &|| address, &counts),
    });
    let (admitted, rejected) =
        (counts.admitted.load(Ordering::SeqCst), counts.rejected.load(Ordering::SeqCst));
    assert_eq!(admitted, LIMIT, "rejected {rejected}");
}

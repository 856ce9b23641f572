//! Sections of the help of `kubectl weir`.

use super::Sections;

const EXIT: &[(&str, &str)] = &[
    ("0", "success for all pods"),
    ("1", "kubectl has failed, there are no pods, or the command has failed for one of them"),
    ("2", "bad usage"),
];

pub(super) const SECTIONS: &[Sections] = &[
    Sections {
        command: "kubectl-weir",
        examples: &[
            ("kubectl weir top deploy/shop", "watch all pods of a Deployment in one view"),
            ("kubectl weir limits -l app=shop -A", "rules and decisions of each pod with a label"),
            ("kubectl weir ban deploy/shop 203.0.113.7 --for 10m", "reject a client in every pod"),
        ],
        exit: EXIT,
        files: &[],
    },
    Sections {
        command: "kubectl-weir top",
        examples: &[
            ("kubectl weir top deploy/shop -n web", "all pods of a Deployment in one view"),
            ("kubectl weir top -l app=shop --once", "print one view, for scripts"),
        ],
        exit: EXIT,
        files: &[],
    },
    Sections {
        command: "kubectl-weir limits",
        examples: &[
            ("kubectl weir limits pod/shop-0", "of one pod"),
            ("kubectl weir limits deploy/shop --format json", "of all pods, for programs"),
        ],
        exit: EXIT,
        files: &[],
    },
    Sections {
        command: "kubectl-weir explain",
        examples: &[
            (
                "kubectl weir explain deploy/shop GET /cart -H 'x-forwarded-for: 203.0.113.7'",
                "what each pod would do with this request",
            ),
            ("kubectl weir explain -l app=shop POST /login --client 203.0.113.7", "of pods with a label"),
        ],
        exit: EXIT,
        files: &[],
    },
    Sections {
        command: "kubectl-weir ban",
        examples: &[
            ("kubectl weir ban deploy/shop 203.0.113.7 --for 10m", "in all rules that count by client_ip"),
            ("kubectl weir ban deploy/shop 'header.x-api-key=8c1f' --rule per-key --for 1h", "in one rule"),
        ],
        exit: EXIT,
        files: &[],
    },
    Sections {
        command: "kubectl-weir unban",
        examples: &[("kubectl weir unban deploy/shop 203.0.113.7", "end the ban of a client in every pod")],
        exit: EXIT,
        files: &[],
    },
    Sections {
        command: "kubectl-weir boost",
        examples: &[
            (
                "kubectl weir boost deploy/shop 203.0.113.7 --rule per-ip --factor 3 --for 24h",
                "three times the limit until tomorrow",
            ),
            ("kubectl weir boost deploy/shop 203.0.113.7 --rule per-ip --factor 1", "end it"),
        ],
        exit: EXIT,
        files: &[],
    },
];

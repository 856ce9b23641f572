//! Places of rules in groups of which a request needs room in one (`any_of`).

/// Maximum number of groups.
pub const MAX_GROUPS: usize = 256;

/// Maximum number of rules in a group.
pub const MAX_GROUP_RULES: usize = 8;

/// Place of a rule in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupPlace {
    /// The group, below [`MAX_GROUPS`].
    pub group: u8,
    /// Position of the rule in the group, below [`MAX_GROUP_RULES`].
    pub position: u8,
}

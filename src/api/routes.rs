//! The routes of a listener. Operators may have a listener of their own; then the other one, for
//! clients, does not have their routes.

/// The paths of operators, each with all below it.
const OPERATORS: [&str; 3] = ["/admin", "/metrics", "/ui"];

/// The routes that the listener of a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routes {
    /// All of them.
    All,
    /// None of the operators'.
    Clients,
}

impl Routes {
    /// Returns whether there are routes for this path.
    pub(super) fn have(self, path: &str) -> bool {
        let below = |root: &str| {
            path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self == Self::All || !OPERATORS.iter().any(|root| below(root))
    }
}

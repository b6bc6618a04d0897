//! Bugs seeded on purpose, so that the proof can show that it finds them.
//!
//! Only a build with the feature `seeded-bugs`, which is never shipped, has them; the variable
//! `SEEDED_BUG` names the active one. Bugs of the scripts replace lines; bugs of the code ask
//! [`Bug::is_in`]. Each was once a fault of this service or another.

/// A bug of the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Embedded: answers that a crash may undo are given before the disk has them.
    AnswerBeforeCommit,
    /// Embedded: leases follow the wall clock.
    WallClock,
    /// A lease that expired before its client was told has its whole TTL in the answer.
    WholeTtl,
    /// Embedded: leases end after three quarters of their TTL.
    EndsEarly,
    /// Embedded: TTLs are whole seconds, rounded up.
    WholeSeconds,
    /// A wait is answered with no while the store may still grant it.
    NoBeforeTheLastAnswer,
    /// A request whose client is gone stays in line.
    GoneStays,
    /// A grant that no client received is not undone.
    NothingTakenBack,
    /// Redlock: half of the nodes are a majority.
    HalfIsEnough,
    /// Redlock: the time spent on the nodes is not counted.
    NoTimeCheck,
    /// Redlock: a fencing token is answered that only one node knows.
    NoWriteBack,
    /// Redlock: votes for an attempt that failed stay.
    VotesStay,
}

impl Bug {
    /// Returns true if the bug is active.
    #[cfg(not(feature = "seeded-bugs"))]
    pub(crate) const fn is_in(self) -> bool {
        false
    }

    /// Returns true if the bug is active.
    #[cfg(feature = "seeded-bugs")]
    pub(crate) fn is_in(self) -> bool {
        imp::seeded().is_some_and(|name| *name == format!("{self:?}"))
    }
}

/// The source of a script as it is run.
#[cfg(not(feature = "seeded-bugs"))]
pub(crate) const fn script(source: &'static str) -> &'static str {
    source
}

#[cfg(feature = "seeded-bugs")]
pub(crate) use imp::script;

#[cfg(feature = "seeded-bugs")]
mod imp {
    use std::io::Write;
    use std::sync::LazyLock;

    /// The bugs of the scripts.
    const OF_SCRIPTS: &str = include_str!("seeded/scripts.txt");

    static SEEDED: LazyLock<Option<String>> = LazyLock::new(|| {
        let name = std::env::var("SEEDED_BUG").ok()?;
        // A closed standard error is no reason to end.
        let _ = writeln!(std::io::stderr(), "this build has the bug {name}");
        Some(name)
    });

    pub(super) fn seeded() -> Option<&'static String> {
        SEEDED.as_ref()
    }

    /// The source of a script, with the active bug.
    pub(crate) fn script(source: &'static str) -> &'static str {
        let Some(name) = seeded() else { return source };
        let of_name = bugs().filter(|(bug, ..)| bug == name);
        let wrong =
            of_name.fold(source.to_owned(), |text, (_, right, wrong)| text.replace(&right, &wrong));
        if wrong == source { source } else { wrong.leak() }
    }

    /// The bugs of the scripts: name, right lines and wrong lines.
    fn bugs() -> impl Iterator<Item = (&'static str, String, String)> {
        OF_SCRIPTS.split("\n\n").skip(1).map(|block| {
            let (name, lines) = block.split_once('\n').unwrap_or((block, ""));
            let of = |mark| lines.lines().filter_map(move |line: &str| line.strip_prefix(mark));
            (name, of('-').collect::<Vec<_>>().join("\n"), of('+').collect::<Vec<_>>().join("\n"))
        })
    }
}

//! Bugs that are put in on purpose, so that the proof can show that it finds them.
//!
//! Only a build with the feature `seeded-bugs` has them, and it is never shipped; there the
//! variable `SEEDED_BUG` names the one that is in. Those of the scripts are other lines in place of
//! the right ones, those of the code ask [`Bug::is_in`]. Each was a fault of this service once, or
//! of another.

/// A bug of the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Embedded: answers that a crash may undo are given before the disk has them.
    AnswerBeforeCommit,
    /// Embedded: leases follow the wall clock.
    WallClock,
    /// A lease that was over before its client heard of it is told with its whole TTL.
    WholeTtl,
    /// Embedded: leases end 20 ms early.
    EndsEarly,
    /// Embedded: TTLs are whole seconds, rounded up.
    WholeSeconds,
    /// A wait that is over is told so while the store may still grant it.
    NoBeforeTheLastAnswer,
    /// A request that is gone stays in line.
    GoneStays,
    /// What nobody received is not taken back.
    NothingTakenBack,
    /// Redlock: half of the nodes are a majority.
    HalfIsEnough,
    /// Redlock: the time that the nodes took is not counted.
    NoTimeCheck,
    /// Redlock: a fencing token is told that one node alone knows.
    NoWriteBack,
    /// Redlock: votes for an attempt that failed stay.
    VotesStay,
}

impl Bug {
    /// Whether the bug is in.
    #[cfg(not(feature = "seeded-bugs"))]
    pub(crate) const fn is_in(self) -> bool {
        false
    }

    /// Whether the bug is in.
    #[cfg(feature = "seeded-bugs")]
    pub(crate) fn is_in(self) -> bool {
        imp::seeded().is_some_and(|name| *name == format!("{self:?}"))
    }
}

/// A script as it is run.
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
        // Nobody may be there to read it, and that is no reason to end.
        let _ = writeln!(std::io::stderr(), "this build has the bug {name}");
        Some(name)
    });

    pub(super) fn seeded() -> Option<&'static String> {
        SEEDED.as_ref()
    }

    /// A script as it is run, with the bug that is in.
    pub(crate) fn script(source: &'static str) -> &'static str {
        let Some(name) = seeded() else { return source };
        let of_name = bugs().filter(|(bug, ..)| bug == name);
        let wrong =
            of_name.fold(source.to_owned(), |text, (_, right, wrong)| text.replace(&right, &wrong));
        if wrong == source { source } else { wrong.leak() }
    }

    /// Each bug of a script: its name, the right lines, and what stands in their place.
    fn bugs() -> impl Iterator<Item = (&'static str, String, String)> {
        OF_SCRIPTS.split("\n\n").skip(1).map(|block| {
            let (name, lines) = block.split_once('\n').unwrap_or((block, ""));
            let of = |mark| lines.lines().filter_map(move |line: &str| line.strip_prefix(mark));
            (name, of('-').collect::<Vec<_>>().join("\n"), of('+').collect::<Vec<_>>().join("\n"))
        })
    }
}

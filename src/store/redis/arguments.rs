//! The arguments of the scripts. A field has the name of the script's local, in the script's order;
//! the deadline, where a script has one, comes before them (`node.rs`).

use std::borrow::Cow;

/// The arguments of the scripts of one verb.
macro_rules! arguments {
    ($(#[$doc:meta])+ $name:ident { $($field:ident),+ }) => {
        $(#[$doc])+
        pub(super) struct $name<'a> {
            $(pub(super) $field: Cow<'a, str>),+
        }

        impl $name<'_> {
            /// The arguments in the script's order.
            pub(super) fn all(&self) -> Vec<&str> {
                vec![$(&*self.$field),+]
            }

            #[cfg(test)]
            const NAMES: &'static [&'static str] = &[$(stringify!($field)),+];
        }
    };
}

arguments! {
    /// A claim.
    ClaimArguments {
        token, ttl, its_owner, floor, believable, kept, max_hold, slots, units, named, instance, joins,
        keep, stood
    }
}

impl ClaimArguments<'_> {
    /// The number of those that `try_acquire.lua` needs.
    pub(super) const PLAIN: usize = 6;
}

arguments! {
    /// The refresh of a lease.
    RefreshArguments {
        token, ttl, max_hold, named, asks, default_ttl, floor, believable
    }
}

impl RefreshArguments<'_> {
    /// The number of those that `refresh.lua` needs.
    pub(super) const PLAIN: usize = 5;
}

arguments! {
    /// The release of a lease or a place.
    ReleaseArguments { token, named, unheard, instance, returned, would_end, keep }
}

arguments! {
    /// A forced release.
    ForceReleaseArguments { named, keep }
}

arguments! {
    /// A look at a key.
    InspectArguments { asked, most, most_leases }
}

#[cfg(test)]
mod tests {
    use super::{
        ClaimArguments, ForceReleaseArguments, InspectArguments, RefreshArguments, ReleaseArguments,
    };
    use crate::store::redis::script::{
        FORCE_RELEASE, INSPECT, REFRESH, REFRESH_SHARE, RELEASE, Script, TRY_ACQUIRE, WAIT_TURN,
    };

    /// The names that a script gives to its arguments.
    fn names(script: &Script) -> Vec<&str> {
        let (before, _) = script
            .source()
            .split_once(" = unpack(ARGV)")
            .or_else(|| script.source().split_once(" =\n  unpack(ARGV)"))
            .unwrap();
        let (_, names) = before.rsplit_once("local ").unwrap();
        names.split(',').map(str::trim).filter(|name| *name != "not_after").collect()
    }

    #[test]
    fn a_script_names_its_arguments_as_the_service_does() {
        for (script, fields) in [
            (&TRY_ACQUIRE, &ClaimArguments::NAMES[..ClaimArguments::PLAIN]),
            (&WAIT_TURN, ClaimArguments::NAMES),
            (&REFRESH, &RefreshArguments::NAMES[..RefreshArguments::PLAIN]),
            (&REFRESH_SHARE, RefreshArguments::NAMES),
            (&RELEASE, ReleaseArguments::NAMES),
            (&FORCE_RELEASE, ForceReleaseArguments::NAMES),
            (&INSPECT, InspectArguments::NAMES),
        ] {
            assert_eq!(names(script), fields, "{}", script.verb());
        }
    }
}

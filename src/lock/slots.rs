//! The number of leases that may hold a key together: 1 for a lock, more for a semaphore, no limit
//! for readers.

/// With how many in all a lease shares its key at most, itself included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slots(u16);

impl Slots {
    /// An exclusive lease.
    pub const ALONE: Self = Self(1);

    /// The most that a client may name: the work for one key is bounded, and an answer has room for
    /// all its leases.
    pub const MOST: Self = Self(1_000);

    /// As many as there may be: a reader. Beyond [`Slots::MOST`], so that it is told from it.
    pub const SHARED: Self = Self(1_001);

    /// The slots that a client names, or a store has noted; `None` if it is out of bounds.
    pub fn from_number(number: u64) -> Option<Self> {
        let slots = Self(u16::try_from(number).ok()?);
        (Self::ALONE..=Self::SHARED).contains(&slots).then_some(slots)
    }

    /// The number in a store's record.
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The most holders that it allows.
    pub fn limit(self) -> u16 {
        self.0.min(Self::MOST.0)
    }

    /// Returns true if the lease may be one of so many holders.
    pub fn allows(self, holders: usize) -> bool {
        holders <= usize::from(self.limit())
    }

    /// Returns true for an exclusive lease.
    pub fn is_alone(self) -> bool {
        self == Self::ALONE
    }

    /// Returns true if the lease gets a slot of its own.
    pub fn is_numbered(self) -> bool {
        !self.is_alone() && self != Self::SHARED
    }
}

/// The part of a key that a lease has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// With how many it shares the key at most.
    pub slots: Slots,
    /// The number from 1 that no other lease of the key has, if it is numbered.
    pub slot: Option<u16>,
}

impl Share {
    /// The share of an exclusive lease.
    pub const ALONE: Self = Self { slots: Slots::ALONE, slot: None };
}

impl Default for Share {
    fn default() -> Self {
        Self::ALONE
    }
}

#[cfg(test)]
mod tests {
    use super::Slots;

    fn slots(number: u64) -> Slots {
        Slots::from_number(number).unwrap()
    }

    #[test]
    fn slots_have_bounds_and_count_the_lease_itself() {
        assert_eq!(Slots::from_number(0), None);
        assert_eq!(Slots::from_number(1_002), None);
        assert!(slots(3).allows(3) && !slots(3).allows(4));
        assert!(Slots::ALONE.allows(1) && !Slots::ALONE.allows(2));
        assert!(Slots::SHARED.allows(1_000) && !Slots::SHARED.allows(1_001));
        assert_eq!((slots(1), slots(1_000)), (Slots::ALONE, Slots::MOST));
    }
}

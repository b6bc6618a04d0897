//! The slots of a key that leases share, and the units of them that each takes: 1 slot for a lock,
//! more for a semaphore, no limit for readers.

/// The most units that a key has beside a lease, its own included: as many leases if each has one.
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

    /// The most units that it allows.
    pub fn limit(self) -> u16 {
        self.0.min(Self::MOST.0)
    }

    /// Returns true if leases with so many units may hold the key, this one included.
    pub fn allows(self, units: u64) -> bool {
        units <= u64::from(self.limit())
    }

    /// Returns true for an exclusive lease.
    pub fn is_alone(self) -> bool {
        self == Self::ALONE
    }

    /// Returns true if a lease may take so many units; a reader takes one.
    pub fn has(self, units: u16) -> bool {
        let most = if self == Self::SHARED { 1 } else { self.0 };
        (1..=most).contains(&units)
    }
}

/// The part of a key that a lease has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The most units that it allows on the key.
    pub slots: Slots,
    /// Its own units, no more than its slots.
    pub units: u16,
    /// The number from 1 that no other lease of the key has, if it is numbered.
    pub slot: Option<u16>,
}

impl Share {
    /// The share of an exclusive lease.
    pub const ALONE: Self = Self { slots: Slots::ALONE, units: 1, slot: None };

    /// Returns true if the lease gets a slot of its own: one unit of a semaphore.
    pub fn is_numbered(self) -> bool {
        !self.slots.is_alone() && self.slots != Slots::SHARED && self.units == 1
    }
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

    #[test]
    fn a_lease_takes_a_unit_at_least_and_no_more_than_its_slots() {
        assert!(slots(3).has(1) && slots(3).has(3));
        assert!(!slots(3).has(0) && !slots(3).has(4));
        assert!(Slots::ALONE.has(1) && !Slots::ALONE.has(2));
        assert!(Slots::SHARED.has(1) && !Slots::SHARED.has(2));
    }
}

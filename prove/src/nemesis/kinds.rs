//! The kinds of faults: their names in a history, the stores on which they are struck, and what they
//! strike.

use crate::servers::{Site, Store};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    InstanceStop,       // An instance is stopped and goes on.
    InstanceStarved,    // An instance runs for a fifth of the time.
    InstanceMemory,     // An instance gets next to no more memory, and may end for that.
    InstanceKill,       // An instance is killed and restarted.
    InstanceTerm,       // An instance is told to end and restarted.
    InstanceRoll,       // All instances are told to end and restarted, one after another.
    LogClosed,          // Nobody is left to read the log of an instance.
    LogFull,            // The log of an instance is on a full disk.
    LogUnread,          // The log of an instance is a pipe that fills up.
    InstanceTime,       // The wall clock of an instance is ahead or behind.
    Flood,              // Hundreds of connections that never end their question.
    Front(Net),         // Something happens to the network between clients and an instance.
    Link(Net),          // Something happens to the network between an instance and a server.
    LinkWriteFails,     // Writes of an instance to a server fail with an errno.
    LinkReadFails,      // Reads of an instance from a server fail with an errno.
    DiskSlow,           // Syncs of the embedded store take long.
    DiskFailsOnce,      // One sync of it fails.
    DiskFails,          // All syncs of it fail.
    DiskFull,           // Its disk is full.
    FileMoved,          // Its file is moved away and back.
    DirectoryMoved,     // Its directory is moved away and back.
    FileReplaced,       // A copy is put in place of its file.
    FileDeleted,        // Its file is deleted, and it is restarted.
    FileRolledBack,     // It is restarted with an earlier copy of its file.
    FileDamaged,        // It is started with a damaged file, and then with the right one.
    SecondProcess,      // A second process is started on its directory.
    ServerStop,         // A server is stopped and goes on.
    ServerKill,         // A server is killed and restarted.
    ServerTerm,         // A server is told to end and restarted.
    ServerRoll,         // All servers are told to end and restarted, one after another.
    ServersKill,        // All servers are killed at once and restarted.
    ClientsKilled,      // A server closes the connections of all clients.
    ScriptsFlushed,     // A server forgets its scripts.
    Flushed,            // A server forgets everything.
    Sleep,              // A server is busy.
    Pause,              // A server lets clients wait.
    ServerDiskSlow,     // Syncs of a server take long.
    ServerDiskFails,    // A sync of a server fails.
    ServerDiskFull,     // The disk of a server is full.
    ServerLogTruncated, // A server is killed, and comes back without the end of its log.
    ClockForward,       // The clock of a server is ahead.
    ClockBack,          // The clock of a server is behind.
    MemoryFull,         // A server has as much in memory as it may.
    Failover,           // A replica takes over by order.
    SentinelKill,       // A sentinel is killed and restarted.
    SlotsMoved,         // Slots of the Cluster move to another node and back.
    ListChange, // Instances are restarted one by one with a fourth node, and later without it.
}

/// What happens to a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Net {
    Delay,        // It is slow.
    Stalled,      // It keeps answers, and lets all of them through at its end.
    Held,         // It holds everything back and then lets it through, so that answers come late.
    Swallow,      // It swallows everything.
    SwallowThere, // It swallows questions.
    SwallowBack,  // It swallows answers.
    Cut,          // It resets all connections.
    HalfClose,    // It ends the direction to the server of all connections.
    /// It holds questions back, and delivers them after the connections were ended for those who asked.
    HungUp,
    AnswerLost, // It loses the answers to some questions of one kind.
}

/// What a fault strikes: no two faults of a round strike the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Instance(usize),
    Instances,
    Client(usize), // The network between clients and an instance.
    Link(usize),   // The network between instances and a server.
    Socket(usize), // What an instance does with its own network, or its clock.
    Disk,
    File,
    Server(usize),
    Servers,
    Data(usize), // What a server knows.
    Sentinel(usize),
}

/// A target by chance.
type Aim = fn(&mut fastrand::Rng, &Site) -> Target;

const INSTANCE: Aim = |chance, site| Target::Instance(chance.usize(..site.instances.len()));
const INSTANCES: Aim = |_, _| Target::Instances;
const FRONT: Aim = |chance, site| Target::Client(chance.usize(..site.instances.len()));
const LINK: Aim = |chance, site| Target::Link(chance.usize(..site.links.len()));
const SOCKET: Aim = |chance, site| Target::Socket(chance.usize(..site.instances.len()));
const DISK: Aim = |_, _| Target::Disk;
const FILE: Aim = |_, _| Target::File;
const SERVER: Aim = |chance, site| Target::Server(chance.usize(..site.servers.len()));
const SERVERS: Aim = |_, _| Target::Servers;
const DATA: Aim = |chance, site| Target::Data(chance.usize(..site.servers.len()));
const SENTINEL: Aim = |chance, site| Target::Sentinel(chance.usize(..site.sentinels.len()));

/// Whether a store has faults of a row.
type On = fn(Store) -> bool;

const ALL: On = |_| true;
const EMBEDDED: On = |store| store == Store::Embedded;
const SERVED: On = |store| store != Store::Embedded;
/// Servers that keep their data on disk.
const SAFE: On = |store| SERVED(store) && store != Store::Redlock;
const REPLICAS: On = Store::fails_over;
const CLUSTERS: On = |store| matches!(store, Store::Cluster | Store::ClusterReplicas);
const REDLOCK: On = |store| store == Store::Redlock;

/// The kinds by the stores on which they are struck, and by what they strike there.
const KINDS: &[(On, Aim, &[Kind])] = {
    use Kind::*;
    use Net::*;
    &[
        (ALL, INSTANCE, &[InstanceStop, InstanceStarved, InstanceMemory, InstanceKill]),
        (ALL, INSTANCE, &[InstanceTerm, LogClosed, LogFull, LogUnread]),
        (ALL, INSTANCES, &[InstanceRoll]),
        (ALL, SOCKET, &[InstanceTime]),
        (ALL, FRONT, &[Flood, Front(Delay), Front(Stalled), Front(Cut), Front(HalfClose)]),
        (ALL, FRONT, &[Front(Swallow), Front(SwallowThere), Front(SwallowBack), Front(AnswerLost)]),
        (EMBEDDED, DISK, &[DiskSlow, DiskFailsOnce, DiskFails, DiskFull]),
        (EMBEDDED, FILE, &[FileMoved, DirectoryMoved, FileReplaced, FileDeleted]),
        (EMBEDDED, FILE, &[FileRolledBack, FileDamaged, SecondProcess]),
        (SERVED, LINK, &[Link(Delay), Link(Held), Link(Cut), Link(HalfClose), Link(HungUp)]),
        (SERVED, LINK, &[Link(Swallow), Link(SwallowThere), Link(SwallowBack), Link(AnswerLost)]),
        (SERVED, SOCKET, &[LinkWriteFails, LinkReadFails]),
        (SERVED, SERVER, &[ServerStop, ServerKill, ServerTerm]),
        (SERVED, DATA, &[ClientsKilled, ScriptsFlushed, Flushed, Sleep, Pause]),
        (SERVED, DATA, &[ClockForward, ClockBack, MemoryFull]),
        (SAFE, SERVER, &[ServerDiskSlow, ServerDiskFails, ServerDiskFull, ServerLogTruncated]),
        (REPLICAS, SERVERS, &[Failover]),
        (|store| store == Store::Sentinel, SENTINEL, &[SentinelKill]),
        (|store| store == Store::Cluster, SERVERS, &[SlotsMoved]),
        (|store| CLUSTERS(store) || REDLOCK(store), SERVERS, &[ServersKill]),
        (REDLOCK, SERVERS, &[ServerRoll]),
        (REDLOCK, INSTANCES, &[ListChange]),
    ]
};

impl Kind {
    /// Returns the kinds that are struck on a store.
    pub(crate) fn of(store: Store) -> Vec<Self> {
        KINDS.iter().filter(|row| row.0(store)).flat_map(|row| row.2).copied().collect()
    }

    /// Returns the kinds that are struck on a store in a run of this seed: either those by which clocks
    /// step or those by which data is lost, since fencing is not promised through both.
    pub(crate) fn of_run(store: Store, seed: u64) -> Vec<Self> {
        let mut kinds = Self::of(store);
        // A failover is a loss, and whatever lasts may cause one.
        let steady = store.fails_over() || seed & 1 == 1;
        let strange = store == Store::Embedded || store == Store::Redlock;
        kinds.retain(|kind| match kind {
            Self::ClockForward | Self::ClockBack => !steady,
            Self::InstanceTime => !steady || !strange,
            kind => steady || !kind.forgets(store),
        });
        kinds
    }

    pub(crate) fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars().filter(char::is_ascii_alphabetic) {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    }

    /// Returns whether the store may lose leases by it.
    pub(crate) fn forgets(self, store: Store) -> bool {
        match self {
            Self::FileDeleted | Self::FileRolledBack | Self::Flushed => true,
            Self::ClockForward | Self::ClockBack => true,
            Self::Failover | Self::ServerLogTruncated => true,
            Self::ServerKill | Self::ServerTerm | Self::ServersKill | Self::ServerRoll => {
                store == Store::Redlock
            }
            _ => false,
        }
    }

    /// Returns what it strikes, by chance.
    pub(crate) fn target(self, chance: &mut fastrand::Rng, site: &Site) -> Target {
        let row = KINDS.iter().find(|row| row.2.contains(&self));
        row.map_or(Target::Instances, |row| row.1(chance, site))
    }
}

impl Target {
    /// Returns its name in a history: `client` for the way of clients to an instance, `instance` for its
    /// process or its clock.
    pub(crate) fn name(self, kind: Kind) -> String {
        let named = match self {
            Self::Socket(number) if kind == Kind::InstanceTime => Self::Instance(number),
            target => target,
        };
        format!("{named:?}").to_lowercase().replace('(', "-").replace(')', "")
    }

    /// Returns whether two faults would be in each other's way.
    pub(crate) fn clashes(self, other: Self) -> bool {
        let ((part, number), (other, another)) = (self.part(), other.part());
        part == other && (number.is_none() || another.is_none() || number == another)
    }

    /// Returns what it is a part of, and the number of that part, or none for all of them.
    fn part(self) -> (&'static str, Option<usize>) {
        match self {
            Self::Instance(number) => ("instances", Some(number)),
            Self::Instances | Self::Disk | Self::File => ("instances", None),
            Self::Client(number) => ("clients", Some(number)),
            Self::Link(number) => ("links", Some(number)),
            Self::Socket(number) => ("sockets", Some(number)),
            Self::Server(number) | Self::Data(number) => ("servers", Some(number)),
            Self::Servers => ("servers", None),
            Self::Sentinel(number) => ("sentinels", Some(number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_in_small_letters() {
        assert_eq!(Kind::Front(Net::SwallowThere).name(), "front_swallow_there");
        assert_eq!(Target::Client(1).name(Kind::Flood), "client-1");
        assert_eq!(Target::Socket(0).name(Kind::InstanceTime), "instance-0");
    }
}

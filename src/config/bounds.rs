//! The bounds of the settings.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::config::{Config, Span};
use crate::lock::token::TokenMaker;

/// Longer deadlines would outlast the timeout of every client.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The bounds of `redlock.longest_lease`: nodes are checked several times in it, and wait for it.
const LONGEST_LEASE: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(86_400);

/// Two rounds of this have to end within a second.
const LONGEST_NODE_TIMEOUT: Duration = Duration::from_millis(400);

/// The least that hyper needs to read a head.
const LEAST_HEAD_BYTES: usize = 8_192;

/// More bytes than any request needs; each connection may cost as many.
const MOST_BYTES: usize = 1 << 20;

/// More of anything at a time than a machine could serve.
const MOST: usize = 10_000_000;

/// Longer than any connection or shutdown takes; beyond it timers would overflow.
const LONGEST: Duration = Duration::from_secs(86_400);

/// A setting, whether it is within its bounds, and the error if not.
pub(super) type Bound = (&'static str, bool, &'static str);

impl Config {
    /// All settings with bounds.
    pub(super) fn bounds(&self) -> Vec<Bound> {
        [self.listen_bounds(), self.time_bounds(), self.number_bounds(), self.store_bounds()]
            .concat()
    }

    fn listen_bounds(&self) -> Vec<Bound> {
        let (tls, places) = (&self.tls, [Some(&self.listen), self.admin_listen.as_ref()]);
        let secured = places.into_iter().flatten().any(|place| !place.is_unix());
        let twice = self.admin_listen.as_ref() == Some(&self.listen) && !self.listen.is_any_port();
        vec![
            ("admin_listen", !twice, "must not be the same as listen"),
            (
                "tls.certificate",
                tls.is_whole(),
                "and tls.key belong together: name both, or neither",
            ),
            ("tls.client_ca", !tls.has_only_authorities(), "needs tls.certificate and tls.key"),
            (
                "tls.certificate",
                secured || !tls.is_used(),
                "has no use on a unix socket: leave it out, or listen on an address",
            ),
        ]
    }

    fn time_bounds(&self) -> Vec<Bound> {
        let (ttl, limits) = (&self.ttl, &self.limits);
        let some = |span: Span| above_zero(span) && span.get() <= LONGEST;
        let within = (ttl.min.get()..=ttl.max.get()).contains(&ttl.default.get());
        vec![
            ("ttl.min", above_zero(ttl.min), "must be above 0"),
            ("ttl.max", ttl.max.get() >= ttl.min.get(), "must not be less than ttl.min"),
            ("ttl.max", ttl.max.get() <= Duration::from_secs(31_536_000), "must be a year at most"),
            ("ttl.default", within, "must be within ttl.min and ttl.max"),
            ("limits.head_time", some(limits.head_time), "must be above 0 and 24h at most"),
            ("limits.body_time", some(limits.body_time), "must be above 0 and 24h at most"),
            ("limits.idle_time", some(limits.idle_time), "must be above 0 and 24h at most"),
            ("limits.shutdown_time", limits.shutdown_time.get() <= LONGEST, "must be 24h at most"),
            (
                "limits.max_wait",
                limits.max_wait.get() <= Duration::from_secs(3_600),
                "must be an hour at most",
            ),
            (
                "limits.position_kept",
                limits.position_kept.get() <= Duration::from_secs(60),
                "must be 60s at most",
            ),
        ]
    }

    fn number_bounds(&self) -> Vec<Bound> {
        let (limits, quotas) = (&self.limits, &self.quotas);
        let some = |number: usize| (1..=MOST).contains(&number);
        let head = (LEAST_HEAD_BYTES..=MOST_BYTES).contains(&limits.head_bytes);
        let body = (1..=MOST_BYTES).contains(&limits.body_bytes);
        let mut bounds = vec![
            ("limits.connections", some(limits.connections), "must be 1 to 10000000"),
            (
                "limits.connections_per_address",
                some(limits.connections_per_address),
                "must be 1 to 10000000",
            ),
            ("limits.head_bytes", head, "must be 8192 to 1048576"),
            ("limits.body_bytes", body, "must be 1 to 1048576"),
        ];
        for (path, number) in [
            ("limits.waiters_per_key", limits.waiters_per_key),
            ("limits.waiters_per_instance", limits.waiters_per_instance),
            ("limits.waited_keys_per_instance", limits.waited_keys_per_instance),
            ("limits.hold_streams", limits.hold_streams),
            ("limits.lists", limits.lists),
            ("quotas.leases", quotas.leases),
            ("quotas.waiters", quotas.waiters),
            ("quotas.streams", quotas.streams),
        ] {
            bounds.push((path, number <= MOST, "must be 10000000 at most"));
        }
        bounds
    }

    fn store_bounds(&self) -> Vec<Bound> {
        let redis = &self.redis;
        let timeout = |span: Span| above_zero(span) && span.get() <= LONGEST_TIMEOUT;
        let longest_lease = self.redlock.longest_lease.get();
        let node_timeout = self.redlock.node_timeout;
        let node_timeout = above_zero(node_timeout) && node_timeout.get() <= LONGEST_NODE_TIMEOUT;
        let plain = !redis.key_prefix.chars().any(char::is_control);
        let maker = TokenMaker::new(&redis.token_prefix);
        let embedded = timeout(self.embedded.command_timeout);
        vec![
            ("embedded.command_timeout", embedded, "must be 1ms to 10s"),
            ("redis.command_timeout", timeout(redis.command_timeout), "must be 1ms to 10s"),
            ("redis.connect_timeout", timeout(redis.connect_timeout), "must be 1ms to 10s"),
            ("redis.min_replicas", redis.min_replicas <= 100, "must be 100 at most"),
            ("redlock.node_timeout", node_timeout, "must be 1ms to 400ms"),
            ("redlock.longest_lease", LONGEST_LEASE.contains(&longest_lease), "must be 1s to 24h"),
            (
                "redlock.longest_lease",
                !self.is_redlock() || longest_lease >= self.ttl.default.get(),
                "must not be less than ttl.default",
            ),
            ("redis.key_prefix", plain, "must not have control characters"),
            (
                "redis.token_prefix",
                maker.is_ok(),
                "must be at most 92 characters of A-Z a-z 0-9 . _ ~ + / = -",
            ),
        ]
    }
}

fn above_zero(span: Span) -> bool {
    !span.get().is_zero()
}

//! The bounds of the settings.

use std::path::PathBuf;

use crate::config::{Config, Span};
use crate::lock::time::parse_duration;

/// More bytes than any request needs; each connection may cost as many.
const MOST_BYTES: usize = 1 << 20;

/// More of anything at a time than a machine could serve.
const MOST: usize = 10_000_000;

/// A setting, whether it is within its bounds, and the error if not.
pub(super) type Bound = (&'static str, bool, String);

impl Config {
    /// All settings with bounds.
    pub(super) fn bounds(&self) -> Vec<Bound> {
        [self.times(), self.numbers(), self.rules()].concat()
    }

    fn times(&self) -> Vec<Bound> {
        let (ttl, limits, redis, redlock) = (&self.ttl, &self.limits, &self.redis, &self.redlock);
        vec![
            time("ttl.min", ttl.min, "1ms", "8760h"),
            time("ttl.max", ttl.max, "1ms", "8760h"),
            // Longer than any connection or shutdown takes; beyond it timers would overflow.
            time("limits.head_time", limits.head_time, "1ms", "24h"),
            time("limits.body_time", limits.body_time, "1ms", "24h"),
            time("limits.idle_time", limits.idle_time, "1ms", "24h"),
            time("limits.shutdown_time", limits.shutdown_time, "0s", "24h"),
            time("limits.max_wait", limits.max_wait, "0s", "1h"),
            time("limits.position_kept", limits.position_kept, "0s", "60s"),
            // Longer ones would outlast the timeout of every client.
            time("embedded.command_timeout", self.embedded.command_timeout, "1ms", "10s"),
            time("redis.command_timeout", redis.command_timeout, "1ms", "10s"),
            time("redis.connect_timeout", redis.connect_timeout, "1ms", "10s"),
            // Two rounds of this have to end within a second; LONGEST_ATTEMPT is the same.
            time("redlock.node_timeout", redlock.node_timeout, "1ms", "400ms"),
            // Nodes are checked several times in it, and wait for it.
            time("redlock.longest_lease", redlock.longest_lease, "1s", "24h"),
        ]
    }

    fn numbers(&self) -> Vec<Bound> {
        let (limits, quotas) = (&self.limits, &self.quotas);
        let replicas = usize::try_from(self.redis.min_replicas).unwrap_or(usize::MAX);
        [
            ("limits.connections", limits.connections, 1, MOST),
            ("limits.connections_per_address", limits.connections_per_address, 1, MOST),
            ("limits.head_bytes", limits.head_bytes, 8_192, MOST_BYTES), // hyper needs as many.
            ("limits.body_bytes", limits.body_bytes, 1, MOST_BYTES),
            ("limits.waiters_per_key", limits.waiters_per_key, 0, MOST),
            ("limits.waiters_per_instance", limits.waiters_per_instance, 0, MOST),
            ("limits.waited_keys_per_instance", limits.waited_keys_per_instance, 0, MOST),
            ("limits.hold_streams", limits.hold_streams, 0, MOST),
            ("limits.lists", limits.lists, 0, MOST),
            ("quotas.leases", quotas.leases, 0, MOST),
            ("quotas.waiters", quotas.waiters, 0, MOST),
            ("quotas.streams", quotas.streams, 0, MOST),
            ("redis.min_replicas", replicas, 0, 100),
        ]
        .map(|(path, number, least, most)| {
            (path, (least..=most).contains(&number), format!("must be {least} to {most}"))
        })
        .into()
    }

    fn rules(&self) -> Vec<Bound> {
        let (tls, redis) = (&self.tls, &self.redis);
        let [least, most, usual] = [self.ttl.min, self.ttl.max, self.ttl.default].map(Span::get);
        let places = [Some(&self.listen), self.admin_listen.as_ref()];
        let on_network = places.into_iter().flatten().any(|place| !place.is_unix());
        let twice = self.admin_listen.as_ref() == Some(&self.listen) && !self.listen.is_any_port();
        let covered = !self.is_redlock() || self.redlock.longest_lease.get() >= usual;
        let replicated = !self.is_redlock() || redis.min_replicas == 0;
        let prefix = !redis.key_prefix.chars().any(char::is_control);
        let whole = tls.certificate.is_some() == tls.key.is_some();
        let shown = redis.tls.certificate.is_some() == redis.tls.key.is_some();
        let plain = "has no use without TLS: `store` has to begin with rediss";
        let secured = |file: &Option<PathBuf>| file.is_none() || self.store.is_secured();
        let signed = tls.client_ca.is_none() || tls.is_used();
        [
            ("admin_listen", !twice, "must not be the same as listen"),
            ("tls.certificate", whole, "and tls.key belong together: name both, or neither"),
            ("tls.client_ca", signed, "needs tls.certificate and tls.key"),
            (
                "tls.certificate",
                on_network || !tls.is_used(),
                "has no use on a unix socket: leave it out, or listen on an address",
            ),
            (
                "redis.tls.certificate",
                shown,
                "and redis.tls.key belong together: name both, or neither",
            ),
            ("redis.tls.ca", secured(&redis.tls.ca), plain),
            ("redis.tls.certificate", secured(&redis.tls.certificate), plain),
            ("ttl.max", most >= least, "must not be less than ttl.min"),
            ("ttl.default", (least..=most).contains(&usual), "must be within ttl.min and ttl.max"),
            ("redlock.longest_lease", covered, "must not be less than ttl.default"),
            (
                "redis.min_replicas",
                replicated,
                "has no use with Redlock: its nodes have no replicas",
            ),
            ("redis.key_prefix", prefix, "must not have control characters"),
        ]
        .map(|(path, fits, what)| (path, fits, what.to_owned()))
        .into()
    }
}

/// A time from `least` to `most`, which the error names as they are written here.
fn time(path: &'static str, span: Span, least: &str, most: &str) -> Bound {
    let [from, to] = [least, most].map(parse_duration);
    let fits = Some(span.get()) >= from && Some(span.get()) <= to;
    (path, fits, format!("must be {least} to {most}"))
}

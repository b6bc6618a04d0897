//! The place of a store in its URL: one Redis, the master that sentinels name, or a Cluster.
//!
//! The Redis client does not know the forms with several hosts. They are taken apart here into a
//! URL for each node, which the client parses and checks.

/// The common parts of the nodes' URLs.
#[derive(Clone)]
pub(super) struct Scheme {
    /// `redis` or `rediss`.
    name: &'static str,
    /// `user:password@`, or empty.
    login: String,
    /// The rest after host and port.
    path: String,
}

impl Scheme {
    /// The URL of a node: `address` is `host:port`.
    pub(super) fn url(&self, address: &str) -> String {
        let Self { name, login, path } = self;
        format!("{name}://{login}{}{path}", bracketed(address))
    }
}

pub(super) enum Place {
    /// One Redis, at the URL itself.
    Single,
    /// The master that these sentinels name.
    Sentinel(Sentinels),
    /// The Cluster of one of these addresses.
    Cluster { nodes: Scheme, seeds: Vec<String> },
}

/// The sentinels of a master.
pub(super) struct Sentinels {
    pub(super) master: String,
    /// The scheme of the nodes that they name.
    pub(super) nodes: Scheme,
    pub(super) sentinels: Scheme,
    pub(super) addresses: Vec<String>,
}

impl Place {
    /// Parses a URL with a Redis scheme; the error is one sentence.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").unwrap_or((url, ""));
        let (name, kind) = match scheme.split_once('-') {
            Some((name, kind)) => (if name == "rediss" { "rediss" } else { "redis" }, kind),
            None => return single(scheme, rest),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (login, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) => (format!("{login}@"), rest),
            None => (String::new(), rest),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let addresses = addresses(hosts)?;
        if kind == "cluster" {
            if !matches!(path, "" | "0") || !query.is_empty() {
                return Err("a Cluster has only database 0: remove what follows the hosts".into());
            }
            let nodes = Scheme { name, login, path: String::new() };
            return Ok(Self::Cluster { nodes, seeds: addresses });
        }
        let (master, database) = path.split_once('/').unwrap_or((path, "0"));
        if master.is_empty() {
            return Err(format!("name the master: {scheme}://host:port[,host:port...]/master"));
        }
        if database.parse::<u32>().is_err() {
            return Err("only the number of a database may follow the master's name".into());
        }
        let nodes = Scheme { name, login, path: format!("/{database}") };
        let sentinels = Scheme { name, login: sentinel_login(query)?, path: String::new() };
        Ok(Self::Sentinel(Sentinels { master: master.to_owned(), nodes, sentinels, addresses }))
    }
}

/// One Redis. The client takes what it does not know for nothing, and locks in database 0.
fn single(scheme: &str, rest: &str) -> Result<Place, String> {
    let Some((_, query)) = rest.split_once('?') else { return Ok(Place::Single) };
    if !scheme.contains("unix") {
        return Err(
            "nothing may follow `?`; the number of the database follows the port: /3".into()
        );
    }
    let is_known = |pair: &str| {
        ["db", "user", "pass"].contains(&pair.split_once('=').map_or("", |(name, _)| name))
    };
    if query.split('&').all(is_known) {
        return Ok(Place::Single);
    }
    Err("only db, user and pass may follow `?`".into())
}

/// The login of sentinels that require one: `sentinel_user` and `sentinel_password`.
fn sentinel_login(query: &str) -> Result<String, String> {
    let mut user = "";
    let mut password = None;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sentinel_user", text)) => user = text,
            Some(("sentinel_password", text)) => password = Some(text),
            _ => return Err("only sentinel_user and sentinel_password may follow `?`".into()),
        }
    }
    match password {
        Some(password) => Ok(format!("{user}:{password}@")),
        None if user.is_empty() => Ok(String::new()),
        None => Err("sentinel_user needs sentinel_password".into()),
    }
}

fn addresses(hosts: &str) -> Result<Vec<String>, String> {
    let whole = |address: &str| {
        let parts = address.rsplit_once(':');
        parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
    };
    match hosts.split(',').find(|address| !whole(address)) {
        Some(other) => Err(format!("`{other}` is not host:port")),
        None => Ok(hosts.split(',').map(|address| address.replace(['[', ']'], "")).collect()),
    }
}

/// An address with brackets around an IPv6 host.
fn bracketed(address: &str) -> String {
    match address.rsplit_once(':') {
        Some((host, port)) if host.contains(':') && !host.starts_with('[') => {
            format!("[{host}]:{port}")
        }
        _ => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Place, Sentinels};

    fn sentinels(url: &str) -> Sentinels {
        match Place::parse(url) {
            Ok(Place::Sentinel(sentinels)) => sentinels,
            _ => panic!("no sentinels: {url}"),
        }
    }

    #[test]
    fn the_login_of_the_nodes_is_not_that_of_the_sentinels() {
        let url = "redis-sentinel://shop:p%40ss@a:1,b:2/the-master/3";
        let found = sentinels(url);
        assert_eq!(found.master, "the-master");
        assert_eq!(found.addresses, ["a:1", "b:2"]);
        assert_eq!(found.nodes.url("c:4"), "redis://shop:p%40ss@c:4/3");
        assert_eq!(found.sentinels.url("a:1"), "redis://a:1");
        let found = sentinels("rediss-sentinel://a:1/m?sentinel_user=u&sentinel_password=p%3A");
        assert_eq!(found.nodes.url("::1:4"), "rediss://[::1]:4/0");
        assert_eq!(found.sentinels.url("a:1"), "rediss://u:p%3A@a:1");
        let found = sentinels("redis-sentinel://a:1/m?sentinel_password=p");
        assert_eq!(found.sentinels.url("a:1"), "redis://:p@a:1");
    }

    #[test]
    fn the_nodes_of_a_cluster_have_one_login() {
        let Ok(Place::Cluster { nodes, seeds }) = Place::parse("redis-cluster://:pw@a:1,[::1]:2/0")
        else {
            panic!("no Cluster");
        };
        assert_eq!(seeds, ["a:1", "::1:2"]);
        assert_eq!(nodes.url("::1:2"), "redis://:pw@[::1]:2");
    }

    #[test]
    fn a_fault_of_a_store_url_is_said() {
        for (url, said) in [
            ("redis-sentinel://a:1", "name the master"),
            ("redis-sentinel://a/m", "`a` is not host:port"),
            ("redis-sentinel://a:1,/m", "`` is not host:port"),
            ("redis-sentinel://a:1/m/x", "number of a database"),
            ("redis-sentinel://a:1/m?db=1", "may follow `?`"),
            ("redis-sentinel://a:1/m?sentinel_user=u", "needs sentinel_password"),
            ("redis-cluster://a:1/1", "only database 0"),
            ("redis-cluster://a:1,b:x", "`b:x` is not host:port"),
            ("redis-cluster://", "`` is not host:port"),
        ] {
            let told = Place::parse(url).err().unwrap_or_default();
            assert!(told.contains(said), "{url}: {told}");
        }
    }
}

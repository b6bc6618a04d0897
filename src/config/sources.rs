//! The layers of settings, merged.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::config::ConfigError;

/// Every setting with its default.
const DEFAULTS: &str = include_str!("../../config/lockkeeper.toml");

/// The prefix of all our variables.
const PREFIX: &str = "LOCKKEEPER_";

/// Variables that are not settings of the service: the settings file, and the options of the
/// command line as a client.
const OTHERS: &[&str] = &[
    "LOCKKEEPER_CONFIG",
    "LOCKKEEPER_URL",
    "LOCKKEEPER_API_KEY",
    "LOCKKEEPER_API_KEY_FILE",
    "LOCKKEEPER_TOKEN_PREFIX",
    "LOCKKEEPER_PLAIN_HTTP",
    "LOCKKEEPER_CA",
    "LOCKKEEPER_CERT",
    "LOCKKEEPER_CERT_KEY",
];

/// The lists of tables, which only a file can contain.
const LISTS: [&str; 2] = ["prefixes", "api_keys"];

/// The settings that a reload applies.
const LIVE: [&str; 2] = ["log.level", "api_keys"];

/// The most bytes of a settings file.
pub(crate) const MOST_OF_FILE: u64 = 4 << 20;

/// The text of a file of at most so many bytes: a wrong path, such as `/dev/zero`, may have no end.
pub(crate) fn read_text(path: &Path, most: u64) -> io::Result<String> {
    read_up_to(File::open(path)?, most)
}

/// Reads a text; one that is longer is an error.
pub(crate) fn read_up_to(source: impl Read, most: u64) -> io::Result<String> {
    let mut text = String::new();
    if source.take(most + 1).read_to_string(&mut text)? as u64 > most {
        return Err(io::Error::other(format!("it has more than {most} bytes")));
    }
    Ok(text)
}

/// The settings given as flags.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--listen`.
    pub listen: Option<String>,
    /// All values of `--store`.
    pub store: Vec<String>,
}

/// The settings, each with its origin.
#[derive(Debug)]
pub struct Sources {
    settings: Vec<Setting>,
}

#[derive(Debug)]
struct Setting {
    path: String,
    value: Value,
    origin: String,
}

impl Sources {
    /// Reads all settings.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for an unreadable file or an unknown setting.
    pub fn find(
        flags: &Flags,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let defaults: Table = DEFAULTS.parse().expect("the defaults are TOML: a test reads them");
        let lists = LISTS.map(|list| (list.to_owned(), Value::Array(Vec::new())));
        let defaults = leaves("", defaults).into_iter().chain(lists);
        let default = |(path, value)| Setting { path, value, origin: "default".to_owned() };
        let mut sources = Self { settings: defaults.map(default).collect() };
        if let Some(file) = &flags.config {
            sources.lay_file(file)?;
        }
        sources.lay_environment(environment)?;
        if let Some(listen) = &flags.listen {
            sources.lay("listen", Value::from(listen.as_str()), "--listen")?;
        }
        if !flags.store.is_empty() {
            sources.lay("store", Value::from(flags.store.clone()), "--store")?;
        }
        Ok(sources)
    }

    /// The settings as one table.
    pub(super) fn table(&self) -> Table {
        let mut table = Table::new();
        for Setting { path, value, .. } in &self.settings {
            let (sections, name) = path.rsplit_once('.').unwrap_or(("", path));
            let sections = sections.split('.').filter(|name| !name.is_empty());
            let section = sections.fold(&mut table, |table, name| {
                let section = table.entry(name).or_insert_with(|| Table::new().into());
                section.as_table_mut().expect("a section holds settings")
            });
            section.insert(name.to_owned(), value.clone());
        }
        table
    }

    /// An error about a setting, with its origin.
    pub(super) fn wrong(&self, path: &str, what: &str) -> ConfigError {
        let mut all = self.settings.iter();
        // A path into a list begins with its name: `api_keys[0].name`.
        let list = path.split(['[', '.']).next().unwrap_or(path);
        let setting = all.find(|setting| [path, list].contains(&setting.path.as_str()));
        let origin = setting.map(|setting| setting.origin.as_str());
        let what = what.replace("expected usize", "expected a whole number from 0 on");
        ConfigError(format!("`{path}` (from {}): {what}", origin.unwrap_or("nowhere")))
    }

    /// The names of the settings that have other values than `others`, and need a restart.
    pub(crate) fn waiting<'a>(&'a self, others: &Self) -> Vec<&'a str> {
        let pairs = self.settings.iter().zip(&others.settings);
        let changed = pairs.filter(|(one, other)| one.value != other.value);
        changed.map(|(one, _)| one.path.as_str()).filter(|path| !LIVE.contains(path)).collect()
    }

    /// The settings in force as a settings file with origins, without secrets.
    pub fn show(&self) -> String {
        let mut shown = String::new();
        let mut section = "";
        let (lists, settings): (Vec<_>, Vec<_>) =
            self.settings.iter().partition(|setting| setting.is_list());
        for Setting { path, value, origin } in settings {
            let (its_section, name) = path.rsplit_once('.').unwrap_or(("", path));
            if its_section != section {
                section = its_section;
                shown.push_str(&format!("\n[{section}]\n"));
            }
            shown.push_str(&format!(
                "{:<50} # {origin}\n",
                format!("{name} = {}", without_secrets(value))
            ));
        }
        for Setting { path, value, origin } in lists {
            let entries = value.as_array().into_iter().flatten();
            for entry in entries.filter_map(Value::as_table) {
                shown.push_str(&format!("\n[[{path}]] # {origin}\n"));
                for (name, value) in entry {
                    let secret = name == "sha256";
                    let value = if secret { "\"...\"".to_owned() } else { value.to_string() };
                    shown.push_str(&format!("{name} = {value}\n"));
                }
            }
        }
        shown
    }

    fn lay_file(&mut self, file: &Path) -> Result<(), ConfigError> {
        let origin = file.display().to_string();
        let text = read_text(file, MOST_OF_FILE)
            .map_err(|error| ConfigError(format!("cannot read {origin}: {error}")))?;
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            // Without the line itself, which may contain a password.
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            let what = error.message().replace('\n', ", ");
            ConfigError(format!("{origin} is not valid TOML in line {line}: {what}"))
        })?;
        for (path, value) in leaves("", table) {
            self.lay(&path, value, &origin)?;
        }
        Ok(())
    }

    fn lay_environment(
        &mut self,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(), ConfigError> {
        for (name, text) in environment {
            let Some(rest) = name.strip_prefix(PREFIX) else { continue };
            if OTHERS.contains(&name.as_str()) || is_service_link(rest, &text) {
                continue;
            }
            let is = |setting: &&mut Setting| variable(&setting.path) == name && !setting.is_list();
            let Some(setting) = self.settings.iter_mut().find(is) else {
                let detail = "is not a setting; `lockkeeper config` lists all";
                return Err(ConfigError(format!("the variable {name} {detail}")));
            };
            let wrong = |what| ConfigError(format!("the variable {name} must be {what}"));
            setting.value = match setting.value {
                Value::Integer(_) => {
                    Value::Integer(text.trim().parse().map_err(|_| wrong("a whole number"))?)
                }
                Value::Boolean(_) => {
                    Value::Boolean(text.trim().parse().map_err(|_| wrong("true or false"))?)
                }
                _ => Value::String(text),
            };
            setting.origin = name;
        }
        Ok(())
    }

    fn lay(&mut self, path: &str, value: Value, origin: &str) -> Result<(), ConfigError> {
        match self.settings.iter_mut().find(|setting| setting.path == path) {
            Some(setting) => {
                setting.value = value;
                setting.origin = origin.to_owned();
                Ok(())
            }
            None => Err(ConfigError(format!(
                "{origin}: unknown setting `{path}`; `lockkeeper config` lists all"
            ))),
        }
    }
}

impl Setting {
    fn is_list(&self) -> bool {
        LISTS.contains(&self.path.as_str())
    }
}

/// Every value of a table with its path; sections are flattened.
fn leaves(section: &str, table: Table) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for (name, value) in table {
        let path = if section.is_empty() { name } else { format!("{section}.{name}") };
        match value {
            Value::Table(table) => found.extend(leaves(&path, table)),
            value => found.push((path, value)),
        }
    }
    found
}

fn variable(path: &str) -> String {
    format!("{PREFIX}{}", path.replace('.', "_").to_uppercase())
}

/// Returns whether Kubernetes or Docker sets this variable for a service called `lockkeeper...`,
/// as in `LOCKKEEPER_PORT_8080_TCP_ADDR`. Their `..._PORT` is a URL; a number there is meant as a
/// setting.
fn is_service_link(rest: &str, text: &str) -> bool {
    let rest = format!("_{rest}");
    rest.contains("_PORT_")
        || rest.contains("_SERVICE_HOST")
        || rest.contains("_SERVICE_PORT")
        || (rest.ends_with("_PORT") && text.contains("://"))
}

fn without_secrets(value: &Value) -> String {
    match value {
        Value::String(text) => Value::from(redacted(text)).to_string(),
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(without_secrets).collect();
            format!("[{}]", values.join(", "))
        }
        value => value.to_string(),
    }
}

/// URLs without their passwords: the login's, and everything behind a `?`. A space separates two
/// URLs only if a scheme follows; otherwise it may be part of a password.
pub(super) fn redacted(text: &str) -> String {
    let mut urls: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match urls.last_mut() {
            Some(url) if !word.contains("://") => url.push_str(&format!(" {word}")),
            _ => urls.push(word.to_owned()),
        }
    }
    urls.iter().map(|url| redacted_url(url)).collect::<Vec<_>>().join(" ")
}

fn redacted_url(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) if !scheme.contains(['@', ':']) => (format!("{scheme}://"), rest),
        _ => (String::new(), url),
    };
    // A `?` may be part of a password that was not encoded.
    let (login, rest) = match rest.rsplit_once('@') {
        // Without a scheme the user cannot be told from the password.
        Some((_, rest)) if scheme.is_empty() => ("...@".to_owned(), rest),
        Some((login, rest)) => {
            let user = login.split_once(':').map_or("", |(user, _)| user);
            (format!("{user}:...@"), rest)
        }
        None => (String::new(), rest),
    };
    let (place, query) = rest.split_once('?').map_or((rest, ""), |(place, _)| (place, "?..."));
    format!("{scheme}{login}{place}{query}")
}

#[cfg(test)]
mod tests {
    use super::{Flags, Sources};
    use crate::config::{Config, ConfigError};

    /// The settings of a file and variables; the file's directory is removed again.
    fn found(file: &str, environment: &[(&str, &str)]) -> Result<Sources, ConfigError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mine.toml");
        std::fs::write(&path, file).unwrap();
        let flags = Flags { config: Some(path), ..Flags::default() };
        let pairs = environment.iter().map(|(name, text)| ((*name).into(), (*text).into()));
        Sources::find(&flags, pairs)
    }

    fn refused(file: &str, environment: &[(&str, &str)]) -> String {
        let config = found(file, environment).and_then(|sources| Config::of(&sources));
        config.unwrap_err().to_string()
    }

    #[test]
    fn changed_settings_that_need_a_restart_are_named() {
        let other = "[ttl]\nmax = \"9h\"\n[[prefixes]]\nprefix = \"a/\"\n";
        let (one, other) = (found("", &[]).unwrap(), found(other, &[]).unwrap());
        assert_eq!(one.waiting(&one), [""; 0]);
        assert_eq!(other.waiting(&one), ["ttl.max", "prefixes"]);
        assert_eq!(one.waiting(&other), ["ttl.max", "prefixes"]);
        let keys = found("[log]\nlevel = \"warn\"\n[[api_keys]]\nname = \"a\"\n", &[]).unwrap();
        assert_eq!(keys.waiting(&one), [""; 0]);
    }

    #[test]
    fn a_wrong_setting_is_named_with_its_source() {
        for (file, environment, expected) in [
            ("listen = 5", vec![], "/mine.toml): invalid type"),
            (
                "[ttl]\ndefault = 30",
                vec![],
                "`30` is not a duration: write a number and ms, s, m, h",
            ),
            ("[ttl]\nmin = \"0s\"", vec![], "/mine.toml): must be 1ms to 8760h"),
            ("", vec![("LOCKKEEPER_REDIS_TOKEN_PREFIX", "a b")], "`redis.token_prefix`"),
            ("", vec![("LOCKKEEPER_LIMITS_HOLD_STREAMS", "9223372036854775807")], "0 to 10000000"),
            ("", vec![("LOCKKEEPER_LIMITS_HEAD_BYTES", "9223372036854775807")], "8192 to 1048576"),
            ("", vec![("LOCKKEEPER_LIMITS_IDLE_TIME", "18446744073709551615ms")], "1ms to 24h"),
            ("", vec![("LOCKKEEPER_LIMITS_IDLE_TIME", "0s")], "must be 1ms to 24h"),
            ("allowed_hosts = [\"http://a\"]", vec![], "is not a host name"),
            ("allowed_hosts = 5", vec![], "a list of texts"),
            ("trusted_proxies = [\"proxy\"]", vec![], "is neither an address nor a network"),
            (
                "[[api_keys]]\nname = \"\"\nsha256 = \"0000000000000000000000000000000000000000000000000000000000000000\"\n\
                 prefixes = [\"\"]\npermissions = [\"read\"]",
                vec![],
                "`api_keys` (from",
            ),
            ("", vec![("LOCKKEEPER_REDIS_MIN_REPLICAS", "-1")], "`redis.min_replicas`"),
            ("", vec![("LOCKKEEPER_REDLOCK_LONGEST_LEASE", "999ms")], "must be 1s to 24h"),
            (
                "store = [\"redis://a\", \"redis://b\"]",
                vec![("LOCKKEEPER_REDLOCK_LONGEST_LEASE", "29s")],
                "must not be less than ttl.default",
            ),
            (
                "store = [\"redis://a\", \"redis://b\"]\nredis.min_replicas = 1",
                vec![],
                "has no use with Redlock",
            ),
            ("[[prefixes]]\nprefix = \"\"", vec![], "`prefixes` (from"),
            ("[[prefixes]]\nprefix = \"/\"", vec![], "no key begins with `/`"),
            ("[[prefixes]]\nprefix = 5", vec![], "`prefixes[0].prefix` (from"),
            ("[[prefixes]]\nname = \"a\"", vec![], "unknown field `name`"),
            ("[[prefixes]]\nprefix = \"a\"\nmax_hold = \"99ms\"", vec![], "less than ttl.min"),
            ("[[api_keys]]\nsecret = \"a\"", vec![], "unknown field `secret`"),
            ("listen = \"unix:\"", vec![], "name a file: unix:/run"),
            ("", vec![("LOCKKEEPER_ADMIN_LISTEN", "unix:")], "name a file: unix:/run"),
            ("", vec![("LOCKKEEPER_ADMIN_LISTEN", "127.0.0.1:8080")], "same as listen"),
            ("", vec![("LOCKKEEPER_SOCKET_MODE", "abc")], "`abc` are no permissions"),
            ("", vec![("LOCKKEEPER_SOCKET_MODE", "6660")], "`6660` are no permissions"),
            ("", vec![("LOCKKEEPER_TLS_CERTIFICATE", "a.pem")], "tls.key belong together"),
            ("", vec![("LOCKKEEPER_TLS_KEY", "a.pem")], "tls.key belong together"),
            ("", vec![("LOCKKEEPER_TLS_CLIENT_CA", "a.pem")], "needs tls.certificate"),
            (
                "listen = \"unix:/run/a.sock\"\n[tls]\ncertificate = \"a\"\nkey = \"b\"",
                vec![],
                "has no use on a unix socket",
            ),
        ] {
            let told = refused(file, &environment);
            assert!(told.contains(expected), "{told}\n  does not say\n{expected}");
        }
    }

    #[test]
    fn a_store_that_is_misspelt_is_named_without_its_password() {
        for url in [
            "user:s3cret@host:6379",
            "redis:user:s3cret@host:6379",
            "redis:/user:s3cret@host:6379",
            "redis//user:s3cret@host:6379",
            "reddis://user:s3cret@host:6379",
            "user:s3cret://x@host:6379",
            "s3cret@host:6379",
            "redis:user:a s3cret@host:6379",
            "embedded redis:user:s3cret@host:6379",
        ] {
            let told = refused(&format!("store = \"{url}\""), &[]);
            assert!(!told.contains("s3cret") && told.contains("@host:6379"), "{told}");
        }
    }

    #[test]
    fn a_port_that_is_meant_as_a_setting_is_not_taken_for_a_link_of_kubernetes() {
        for name in ["LOCKKEEPER_PORT", "LOCKKEEPER_LISTEN_PORT"] {
            assert!(refused("", &[(name, "9090")]).contains("is not a setting"), "{name}");
        }
        for (name, text) in [
            ("LOCKKEEPER_PORT", "tcp://10.0.0.1:8080"),
            ("LOCKKEEPER_WEB_PORT", "udp://10.0.0.1:8080"),
            ("LOCKKEEPER_PORT_8080_TCP_PORT", "8080"),
            ("LOCKKEEPER_SERVICE_PORT", "8080"),
        ] {
            assert!(found("", &[(name, text)]).is_ok(), "{name}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        for (url, expected) in [
            ("redis-sentinel://a:1,b:2/m?sentinel_password=s3cret", "//a:1,b:2/m?..."),
            ("redis-sentinel://u:s3c@a:1/m?sentinel_password=s3cret", "//u:...@a:1/m?..."),
            ("redis-cluster://:s3cret@a:1,b:2", "//:...@a:1,b:2"),
            (
                "redis://u:s3cret@a:1 redis://v:s3cret@b:1",
                "\"redis://u:...@a:1 redis://v:...@b:1\"",
            ),
            ("redis://a:1 redis://u:s3cret@b:1 c", "\"redis://a:1 redis://u:...@b:1 c\""),
            ("redis://u:s3cret and more@a:1", "\"redis://u:...@a:1\""),
        ] {
            let shown = found(&format!("store = \"{url}\""), &[]).unwrap().show();
            assert!(shown.contains(expected) && !shown.contains("s3c"), "{shown}");
        }
    }
}

//! What the service does not start with: one clear sentence, no panic, an exit code.

use std::net::TcpListener;
use std::path::Path;
use std::process::Output;

use crate::startup::{run, text};
use crate::support::Process;

/// What `lockkeeper serve` with these arguments and variables came to.
fn served(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    run(&[&["serve"], arguments].concat(), variables)
}

/// Asserts that `lockkeeper serve` with these arguments and variables says nothing but this.
fn assert_refused(arguments: &[&str], variables: &[(&str, &str)], expected: &str) {
    let output = served(arguments, variables);
    let told = text(&output.stderr);
    assert!(told.contains(expected), "{arguments:?} {variables:?}: {told}");
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.starts_with("lockkeeper: ") && told.ends_with('\n'), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(!told.contains("panicked"), "{told}");
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
}

/// A settings file that holds `content`, in a directory that lives as long.
fn file(directory: &Path, content: &str) -> String {
    let path = directory.join("mine.toml");
    std::fs::write(&path, content).unwrap();
    path.display().to_string()
}

#[test]
fn a_wrong_flag_is_one_sentence() {
    for (arguments, expected) in [
        (vec!["--store", "redis://a:1?db=3"], "the number of the database follows the port: /3"),
        (
            vec!["--store", "redis+unix:///run/r?database=3"],
            "only db, user and pass may follow `?`",
        ),
        (vec!["--store", "redis:///run/redis.sock"], "a unix socket is redis+unix:///run/redis"),
        (vec!["--store", "redis-cluster://a:1/1"], "`store`: a Cluster has only database 0"),
        (vec!["--store", "redis-cluster://a:1?db=1"], "a Cluster has only database 0"),
        (vec!["--store", "redis-cluster://a:1,b"], "`store`: `b` is not host:port"),
        (vec!["--store", "redis-cluster://"], "is not a store: use embedded:DIRECTORY"),
        (vec!["--store", "redis-sentinel://a:1"], "`store`: name the master"),
        (vec!["--store", "redis-sentinel://a:1/"], "`store`: name the master"),
        (vec!["--store", "redis-sentinel://a:x/m"], "`store`: `a:x` is not host:port"),
        (vec!["--store", "redis-sentinel://a:1/m/one"], "only the number of a database"),
        (vec!["--store", "redis-sentinel://a:1/m?password=x"], "may follow `?`"),
        (vec!["--store", "redis-sentinel://a:1/m?sentinel_user=x"], "needs sentinel_password"),
        (vec!["--store", "redis-elsewhere://a:1"], "is not a store: use embedded:DIRECTORY"),
        (vec!["--store", "memcached://a"], "is not a store: use embedded:DIRECTORY"),
        (vec!["--store", "embedded:"], "name a directory"),
        (vec!["--store", ""], "`` is not a store: use embedded:DIRECTORY"),
        (vec!["--store", "redis://a:no-port"], "`store` is not a Redis URL"),
        (vec!["--listen", "nonsense"], "`listen` (from --listen): write ADDRESS:PORT"),
        (vec!["--listen", "192.0.2.123:0"], "cannot listen on 192.0.2.123:0"),
        (vec!["--config", "/nonexistent/mine.toml"], "cannot read /nonexistent/mine.toml"),
        (vec!["--config", "/dev/zero"], "cannot read /dev/zero: it has more than 4194304 bytes"),
    ] {
        let mut all = Vec::new();
        if !arguments.contains(&"--listen") {
            all.extend(["--listen", "127.0.0.1:0"]);
        }
        all.extend(&arguments);
        assert_refused(&all, &[], expected);
    }
}

#[test]
fn nodes_that_cannot_be_a_set_are_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let (a, b) = ("redis://user:s3cret@a:1", "redis://user:s3cret@b:1");
    for (urls, expected) in [
        (vec![a, b, a], "`redis://user:...@a:1` is listed twice: each node has one vote"),
        (vec![a, a], "is listed twice"),
        (vec![a, "embedded:./data"], "several URLs mean Redlock, and `embedded:./data` is not"),
        (vec!["embedded:./data", a], "several URLs mean Redlock, and `embedded:./data` is not"),
        (vec!["embedded:./data", "embedded:./more"], "several URLs mean Redlock"),
        (
            vec![a, "redis-cluster://b:1"],
            "several URLs mean Redlock, and `redis-cluster://b:1` is not",
        ),
        (vec![a, "nats://user:s3cret@b"], "`nats://user:...@b` is not of the form redis://"),
        (vec![a, "redis://b:no-port"], "`store` is not a Redis URL"),
    ] {
        let flags: Vec<_> = urls.iter().flat_map(|&url| ["--store", url]).collect();
        let all = [&["--listen", "127.0.0.1:0"], flags.as_slice()].concat();
        let list = toml::Value::from(urls.clone()).to_string();
        let path = file(directory.path(), &format!("store = {list}"));
        let in_file = ["--listen", "127.0.0.1:0", "--config", &path];
        let variable = [("LOCKKEEPER_STORE", urls.join(" "))];
        let variable = variable.each_ref().map(|(name, value)| (*name, value.as_str()));
        assert_refused(&all, &[], expected);
        assert_refused(&["--listen", "127.0.0.1:0"], &variable, expected);
        assert_refused(&in_file, &[], expected);
        for output in [served(&all, &[]), served(&in_file, &[])] {
            assert!(!text(&output.stderr).contains("s3cret"), "{}", text(&output.stderr));
        }
    }
    for (value, expected) in [
        ("0ms", "`redlock.node_timeout` (from LOCKKEEPER_REDLOCK_NODE_TIMEOUT): must be 1ms to"),
        ("401ms", "must be 1ms to 400ms"),
        ("1s", "must be 1ms to 400ms"),
        ("soon", "`soon` is not a duration"),
    ] {
        let variables = [("LOCKKEEPER_REDLOCK_NODE_TIMEOUT", value)];
        assert_refused(&["--store", a, "--store", b], &variables, expected);
    }
    let trust = [("LOCKKEEPER_REDLOCK_TRUST_RESTARTED", "perhaps")];
    assert_refused(&["--store", a, "--store", b], &trust, "must be true or false");
}

#[test]
fn a_wrong_variable_is_one_sentence() {
    for (name, value, expected) in [
        ("LOCKKEEPER_LISTN", "127.0.0.1:0", "the variable LOCKKEEPER_LISTN is not a setting"),
        ("LOCKKEEPER_LIMITS_CONNECTIONS", "many", "must be a whole number"),
        ("LOCKKEEPER_LIMITS_CONNECTIONS", "0", "`limits.connections`"),
        ("LOCKKEEPER_ALLOW_ANONYMOUS", "perhaps", "must be true or false"),
        ("LOCKKEEPER_TTL_DEFAULT", "25h", "`ttl.default` (from LOCKKEEPER_TTL_DEFAULT)"),
        ("LOCKKEEPER_TTL_MIN", "soon", "`soon` is not a duration: write a number and ms,"),
        ("LOCKKEEPER_REDIS_COMMAND_TIMEOUT", "11s", "must be 1ms to 10s"),
        ("LOCKKEEPER_LIMITS_LISTS", "-1", "expected a whole number from 0 on"),
        ("LOCKKEEPER_LOG_LEVEL", "loud", "`log.level` (from LOCKKEEPER_LOG_LEVEL)"),
        ("LOCKKEEPER_STORE", "redis://user:s3cret@host:x", "`store` is not a Redis URL"),
        ("LOCKKEEPER_STORE", "redis-sentinel://a:s3cret@b/m?x=s3cret", "`b` is not host:port"),
        ("LOCKKEEPER_STORE", "redis-cluster://a:s3cret@b,c:1", "`b` is not host:port"),
        ("LOCKKEEPER_STORE", "redis-elsewhere://b?password=s3cret", "redis-elsewhere://b?..."),
        ("LOCKKEEPER_REDIS_MIN_REPLICAS", "101", "must be 0 to 100"),
        ("LOCKKEEPER_STORE", "nats://user:s3cret@host", "nats://user:...@host"),
        ("LOCKKEEPER_CONFIG", "/nonexistent", "cannot read /nonexistent"),
    ] {
        assert_refused(&["--listen", "127.0.0.1:0"], &[(name, value)], expected);
        let told = text(&served(&["--listen", "127.0.0.1:0"], &[(name, value)]).stderr);
        assert!(!told.contains("s3cret"), "{told}");
    }
}

#[test]
fn a_wrong_file_is_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let digest = "d0c04f4b1951e4aeaaec8223ed2039e542f3aae805a6fa7f6d794e5afff5d27";
    let key = |sha256: &str, permission: &str| {
        format!(
            "[[api_keys]]\nname = \"shop\"\nsha256 = \"{sha256}\"\nprefixes = [\"\"]\n\
             permissions = [\"{permission}\"]\n"
        )
    };
    for (content, expected) in [
        ("listen = \"127.0.0.1:0\nstore = \"s3cret\"".to_owned(), "is not valid TOML in line 1: "),
        ("\n\nttl = [".to_owned(), "is not valid TOML in line 3: "),
        ("lisen = \"127.0.0.1:0\"".to_owned(), "unknown setting `lisen`"),
        ("[redis]\nprefix = \"a\"".to_owned(), "unknown setting `redis.prefix`"),
        ("[ttl]\nmax = \"50ms\"".to_owned(), "`ttl.max`"),
        ("store = 6379".to_owned(), "`store` (from "),
        (key(digest, "read"), "`api_keys[0].sha256`"),
        (key(&format!("{digest}z"), "read"), "64 hexadecimal digits"),
        (key(&format!("{digest}2"), "write"), "unknown variant `write`"),
        ("[[api_keys]]\nname = \"shop\"".to_owned(), "missing field"),
    ] {
        let path = file(directory.path(), &content);
        assert_refused(&["--listen", "127.0.0.1:0", "--config", &path], &[], expected);
        let told = text(&served(&["--listen", "127.0.0.1:0", "--config", &path], &[]).stderr);
        assert!(!told.contains("s3cret") && !told.contains(digest), "{told}");
    }
}

#[test]
fn a_port_that_is_taken_is_one_sentence() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}/data", directory.path().display());
    assert_refused(&["--listen", &address, "--store", &store], &[], &format!("on {address}"));
    assert!(!directory.path().join("data").exists(), "nothing is made for a service that is none");
}

#[test]
fn a_directory_that_cannot_be_used_is_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "no directory").unwrap();
    for store in [file.clone(), file.join("below")] {
        let store = format!("embedded:{}", store.display());
        assert_refused(&["--listen", "127.0.0.1:0", "--store", &store], &[], "cannot be used");
    }
    std::fs::write(directory.path().join("locks.sqlite"), "no database at all").unwrap();
    let store = format!("embedded:{}", directory.path().display());
    assert_refused(&["--listen", "127.0.0.1:0", "--store", &store], &[], "");
}

#[test]
fn without_keys_only_this_machine_is_served_unless_it_is_said_in_so_many_words() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().display());
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let arguments = ["--listen", listen, "--store", &store];
        assert_refused(&arguments, &[], "`allow_anonymous = true`");
        let anonymous = ("LOCKKEEPER_ALLOW_ANONYMOUS", "true");
        let allowed = ("LOCKKEEPER_ALLOWED_HOSTS", "localhost");
        let lacks = "or set `allowed_hosts`, against web pages, to the host names";
        assert_refused(&arguments, &[anonymous], lacks);
        assert_refused(&arguments, &[allowed], "`allow_anonymous = true`");
    }
    let digest = "d0c04f4b1951e4aeaaec8223ed2039e542f3aae805a6fa7f6d794e5afff5d272";
    let keys = format!(
        "[[api_keys]]\nname = \"shop\"\nsha256 = \"{digest}\"\nprefixes = [\"\"]\n\
         permissions = [\"acquire\"]\n"
    );
    let path = file(directory.path(), &keys);
    for (arguments, variables) in [
        (vec!["--store", store.as_str(), "--config", path.as_str()], vec![]),
        (
            vec!["--store", store.as_str()],
            vec![("LOCKKEEPER_ALLOW_ANONYMOUS", "true"), ("LOCKKEEPER_ALLOWED_HOSTS", "localhost")],
        ),
    ] {
        drop(Process::start_on("0.0.0.0:0", &arguments, &variables));
    }
}

#[test]
fn a_word_or_flag_that_there_is_not_is_told_apart() {
    for (arguments, expected) in [
        (vec!["sevre"], "unrecognized subcommand 'sevre'"),
        (vec!["serve", "--prot", "1"], "unexpected argument '--prot'"),
        (vec!["serve", "--listen"], "a value is required for '--listen"),
        (vec!["version", "--store", "redis://a"], "unexpected argument '--store'"),
    ] {
        let output = run(&arguments, &[]);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.lines().next().unwrap().contains(expected), "{told}");
        assert!(!told.contains("panicked"), "{told}");
        assert!(output.stdout.is_empty());
    }
}

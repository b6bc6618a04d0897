//! `config`, `healthcheck` and `version`.

use std::net::TcpListener;

use crate::startup::{run, text};
use crate::support::certificates::Certificates;
use crate::support::{NOWHERE, Process};

#[test]
fn config_prints_what_is_in_force_with_where_it_came_from_and_without_secrets() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mine.toml").display().to_string();
    let content = "listen = \"127.0.0.1:1\"\n[ttl]\ndefault = \"7s\"\nmax = \"1h\"\n\
                   [[api_keys]]\nname = \"shop\"\nsha256 = \"{digest}\"\n\
                   prefixes = [\"shop/\"]\npermissions = [\"acquire\"]\n";
    let digest = "d0c04f4b1951e4aeaaec8223ed2039e542f3aae805a6fa7f6d794e5afff5d272";
    std::fs::write(&path, content.replace("{digest}", digest)).unwrap();
    let variables = [
        ("LOCKKEEPER_TTL_MAX", "2h"),
        ("LOCKKEEPER_STORE", "redis://user:s3cret@redis.internal:6379/3"),
        ("LOCKKEEPER_LIMITS_BODY_BYTES", "99"),
        ("LOCKKEEPER_ALLOW_ANONYMOUS", "true"),
        ("LOCKKEEPER_REDIS_KEY_PREFIX", "7"),
        ("LOCKKEEPER_LISTEN", "127.0.0.1:3"),
        ("LOCKKEEPER_URL", "http://elsewhere"), // Of the command line as a client.
        ("LOCKKEEPER_CONFIG", path.as_str()),
    ];
    let output = run(&["config", "--listen", "127.0.0.1:2"], &variables);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    for (setting, origin) in [
        ("listen = \"127.0.0.1:2\"", "--listen"),
        ("store = \"redis://user:...@redis.internal:6379/3\"", "LOCKKEEPER_STORE"),
        ("default = \"7s\"", path.as_str()),
        ("max = \"2h\"", "LOCKKEEPER_TTL_MAX"),
        ("min = \"100ms\"", "default"),
        ("body_bytes = 99", "LOCKKEEPER_LIMITS_BODY_BYTES"),
        ("allow_anonymous = true", "LOCKKEEPER_ALLOW_ANONYMOUS"),
        ("key_prefix = \"7\"", "LOCKKEEPER_REDIS_KEY_PREFIX"),
        ("[[api_keys]]", path.as_str()),
    ] {
        let line = shown.lines().find(|line| line.starts_with(setting));
        let line = line.unwrap_or_else(|| panic!("no {setting} in {shown}"));
        assert!(line.ends_with(&format!("# {origin}")), "{line}");
    }
    assert!(shown.contains("name = \"shop\""), "{shown}");
    assert!(!shown.contains("s3cret") && !shown.contains("d0c04f"), "{shown}");
}

#[test]
fn config_prints_a_settings_file_with_the_same_meaning() {
    let directory = tempfile::tempdir().unwrap();
    let first = text(&run(&["config"], &[("LOCKKEEPER_TTL_MAX", "2h")]).stdout);
    let path = directory.path().join("printed.toml").display().to_string();
    std::fs::write(&path, &first).unwrap();
    let second = text(&run(&["config", "--config", &path], &[]).stdout);
    let values = |shown: &str| -> Vec<String> {
        shown.lines().map(|line| line.split(" # ").next().unwrap().trim().to_owned()).collect()
    };
    assert_eq!(values(&first), values(&second));
}

#[test]
fn a_check_of_the_settings_refuses_what_serve_refuses_and_is_silent_otherwise() {
    let directory = tempfile::tempdir().unwrap();
    let no_directory = directory.path().join("no/such.sock").display().to_string();
    let file = directory.path().join("file").display().to_string();
    std::fs::write(&file, "").unwrap();
    let [certificates, others] = [Certificates::make(), Certificates::make()];
    let (pem, key) = (certificates.path("server.pem"), others.path("server.key"));
    let tls = |certificate: &str, key: &str| {
        vec![
            ("LOCKKEEPER_TLS_CERTIFICATE", certificate.to_owned()),
            ("LOCKKEEPER_TLS_KEY", key.to_owned()),
        ]
    };
    let one = |name: &'static str, value: &str| vec![(name, value.to_owned())];
    for (variables, expected) in [
        (tls("/no/such.pem", "/no/such.key"), "`tls.certificate`: cannot read /no/such.pem: "),
        (tls(&pem, &key), "is not the key of the certificate in"),
        (one("LOCKKEEPER_LISTEN", "0.0.0.0:0"), "and there are no [[api_keys]]: add some"),
        (one("LOCKKEEPER_ADMIN_LISTEN", "0.0.0.0:0"), "and there are no [[api_keys]]"),
        (one("LOCKKEEPER_LISTEN", "192.0.2.123:8080"), "cannot listen on 192.0.2.123:8080"),
        (one("LOCKKEEPER_LISTEN", "no-such-host.invalid:8080"), "(setting `listen`): "),
        (one("LOCKKEEPER_LISTEN", &format!("unix:{no_directory}")), "(setting `listen`): "),
        (one("LOCKKEEPER_ADMIN_LISTEN", &format!("unix:{file}")), "the file is no socket"),
        (one("LOCKKEEPER_STORE", "redis-cluster://a:1/1"), "a Cluster has only database 0"),
        (one("LOCKKEEPER_STORE", "redis://a:1 redis://b:x"), "`store` is not a Redis URL"),
        (one("LOCKKEEPER_TTL_MIN", "soon"), "`soon` is not a duration"),
    ] {
        let mut variables: Vec<_> =
            variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        if variables.iter().all(|(name, _)| *name != "LOCKKEEPER_LISTEN") {
            variables.push(("LOCKKEEPER_LISTEN", "127.0.0.1:0"));
        }
        let checked = run(&["config", "--check"], &variables);
        assert!(text(&checked.stderr).contains(expected), "{checked:?}");
        assert_eq!(text(&checked.stderr).lines().count(), 1, "{checked:?}");
        assert_eq!(checked.status.code(), Some(1), "{checked:?}");
        // In the same words, but for a port that the system has chosen.
        let served = run(&["serve"], &variables);
        let words = |told: &[u8]| text(told).replace(char::is_numeric, "");
        assert_eq!(words(&served.stderr), words(&checked.stderr));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_of_the_settings_of_a_service_that_runs_finds_no_fault() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().display());
    let service = Process::start(&store, &[]);
    let address = service.http().address.to_string();
    let nodes = "redis://127.0.0.1:1 redis://127.0.0.1:2 redis://127.0.0.1:3";
    for store in [&store, nodes, "redis-sentinel://127.0.0.1:1/m", "redis-cluster://127.0.0.1:1"] {
        let variables = [("LOCKKEEPER_STORE", store), ("LOCKKEEPER_LISTEN", &address)];
        let checked = run(&["config", "--check"], &variables);
        assert!(checked.status.success(), "{store}: {checked:?}");
        assert!(checked.stdout.is_empty() && checked.stderr.is_empty(), "{store}: {checked:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn healthcheck_asks_the_service_of_the_url_unless_a_flag_says_where_it_listens() {
    let directory = tempfile::tempdir().unwrap();
    let service = Process::start(&format!("embedded:{}", directory.path().display()), &[]);
    let url = service.http().url();
    let address = service.http().address.to_string();
    let nowhere = format!("http://{NOWHERE}");
    for (arguments, variables, code) in [
        (&["healthcheck"][..], [("LOCKKEEPER_URL", &*url), ("LOCKKEEPER_LISTEN", NOWHERE)], 0),
        // Empty variables are absent.
        (&["healthcheck"], [("LOCKKEEPER_URL", ""), ("LOCKKEEPER_LISTEN", &*address)], 0),
        (&["healthcheck"], [("LOCKKEEPER_URL", &*nowhere), ("LOCKKEEPER_LISTEN", &*address)], 1),
        (&["healthcheck", "--url", &url], [("LOCKKEEPER_URL", &*nowhere); 2], 0),
        (&["healthcheck", "--listen", &address], [("LOCKKEEPER_URL", &*nowhere); 2], 0),
    ] {
        let output = run(arguments, &variables);
        assert_eq!(output.status.code(), Some(code), "{arguments:?} {variables:?}: {output:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn healthcheck_tells_a_living_service_from_anything_else() {
    let directory = tempfile::tempdir().unwrap();
    let service = Process::start(&format!("embedded:{}", directory.path().display()), &[]);
    let address = service.http().address.to_string();
    let output = run(&["healthcheck", "--listen", &address], &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let output = run(&["healthcheck"], &[("LOCKKEEPER_LISTEN", &address)]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    // Where it listens on all addresses, it is asked on its own machine.
    let everywhere = format!("0.0.0.0:{}", service.http().address.port());
    assert_eq!(run(&["healthcheck", "--listen", &everywhere], &[]).status.code(), Some(0));

    service.kill();
    assert_unhealthy(&address, "cannot reach");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_unhealthy(&silent.local_addr().unwrap().to_string(), "did not answer within 3 s");
    assert_unhealthy(NOWHERE, "cannot reach");
}

fn assert_unhealthy(address: &str, expected: &str) {
    let output = run(&["healthcheck", "--listen", address], &[]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains(expected) && told.lines().count() == 1, "{told}");
    assert!(output.stdout.is_empty());
}

#[test]
fn without_a_word_nothing_is_started_and_the_help_is_shown() {
    let output = run(&[], &[]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("Usage: lockkeeper <COMMAND>") && told.contains("  exec "), "{told}");
    let output = run(&["version", "--help"], &[]);
    assert_eq!(text(&output.stdout).lines().count(), 6, "{}", text(&output.stdout));
}

#[test]
fn a_word_of_other_programs_gets_a_tip() {
    for (word, tip) in [
        ("lock", "`exec KEY COMMAND` holds a key while COMMAND runs, `acquire KEY` takes it"),
        ("unlock", "`release KEY` ends a lease by its token, `force-release KEY` without it"),
        ("status", "`get KEY` shows a key, `list` those that are held"),
    ] {
        let output = run(&[word, "key"], &[]);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.starts_with(&format!("lockkeeper: `{word}` is not a command: {tip}")));
        assert_eq!(told.lines().count(), 1, "{told}");
    }
}

#[test]
fn the_version_is_printed_by_word_and_by_flag() {
    let expected = format!("lockkeeper {}\n", env!("CARGO_PKG_VERSION"));
    for arguments in [["version"], ["--version"]] {
        let output = run(&arguments, &[]);
        assert!(output.status.success());
        assert_eq!(text(&output.stdout), expected);
    }
}

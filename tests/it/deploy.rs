//! The alerts and the dashboard of `deploy/`.

use serde_json::{Value, json};

use crate::support::process::{BINARY, command, succeeds};
use crate::support::{Process, in_memory};

const ALERTS: &str = "deploy/prometheus/alerts.yml";
const ALERTS_TEST: &str = "deploy/prometheus/alerts_test.yml";

#[test]
fn each_alert_fires_when_it_should_and_none_on_a_calm_service() {
    succeeds(command("promtool").args(["check", "rules", ALERTS]));
    succeeds(command("promtool").args(["test", "rules", ALERTS_TEST]));
    let alerts = std::fs::read_to_string(ALERTS).unwrap();
    let tests = std::fs::read_to_string(ALERTS_TEST).unwrap();
    let names: Vec<_> = alerts.lines().filter_map(|line| line.split_once("- alert: ")).collect();
    assert!(names.len() > 10, "only {names:?}");
    for (_, name) in names {
        let fires = tests.contains(&format!("alertname: {name}\n"));
        assert!(fires, "no test makes {name} fire");
        assert!(tests.contains(&format!("alertname: {name}, exp_alerts: []")), "{name} when calm");
    }
}

#[test]
fn prometheus_has_no_objection_to_the_metrics() {
    let directory = in_memory();
    let store = format!("embedded:{}", directory.path().display());
    let service = Process::start(&store, &[]);
    let http = service.http();
    let url = format!("http://{}", http.address);
    succeeds(command("curl").args(["-sS", "-X", "POST", &format!("{url}/locks/k")]));
    let fetch = "curl -sS \"$0/metrics\" | promtool check metrics";
    succeeds(command("sh").args(["-c", fetch, &url]));
}

#[test]
fn the_command_line_of_a_packaged_host_reads_the_settings_of_the_package() {
    let etc = in_memory();
    std::fs::create_dir(etc.path().join("lockkeeper")).unwrap();
    std::fs::write(etc.path().join("lockkeeper/lockkeeper.toml"), "[ttl]\ndefault = \"77s\"\n")
        .unwrap();
    let script = "mount --bind \"$0\" /etc && exec \"$1\" config";
    let mut shell = command("unshare");
    shell.args(["-m", "sh", "-c", script]).arg(etc.path()).arg(BINARY);
    let shown = succeeds(shell.env_remove("LOCKKEEPER_CONFIG"));
    let line = shown.lines().find(|line| line.contains("77s")).unwrap_or_default();
    assert!(line.contains("/etc/lockkeeper/lockkeeper.toml"), "{shown}");
}

#[test]
fn the_dashboard_is_one_that_grafana_reads() {
    let text = std::fs::read("deploy/grafana/lockkeeper.json").unwrap();
    let dashboard: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(dashboard["uid"], "lockkeeper");
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids: Vec<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), panels.len(), "two panels have one id");
    let queries = panels.iter().filter(|panel| panel["type"] != "row").flat_map(|panel| {
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{panel}");
        targets.iter().map(|target| target["expr"].as_str().unwrap().to_owned())
    });
    let silent = panels
        .iter()
        .filter(|panel| panel["type"] != "row")
        .filter(|panel| panel["description"].as_str().is_none_or(|text| !text.ends_with('.')));
    assert_eq!(silent.count(), 0, "a panel that does not say what it shows");
    // As recording rules, with Grafana's variables replaced, they are valid PromQL.
    let rules = queries.enumerate().map(|(number, query)| {
        assert!(query.contains("lockkeeper_"), "{query}");
        let query = query.replace("$__rate_interval", "5m").replace("$instance", ".*");
        json!({"record": format!("dashboard:{number}"), "expr": query})
    });
    let rules = json!({"groups": [{"name": "dashboard", "rules": rules.collect::<Vec<_>>()}]});
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yml");
    std::fs::write(&path, rules.to_string()).unwrap();
    succeeds(command("promtool").args(["check", "rules"]).arg(&path));
}

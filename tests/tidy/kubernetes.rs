//! The manifests for Kubernetes refer only to what the image and the service have, and those beside
//! them to what the manifests have.

use std::path::Path;

use lockkeeper::config::{Config, Flags, Sources, StoreUrl};
use serde::Deserialize;
use serde_json::Value;

use crate::source::{File, assert_found, assert_none, files};

const MONITOR: &str = "deploy/kubernetes/service-monitor.yaml";
const POLICY: &str = "deploy/kubernetes/network-policy.yaml";
const ALERTS: &str = "deploy/prometheus/alerts.yml";

/// Stands in the manifests for the digest of an API key.
const PLACEHOLDER: &str = "replace this by the SHA-256 of your secret";

/// The most seconds that a pod may take to stop, beyond its pause and `limits.shutdown_time`.
const SPARE: u64 = 5;

#[test]
fn every_manifest_fits_the_image_and_the_service() {
    let manifests = manifests();
    assert!(manifests.len() >= 2, "only {} manifests", manifests.len());
    assert_none(
        &manifests.iter().flat_map(|file| misfits(file, &Image::read())).collect::<Vec<_>>(),
    );
}

#[test]
fn the_monitor_and_the_policy_fit_every_manifest_and_the_alerts() {
    let (monitor, policy) = (File::read(MONITOR), File::read(POLICY));
    for manifest in manifests() {
        assert_none(&unmonitored(&monitor, &manifest, &Image::read()));
        assert_none(&cut_off(&policy, &manifest, &Image::read()));
    }
}

#[test]
fn a_manifest_starts_with_the_digest_of_a_secret_and_not_without() {
    for file in manifests() {
        let secret = secret(&file);
        let settings = text(&secret["stringData"]["lockkeeper.toml"]);
        let whole = settings.replace(PLACEHOLDER, &"0".repeat(64));
        assert_ne!(whole, settings, "{}: the API key is not to be replaced", file.path);
        let variables = variables(&file, &Image::read());
        assert_eq!(parse(&whole, &variables).unwrap().api_keys.len(), 1);
        assert!(parse(settings, &variables).is_err(), "{}: it starts as it is", file.path);
    }
}

/// The files that run the service; the others are beside them.
fn manifests() -> Vec<File> {
    let mut files = files("deploy/kubernetes", "yaml");
    files.retain(|file| ![MONITOR, POLICY].contains(&file.path.as_str()));
    files
}

/// What a pod takes for granted.
struct Image {
    variables: Vec<(String, String)>,
    port: u64,
    user: u64,
    version: String,
    paths: String,
}

impl Image {
    fn read() -> Self {
        let dockerfile = File::read("Dockerfile").text;
        let after = |begin: &str| {
            let line = dockerfile.lines().find_map(|line| line.strip_prefix(begin));
            line.unwrap_or_else(|| panic!("no {begin}")).to_owned()
        };
        let lines = dockerfile.lines().filter(|line| !line.starts_with('#'));
        let words = lines.flat_map(str::split_whitespace).filter_map(|word| word.split_once('='));
        let variables = words.filter(|(name, _)| name.starts_with("LOCKKEEPER_"));
        let manifest: toml::Table = File::read("Cargo.toml").text.parse().unwrap();
        Self {
            variables: variables.map(|(name, text)| (name.to_owned(), text.to_owned())).collect(),
            port: after("EXPOSE ").parse().unwrap(),
            user: after("USER ").split(':').next().unwrap().parse().unwrap(),
            version: manifest["package"]["version"].as_str().unwrap().to_owned(),
            paths: File::read("src/api/mod.rs").text,
        }
    }

    fn variable(&self, name: &str) -> &str {
        let found = self.variables.iter().find(|(its, _)| its == name);
        found.map(|(_, text)| text.as_str()).unwrap_or_default()
    }
}

fn documents(file: &File) -> Vec<Value> {
    let parts = serde_norway::Deserializer::from_str(&file.text);
    parts.map(|part| Value::deserialize(part).unwrap()).collect()
}

fn of_kind(file: &File, kinds: &[&str]) -> Value {
    let found = documents(file).into_iter().find(|one| kinds.contains(&text(&one["kind"])));
    found.unwrap_or_else(|| panic!("{}: none of {kinds:?}", file.path))
}

fn secret(file: &File) -> Value {
    of_kind(file, &["Secret"])
}

fn pod(file: &File) -> Value {
    of_kind(file, &["StatefulSet", "Deployment"])["spec"]["template"]["spec"].clone()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    match value {
        Value::Array(list) => list,
        _ => &[],
    }
}

/// The variables of a pod's container over those of the image, without the settings file.
fn variables(file: &File, image: &Image) -> Vec<(String, String)> {
    let secret = secret(file);
    let mut all = image.variables.clone();
    for variable in list(&pod(file)["containers"][0]["env"]) {
        let from = &variable["valueFrom"]["secretKeyRef"]["key"];
        let value = match from.as_str() {
            Some(key) => text(&secret["stringData"][key]),
            None => text(&variable["value"]),
        };
        all.retain(|(name, _)| name != text(&variable["name"]));
        all.push((text(&variable["name"]).to_owned(), value.to_owned()));
    }
    all.retain(|(name, _)| name != "LOCKKEEPER_CONFIG");
    all
}

fn parse(settings: &str, variables: &[(String, String)]) -> Result<Config, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lockkeeper.toml");
    std::fs::write(&path, settings).unwrap();
    let flags = Flags { config: Some(path), ..Flags::default() };
    let sources = Sources::find(&flags, variables.iter().cloned());
    Config::of(&sources.map_err(|error| error.to_string())?).map_err(|error| error.to_string())
}

fn misfits(file: &File, image: &Image) -> Vec<String> {
    let (pod, settings) = (pod(file), secret(file)["stringData"]["lockkeeper.toml"].clone());
    let (container, service) = (&pod["containers"][0], of_kind(file, &["Service"]));
    let settings = text(&settings).replace(PLACEHOLDER, &"0".repeat(64));
    let config = match parse(&settings, &variables(file, image)) {
        Ok(config) => config,
        Err(error) => return vec![format!("{}: {error}", file.path)],
    };
    let mount = |path: &str| {
        let mounts = list(&container["volumeMounts"]).iter();
        mounts.map(|one| text(&one["mountPath"])).any(|there| Path::new(path).starts_with(there))
    };
    let port = &container["ports"][0];
    let pause = container["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap_or(0);
    let stop = config.limits.shutdown_time.get().as_secs() + pause + SPARE;
    let env = list(&container["env"]).iter();
    let own = env.filter(|one| one["name"] == "LOCKKEEPER_CONFIG").map(|one| text(&one["value"]));
    let on_a_volume = match &config.store {
        StoreUrl::Embedded(path) => {
            mount(path.to_str().unwrap()) && !list(&pod["volumes"]).is_empty()
        }
        _ => true,
    };
    let user = &pod["securityContext"];
    let within = &container["securityContext"];
    let mut rules = vec![
        ("the image is not of this version", {
            text(&container["image"]).ends_with(&format!(":{}", image.version))
        }),
        ("another port than the image's", port["containerPort"] == image.port),
        ("the service listens on another port", {
            image.variable("LOCKKEEPER_LISTEN").ends_with(&format!(":{}", image.port))
                && config.listen.to_string().ends_with(&format!(":{}", image.port))
        }),
        ("the Service has another port", service["spec"]["ports"][0]["port"] == image.port),
        ("the Service leads to no port", {
            service["spec"]["ports"][0]["targetPort"] == port["name"] && !port["name"].is_null()
        }),
        ("another user than the image's", {
            user["runAsUser"] == image.user && user["fsGroup"] == image.user
        }),
        ("it may be root", user["runAsNonRoot"] == true),
        ("it has no seccomp profile", user["seccompProfile"]["type"] == "RuntimeDefault"),
        ("it may write to its root", within["readOnlyRootFilesystem"] == true),
        ("it may get more rights", within["allowPrivilegeEscalation"] == false),
        ("it has capabilities", within["capabilities"]["drop"][0] == "ALL"),
        ("its leases are on no volume", on_a_volume),
        ("its settings are not mounted", own.clone().count() == 1 && own.clone().all(mount)),
        ("it is killed while it stops", {
            pod["terminationGracePeriodSeconds"].as_u64().is_some_and(|grace| grace >= stop)
        }),
    ];
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let path = text(&container[probe]["httpGet"]["path"]);
        let is_there = image.paths.contains(&format!(".route(\"{path}\", "));
        rules.push(("a probe asks for a path that is not there", is_there));
    }
    let broken = rules.into_iter().filter(|(_, holds)| !holds);
    broken.map(|(what, _)| format!("{}: {what}", file.path)).collect()
}

/// Whether these labels are among those.
fn selects(labels: &Value, of: &Value) -> bool {
    let labels = labels.as_object().filter(|labels| !labels.is_empty());
    labels.is_some_and(|labels| labels.iter().all(|(name, value)| of[name] == *value))
}

/// Whether the monitor scrapes the pods of a manifest as the job of the alerts.
fn unmonitored(monitor: &File, manifest: &File, image: &Image) -> Vec<String> {
    let spec = &of_kind(monitor, &["ServiceMonitor"])["spec"];
    let (secret, service) = (secret(monitor), of_kind(manifest, &["Service"]));
    let (endpoint, labels) = (&spec["endpoints"][0], &service["metadata"]["labels"]);
    let credentials = &endpoint["authorization"]["credentials"];
    let job = text(&labels[text(&spec["jobLabel"])]);
    let path = text(&endpoint["path"]);
    let rules = [
        ("it selects another Service", selects(&spec["selector"]["matchLabels"], labels)),
        (
            "it scrapes a port that is not there",
            endpoint["port"] == service["spec"]["ports"][0]["name"],
        ),
        (
            "it scrapes a path that is not there",
            image.paths.contains(&format!(".route(\"{path}\", ")),
        ),
        ("its job is not that of the alerts", {
            File::read(ALERTS).text.contains(&format!("job=\"{job}\""))
        }),
        ("it has no API key", {
            credentials["name"] == secret["metadata"]["name"]
                && secret["stringData"][text(&credentials["key"])].is_string()
        }),
    ];
    let broken = rules.into_iter().filter(|(_, holds)| !holds);
    broken.map(|(what, _)| format!("{}: {what}: {}", monitor.path, manifest.path)).collect()
}

/// Whether the policy lets clients reach the pods of a manifest, and the pods their store.
fn cut_off(policy: &File, manifest: &File, image: &Image) -> Vec<String> {
    let spec = &of_kind(policy, &["NetworkPolicy"])["spec"];
    let pods = &of_kind(manifest, &["StatefulSet", "Deployment"])["spec"]["template"];
    let port = &pods["spec"]["containers"][0]["ports"][0]["name"];
    let egress = list(&spec["egress"]).iter().flat_map(|rule| list(&rule["ports"]));
    let store = variables(manifest, image).into_iter().find(|(name, _)| name == "LOCKKEEPER_STORE");
    let store = store.filter(|(_, url)| url.starts_with("redis")).map(|(_, url)| url);
    let reached =
        |url: &str| egress.clone().any(|open| url.ends_with(&format!(":{}", open["port"])));
    let rules = [
        ("it selects other pods", {
            selects(&spec["podSelector"]["matchLabels"], &pods["metadata"]["labels"])
        }),
        ("clients cannot reach the port", spec["ingress"][0]["ports"][0]["port"] == *port),
        ("the store cannot be reached", store.is_none_or(|url| reached(&url))),
        (
            "names cannot be resolved",
            egress.clone().any(|open| open["port"] == 53 && open["protocol"] == "UDP"),
        ),
    ];
    let broken = rules.into_iter().filter(|(_, holds)| !holds);
    broken.map(|(what, _)| format!("{}: {what}: {}", policy.path, manifest.path)).collect()
}

#[test]
fn a_monitor_and_a_policy_that_do_not_fit_are_found() {
    let (image, manifest) = (Image::read(), File::read("deploy/kubernetes/redis.yaml"));
    for (path, from, to, fault) in [
        (MONITOR, "matchLabels: {app", "matchLabels: {apps", "another Service"),
        (MONITOR, "port: http", "port: web", "a port that is not there"),
        (MONITOR, "path: /metrics", "path: /metric", "a path that is not there"),
        (MONITOR, "jobLabel: app", "jobLabel: apps", "not that of the alerts"),
        (MONITOR, "key: api-key}", "key: secret}", "no API key"),
        (POLICY, "    matchLabels: {app", "    matchLabels: {apps", "other pods"),
        (POLICY, "port: http", "port: 80", "cannot reach the port"),
        (POLICY, "port: 6379", "port: 6380", "the store cannot be reached"),
        (POLICY, "port: 53, protocol: UDP", "port: 53", "names cannot be resolved"),
    ] {
        let good = File::read(path);
        let planted = File::planted(path, &good.text.replacen(from, to, 1));
        assert_ne!(planted.text, good.text, "{from}");
        let check = if path == MONITOR { unmonitored } else { cut_off };
        assert_found(&check(&planted, &manifest, &image), fault);
    }
}

#[test]
fn a_manifest_that_does_not_fit_is_found() {
    let image = Image::read();
    let good = File::read("deploy/kubernetes/embedded.yaml");
    assert_none(&misfits(&good, &image));
    for (from, to, fault) in [
        ("path: /healthz, port: http}\n            periodSeconds: 10", "path: /alive}", "a probe"),
        ("containerPort: 8080", "containerPort: 80", "another port"),
        ("Seconds: 30", "Seconds: 15", "killed while it stops"),
        ("runAsUser: 65532", "runAsUser: 1000", "another user"),
        ("mountPath: /var/lib/lockkeeper", "mountPath: /data", "on no volume"),
        ("value: /etc/lockkeeper", "value: /etc/lockkeepers", "not mounted"),
        ("[[api_keys]]", "[[api_kies]]", "api_kies"),
    ] {
        let planted = good.text.replacen(from, to, 1);
        assert_ne!(planted, good.text, "{from}");
        assert_found(&misfits(&File::planted(&good.path, &planted), &image), fault);
    }
}
